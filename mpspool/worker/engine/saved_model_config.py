"""assets.extra/saved_model_config.pb: what a version says of its own session, as TensorFlow Serving reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import config_pb2

from mpspool.core import log, tfs

logger = log.get("engine")

_FILE = Path("assets.extra") / "saved_model_config.pb"
# Why each has no meaning here.
_OPTIMIZER = "TensorFlow's own wheels do not have the optimizer that reads it"
_UNUSED = {
    "session_overrides.remote_op_remap_config": _OPTIMIZER,
    "session_overrides.batch_op_rewriter_config": _OPTIMIZER,
    "tfrt_runtime_config": "models run in a Session or by the TF2 loader, not in TFRT",
    "critical": "readiness: all has /readyz wait for every model",
}


def overridden(path: Path, config: Any | None) -> Any | None:
    """The session's ConfigProto for this version folder: what its file says goes before what we say.

    A file that cannot be read counts as none, as there, and the log says so.

    Args:
        path: the version folder.
        config: a ConfigProto, None for TensorFlow's defaults. It stays as it is.
    """
    asked = _read(path / _FILE)
    if asked is None or not asked.HasField("session_overrides"):
        return config
    found = config_pb2.ConfigProto()
    if config is not None:
        found.CopyFrom(config)
    disabled = asked.session_overrides.disable_meta_optimizer
    found.graph_options.rewrite_options.disable_meta_optimizer = disabled
    logger.info("the model's own configuration", file=str(path / _FILE), disable_meta_optimizer=disabled)
    return found


def _read(file: Path) -> Any | None:
    try:
        found = tfs.SavedModelConfig.FromString(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, DecodeError) as error:
        logger.warning("the model's own configuration is ignored", file=str(file), reason=str(error))
        return None
    said = {field.name: value for field, value in found.ListFields()}
    overrides = said.pop("session_overrides", None)
    if overrides is not None:
        said |= {f"session_overrides.{field.name}": value for field, value in overrides.ListFields()}
    for field, reason in _UNUSED.items():
        if field in said:
            logger.warning("has no meaning here", file=str(file), field=field, reason=reason)
    return found
