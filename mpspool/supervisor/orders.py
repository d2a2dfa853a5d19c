"""The order to end, from the first line of `mpspool start` on.

As long as nobody has anything to end it is noted: a SIGTERM that nobody handles kills, and to a process that is PID 1
it does not even come.
"""

from __future__ import annotations

import signal
from collections.abc import Callable


class Orders:
    """What comes by signal as an order to end.

    Attributes:
        given: whether one has come.
    """

    def __init__(self) -> None:
        self.given = False
        self._act: Callable[[], object] = lambda: None
        self._noted: set[signal.Signals] = set()

    def note(self, *signums: signal.Signals) -> None:
        """From now on these are orders; not a SIGHUP that the caller has us ignore, as nohup does."""
        for signum in signums:
            if signum == signal.SIGHUP and signal.getsignal(signum) is signal.SIG_IGN:
                continue
            signal.signal(signum, self._on_signal)
            self._noted.add(signum)

    def obey(self, act: Callable[[], object]) -> None:
        """Has each order call `act`, and calls it at once where one has come already.

        Args:
            act: called in the main thread, between any two instructions of it.
        """
        self._act = act
        if self.given:
            act()

    def ignore(self) -> None:
        """Nothing is left to end but this process, which is about to.

        Python takes handlers away before the process has gone, and from then on an order would kill it.
        """
        for signum in self._noted:
            signal.signal(signum, signal.SIG_IGN)

    def _on_signal(self, signum: int, _frame: object) -> None:
        if self.given and signum == signal.SIGHUP:
            return  # a shell passes on what its terminal has told us, too: that is one order, and no hurry
        self.given = True
        self._act()
