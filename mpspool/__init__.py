"""A TensorFlow model server that keeps a GPU full under NVIDIA MPS."""

__version__ = "0.1.0"
