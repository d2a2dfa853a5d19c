"""The front door: protocols, data plane, scheduler, ZeroMQ. Imports no TensorFlow."""
