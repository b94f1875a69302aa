"""Data sets from their official files, in memory, augmented by whole batches."""
