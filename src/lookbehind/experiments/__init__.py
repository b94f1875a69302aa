"""Experiments: many runs, one answer."""
