"""A TensorFlow model server that keeps a GPU full under NVIDIA MPS."""

from mpspool import compiled  # before what it is about

__all__ = ["__version__", "compiled"]
__version__ = "0.1.0"
