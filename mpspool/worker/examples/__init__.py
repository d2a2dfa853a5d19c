"""Classify, Regress and MultiInference: tf.Examples in, labels and scores out."""
