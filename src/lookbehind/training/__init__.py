"""Training runs: values that are trained, recorded and, when stopped, gone on with."""
