"""The orders to end and to reload, from the first line of `mpspool start` on.

As long as nobody has anything to end it is noted: a SIGTERM that nobody handles kills, and to a process that is PID 1
it does not even come. SIGHUP is the order to reload, but where the terminal that we were started from has gone: that is
the order to end, as for any program in the foreground.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


class Orders:
    """What comes by signal as an order.

    Args:
        hung_up: whether our terminal has gone; None to look.

    Attributes:
        given: whether an order to end has come.
    """

    def __init__(self, hung_up: Callable[[], bool] | None = None) -> None:
        had_one = _has_terminal()
        self._hung_up = hung_up or (lambda: had_one and not _has_terminal())
        self.given = False
        self._reload: Callable[[], object] | None = None
        self._reload_asked = False
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

    def reload_by(self, act: Callable[[], object]) -> None:
        """Has each order to reload call `act`, and calls it at once where one has come already."""
        self._reload = act
        if self._reload_asked:
            act()

    def ignore(self) -> None:
        """Nothing is left to end but this process, which is about to.

        Python takes handlers away before the process has gone, and from then on an order would kill it.
        """
        for signum in self._noted:
            signal.signal(signum, signal.SIG_IGN)

    def _on_signal(self, signum: int, _frame: object) -> None:
        if signum == signal.SIGHUP and not self._hung_up():
            self._reload_asked = True
            if self._reload is not None:
                self._reload()
            return
        if self.given and signum == signal.SIGHUP:
            return  # a shell passes on what its terminal has told us, too: that is one order, and no hurry
        self.given = True
        self._act()


def _has_terminal() -> bool:
    """Whether this process has a terminal that can be opened; one that has hung up cannot."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
