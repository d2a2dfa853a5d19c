"""Whether what a nursery has imported is still what a new worker would import. Standard library only."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import mpspool
from mpspool.compiled import LIBRARY

# The variables that the imports look up, in C and in Python: a child's own would come too late. What is not
# here is read by a worker when it uses it: devices, thread counts, allocators, XLA's and TensorFlow's flags.
READ_AT_IMPORT = re.compile(
    rb"(LD|GLIBC|MALLOC)_.*"  # the loader and the C library, when the process starts
    rb"|PYTHON.*"  # the interpreter, when it starts, and what it imports from
    rb"|(OPENBLAS|NPY|NUMPY|HDF5)_.*"  # NumPy and its OpenBLAS; h5py
    rb"|(PROTOCOL_BUFFERS|ABSL|WRAPT|PYZMQ)_.*"  # the choice between implementations
    rb"|TF_USE_LEGACY_KERAS"
    rb"|TF2_BEHAVIOR|TF_ENABLE_CONTROL_FLOW_V2|TF_FORWARD_COMPATIBILITY_DELTA_DAYS"
    rb"|TF_(FUNCTION_JIT_COMPILE_DEFAULT|JIT_COMPILE_REWRITE|OPTIONALS_IN_GRADIENTS)"
    rb"|TF_XLA_SHARDING_FOR_RESOURCE_VARIABLES"
    rb"|TF_CPP_.*"  # log levels
    rb"|TF_ENABLE_ONEDNN_OPTS|TF_ENABLED_DEVICE_TYPES|TF_PLUGGABLE_DEVICE_LIBRARY_PATH"  # which kernels there are
    rb"|GCS_.*|TF_USE_MODULAR_FILESYSTEM|GRPC_.*|OPENSSL_.*"  # file systems
)

Environment = Mapping[bytes, bytes]
Version = tuple[int, int, int]
# By path; None for what is not there.
Code = Mapping[str, Version | None]


def look() -> Code:
    """All that may be imported: this package, the interpreter, the folder that every installation changes.

    Taken before the imports, so that what is replaced in their course is found to have changed.
    """
    package = Path(mpspool.__file__).parent
    libraries = [*package.rglob("*.so"), *package.parent.glob(f"{LIBRARY}.*.so")]
    paths = {sys.executable, *map(str, [*package.rglob("*.py"), *libraries])}
    tensorflow = importlib.util.find_spec("tensorflow")
    if tensorflow is not None and tensorflow.origin:
        paths.add(str(Path(tensorflow.origin).parents[1]))
    return {path: _version(path) for path in paths}


def imported(found: Code) -> Code:
    """What look() found, without the modules that were not imported since; those it did not see as they are now."""
    names = [name for name in sys.modules if name.partition(".")[0] in {"mpspool", "__main__", LIBRARY}]
    modules = {file for name in names if (file := getattr(sys.modules[name], "__file__", None))}
    modules |= {written for file in modules if (written := _written(file)) in found}
    kept = {
        path: version
        for path, version in found.items()
        if path in modules or not path.endswith((".py", ".so"))
    }
    return kept | {path: _version(path) for path in modules - found.keys()}


def _written(file: str) -> str:
    """What a compiled module's file was compiled of; another's name is as it was."""
    folder, name = os.path.split(file)
    return os.path.join(folder, f"{name.partition('.')[0]}.py")


def changed(code: Code) -> str:
    """A path that is not what it was, "" for none."""
    return next((path for path, version in code.items() if _version(path) != version), "")


def _version(path: str) -> Version | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def differing(ours: Environment, theirs: Environment) -> list[str]:
    """The variables that are read at import and are not the same in both."""
    names = {name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)}
    return sorted(os.fsdecode(name) for name in names if read_at_import(name))


def mixed(ours: Environment, theirs: Environment) -> dict[bytes, bytes]:
    """Ours, but what is read at import as it is in theirs."""
    kept = {name: value for name, value in ours.items() if not read_at_import(name)}
    return kept | {name: value for name, value in theirs.items() if read_at_import(name)}


def read_at_import(name: bytes) -> bool:
    """Whether a variable counts only where it is set before the imports."""
    return READ_AT_IMPORT.fullmatch(name) is not None
