"""What was asked for: the pool file, the environment and the flags, checked as a whole."""
