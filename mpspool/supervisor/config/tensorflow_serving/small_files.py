"""The files that say one thing each: monitoring_config_file, ssl_config_file, batching_parameters_file."""

from __future__ import annotations

from mpspool.core import tfs
from mpspool.core.settings import MONITORING_PATH
from mpspool.supervisor.config.batching_file import parameters
from mpspool.supervisor.config.layers import Source
from mpspool.supervisor.config.tensorflow_serving.proto_text import TextError, parse
from mpspool.supervisor.config.tensorflow_serving.told import Told


def read_monitoring(text: str, file: str, told: Told) -> None:
    """MonitoringConfig: where Prometheus finds the metrics, "" for nowhere."""
    try:
        found = parse(text, tfs.MonitoringConfig()).prometheus_config
    except TextError as error:
        told.refuse(file, f"{error}; it holds prometheus_config {{ enable: true }}")
        return
    told.put("monitoring_path", (found.path or MONITORING_PATH) if found.enable else "", Source(file))


def check_tls(text: str, file: str, told: Told) -> None:
    """SSLConfig: whether there is a key and a certificate in it; what these are is looked at when they are used."""
    try:
        found = parse(text, tfs.SSLConfig())
    except TextError as error:
        told.refuse(file, f"{error}; it holds server_key, server_cert, custom_ca and client_verify")
        return
    for name in ("server_key", "server_cert"):
        if not getattr(found, name):
            told.refuse(file, f"{name} is missing; give the PEM text, its lines joined by \\n")


def read_batching(text: str, file: str, told: Told) -> None:
    """BatchingParameters, in place."""
    try:
        found = parse(text, tfs.BatchingParameters())
    except TextError as error:
        told.refuse(file, f"{error}; it holds lines such as max_batch_size {{ value: 128 }}")
        return
    for key, value in {"enabled": True, **parameters(found)}.items():
        told.put(f"batching.{key}", value, Source(file))
