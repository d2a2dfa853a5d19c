"""`mpspool top`: a pool as it runs, live. Samples in, figures between two of them, lines out."""
