"""One model version in one process: link, engine, codec, warm-up; all that needs TensorFlow."""
