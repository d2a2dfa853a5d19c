"""A load test of a TensorFlow Serving API server: closed and open loops, and what the server says of them itself."""
