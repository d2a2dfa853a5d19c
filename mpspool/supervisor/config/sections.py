"""The sections of a configuration that stand for themselves: memory, shares of a GPU, weights, starts and restarts."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ByteSize, Field, model_validator

from mpspool.supervisor.config.values import Percentages, Priorities, Seconds, Section, Sizes, on_off


def mps_mode(value: object) -> object:
    """`on` is another word for `own`."""
    word = "own" if (word := on_off(value)) == "on" else word
    if word not in ("auto", "own", "external", "off"):
        raise ValueError("must be auto, own (on says the same), external or off")
    return word


def as_mode(value: object) -> object:
    """`mps: on` says the mode alone."""
    return value if isinstance(value, dict | BaseModel) else {"mode": value}


class GpuMemory(Section):
    """How much of its GPU's memory a worker takes."""

    growth: bool = True
    """Take memory as it is needed, rather than all of it at the start."""
    fraction: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    """At most this part of the device, per worker; 0 for no limit."""
    limit_bytes: Annotated[ByteSize, Field(ge=0)] = ByteSize(0)
    """At most this much per worker, in bytes or as "2GiB"; 0 for no limit."""
    allocator: Literal["default", "cuda_malloc_async"] = "default"
    """What TensorFlow takes device memory from: its own pool, or CUDA's (TF_GPU_ALLOCATOR)."""

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.fraction and self.limit_bytes:
            raise ValueError("fraction and limit_bytes are two ways to say one thing; give one of them")
        return self


class Shares(Section):
    """What each worker gets of its GPU under MPS; of several values the worker in slot i of a GPU takes value i."""

    active_thread_percentage: Percentages | None = None
    """At most this part of the GPU's multiprocessors, in percent, 100 for no cap. Not given: no cap up to 2 workers
    on a GPU, else twice an equal part."""
    pinned_memory: Sizes | None = None
    """At most this much device memory, in bytes or as "2GiB"; 0 for no limit."""
    priority: Priorities | None = None
    """normal, or below_normal for work that gives way to other clients' where the GPU can."""


class MpsConfig(Shares):
    """NVIDIA MPS, and what each worker gets under it."""

    mode: Annotated[Literal["auto", "own", "external", "off"], BeforeValidator(mps_mode)] = "auto"
    """NVIDIA MPS: daemons of our own (on says the same), external for one that somebody else runs, off, or auto: own
    where a GPU is used and nvidia-cuda-mps-control is found."""
    pipe_directory: str = ""
    """For mode: external, the daemon's pipe folder; not given, CUDA_MPS_PIPE_DIRECTORY, else /tmp/nvidia-mps."""


class WeightsConfig(Section):
    """How a model version's weights are kept in host memory."""

    shared: Annotated[Literal["auto", "on", "off"], BeforeValidator(on_off)] = "auto"
    """One copy for all workers of a version: auto where the model allows it, on to refuse one that does not."""
    backing: Literal["memfd", "shm", "file"] = "memfd"
    """Where the copy lies: in anonymous memory, in /dev/shm (which containers keep small), or in folder."""
    folder: str = ""
    """For backing: file, an existing folder on a local disk; the file in it has no name and leaves nothing."""

    @model_validator(mode="after")
    def _folder_for_file(self) -> Self:
        if self.folder and self.backing != "file":
            raise ValueError("folder is for backing: file; leave it out, or set backing: file")
        if self.backing == "file" and not self.folder:
            raise ValueError("backing: file needs a folder; give weights.folder")
        return self


class TlsConfig(Section):
    """TLS of the gRPC port; HTTP stays in clear, as with TensorFlow Serving."""

    key: str = ""
    """A file with the server's private key, in PEM form."""
    cert: str = ""
    """A file with the server's certificate, and after it those between it and its CA."""
    client_ca: str = ""
    """A file with the certificates of the CAs that sign clients'."""
    verify_client: bool | None = None
    """Whether clients must have a certificate of client_ca; not given, true where client_ca is."""
    file: str = ""
    """Instead of all these, TensorFlow Serving's ssl_config_file."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        own = self.key or self.cert or self.client_ca or self.verify_client is not None
        if self.file and own:
            raise ValueError("file says all of it; give it alone, or key, cert, client_ca and verify_client")
        if not self.file and own:
            for name, value in (("key", self.key), ("cert", self.cert)):
                if not value:
                    raise ValueError(f"there is no {name}; a server needs key and cert, or give file")
        if self.verify_client and not self.client_ca:
            raise ValueError(
                "verify_client needs client_ca: the certificates of the CAs that sign clients', in PEM form"
            )
        return self

    @property
    def given(self) -> bool:
        """Whether there is to be TLS."""
        return bool(self.file or self.cert)

    @property
    def verifies(self) -> bool:
        """Whether clients must have a certificate, where no file says it."""
        return bool(self.client_ca) if self.verify_client is None else self.verify_client


class WorkersConfig(Section):
    """How worker processes come to be."""

    start: Literal["fork", "exec"] = "fork"
    """fork from a process that has imported TensorFlow already, or exec as processes of their own."""


class RestartConfig(Section):
    """How a slot whose worker ended is filled again."""

    retries: Annotated[int, Field(ge=0)] = 3
    """Restarts in a row without success before the slot is FATAL."""
    backoff_s: Seconds = 1.0
    """The wait before the second restart; it doubles from there. The first is immediate."""
    max_backoff_s: Seconds = 60.0
    """The longest wait between restarts."""
