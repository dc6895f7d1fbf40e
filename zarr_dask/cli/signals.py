"""Ctrl-C and SIGTERM while a job runs: the first stops it cleanly, the second at once.

Running tasks are waited for, which takes a while; the terminal says so as soon as the signal
arrives. Stopping at once leaves the state of a killed job: readers never see an incomplete array,
and ``--resume`` continues the job. The exit code is that of a shell: 130 after Ctrl-C, 143 after
SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from zarr_dask.cli.errors import Interrupted, Terminated

__all__ = ["StopRequested", "handle_signals", "stop_requested"]

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
_SHOW_CURSOR = b"\x1b[?25h\n"
"""Restores the cursor after an unfinished progress bar."""


class _Stopped(KeyboardInterrupt):
    """A signal has arrived; raised like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class StopRequested:
    """A flag for polling that is set when a signal arrives."""

    def __init__(self) -> None:
        self._number = 0
        self.ignored = False

    def __call__(self) -> bool:
        """True if a signal has arrived."""
        return self._number != 0

    def ignore(self) -> None:
        """Ignore signals, also one that has arrived: everything is done."""
        self.ignored, self._number = True, 0

    def by(self, number: int) -> None:
        """Record that a signal has arrived."""
        self._number = 0 if self.ignored else number

    def leave(self) -> None:
        """End the process with the exit code of the signal, if one has arrived."""
        if self():
            raise SystemExit(_exit_code(self._number))


def _exit_code(number: int) -> int:
    """Return the exit code of a process that was ended by a signal, as in shells."""
    return 128 + number


@contextmanager
def handle_signals(state: str, waits_for: str = "the tasks that are running") -> Iterator[None]:
    """Run a job that a signal interrupts with a message.

    Parameters
    ----------
    state
        State after the interrupt, and the way to continue.
    waits_for
        Description of the work that is finished first.

    Raises
    ------
    Interrupted
        If a signal has arrived and the running work is finished.
    """

    def stop(number: int) -> None:
        raise _Stopped(number)

    try:
        with _taking_signals(stop, waits_for):
            yield
    except _Stopped as stopped:
        ended = Terminated if stopped.number == signal.SIGTERM else Interrupted
        raise ended(f": {state}") from stopped
    except KeyboardInterrupt as interrupt:
        raise Interrupted(f": {state}") from interrupt


@contextmanager
def stop_requested(waits_for: str, *, own_process: bool = False) -> Iterator[StopRequested]:
    """Yield a flag that a signal sets, instead of ending the process.

    Parameters
    ----------
    waits_for
        Description of the work that is finished first.
    own_process
        True if the process ends after the context. If everything is done, signals do not change
        its exit code then, however late they arrive.
    """
    told = StopRequested()
    with _taking_signals(told.by, waits_for, lambda: told.ignored, own_process=own_process):
        yield told


@contextmanager
def _taking_signals(
    first: Callable[[int], None],
    waits_for: str,
    ignored: Callable[[], bool] = lambda: False,
    *,
    own_process: bool = False,
) -> Iterator[None]:
    """Pass the first signal on; the second ends the process.

    Signals that are ignored stay ignored (``nohup``, a shell's background). Threads other than the
    main one cannot receive signals.
    """
    came: list[int] = []

    def take(number: int, _: FrameType | None) -> None:
        if ignored():
            return
        came.append(number)
        if len(came) > 1:
            _end_at_once(number)
        name = _NAMES[signal.Signals(number)]
        _say(f"{name}: waiting for {waits_for} to end; a second one does not wait.")
        first(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, take)
        for number in _NAMES
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if own_process and ignored() else handler)


def _say(message: str) -> None:
    """Print above progress bars, which replace `sys.stderr` and do not support `click.echo`."""
    try:
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()
    except RuntimeError:  # the signal came while this thread was writing there
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{message}\n".encode())


def _end_at_once(number: int) -> None:
    """End the process as if killed: without waiting for threads and without cleaning up."""
    if sys.__stderr__ is not None and sys.__stderr__.isatty():
        os.write(sys.__stderr__.fileno(), _SHOW_CURSOR)
    os._exit(_exit_code(number))
