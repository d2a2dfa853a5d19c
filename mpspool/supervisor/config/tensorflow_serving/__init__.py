"""TensorFlow Serving's command line and files, and DeepRec's: what they say, as keys of the pool file."""
