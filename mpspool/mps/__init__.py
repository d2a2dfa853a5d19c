"""The GPU side: devices, the control daemon, a worker's environment. `simulated` holds the shipped stand-ins."""
