"""What a load test is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from mpspool.core.client_tls import ClientTls
from mpspool.core.host_port import host_port
from mpspool.loadtest.messages import Phase

# As --json: standard output.
_STDOUT = Path("-")


@dataclass(frozen=True, slots=True)
class Options:
    """As `mpspool bench` takes them; exactly one of `concurrency` and `rates` has levels.

    Attributes:
        document: the JSON of --input, parsed; None where requests are made up or come from files.
        metrics_url: of the server; "" where it has none for us.
        tls: with which the server is asked; None for clear text.
        metrics_asked: whether somebody has named it: then it must be there.
    """

    host: str
    port: int
    model: str
    version: int | None = None
    signature: str | None = None
    concurrency: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    poisson: bool = True
    streams: int = 1
    connections: int = 16
    repeat: int = 5
    seconds: float = 5.0
    warmup_s: float = 1.0
    rows: int = 1
    document: object = None
    request_files: tuple[Path, ...] = ()
    deadline_s: float = 60.0
    metadata: tuple[tuple[str, str], ...] = ()
    processes: int = 1
    any_answer: bool = False
    allow_failures: bool = False
    metrics_url: str = ""
    metrics_asked: bool = False
    json_file: Path | None = None
    plot_file: Path | None = None
    tls: ClientTls | None = None
    levels: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", self.rates or self.concurrency)

    @property
    def address(self) -> str:
        return host_port(self.host, self.port)

    @property
    def made_up(self) -> bool:
        """The request is made up from the signature."""
        return not self.request_files and self.document is None

    @property
    def json_to_stdout(self) -> bool:
        """Then nothing else goes there."""
        return self.json_file == _STDOUT

    @property
    def is_open(self) -> bool:
        return bool(self.rates)

    def phases(self, level: float, seconds: float, *, seed: int = 0, begin_s: float = 0.0) -> list[Phase]:
        """One for each process that takes part; they share the level."""
        if self.is_open:
            count = min(self.processes, self.connections)
            return [
                Phase(
                    seconds,
                    rate=level / count,
                    poisson=self.poisson,
                    connections=_share(self.connections, count, number),
                    # Processes that send at even times take turns.
                    begin_s=begin_s + (0 if self.poisson or not begin_s else number / level),
                    seed=seed * count + number,
                )
                for number in range(count)
            ]
        count = min(self.processes, int(level))
        return [
            Phase(seconds, in_flight=_share(int(level), count, number), streams=self.streams)
            for number in range(count)
        ]


@dataclass(frozen=True, slots=True)
class Trial:
    """What was found out before the load.

    Attributes:
        began: when, with its time zone.
        lengths: of the requests, in bytes.
        version, signature: of the model, as the first answer has them; None where it does not.
    """

    began: datetime
    lengths: tuple[int, ...]
    version: int | None = None
    signature: str | None = None


def _share(whole: int, count: int, number: int) -> int:
    """Of so many the part of one among `count`."""
    return whole // count + (number < whole % count)
