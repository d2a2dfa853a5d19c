"""A simulation of devices, workers and clients around the scheduler that the router runs."""
