"""One copy of a model version's weights in host memory, for all of its workers."""
