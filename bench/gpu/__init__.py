"""What several workers on one GPU are worth, with MPS and without, and how long a fault takes: `python -m bench.gpu --help`."""
