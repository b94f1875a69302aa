"""Training frameworks: what each needs to train with the optimizers of this package."""
