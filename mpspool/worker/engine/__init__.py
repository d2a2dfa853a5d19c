"""The engines: one protocol, a v1 Session, and the TF2 loader for what only that can load."""
