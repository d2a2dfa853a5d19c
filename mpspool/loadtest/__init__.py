"""A load test of a TensorFlow Serving API server: closed and open loops, and what the server says of them itself."""

# Seconds that any of its times may be, at most.
MOST_S = 1e6
