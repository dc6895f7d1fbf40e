"""Ctrl-C and SIGTERM while a job runs: the first ends it in good order, the second at once.

Tasks that are running are waited for, which takes a while; the terminal says so as soon as the
signal comes. Ending at once leaves what a job that is killed leaves: no reader takes that for
whole, and ``--resume`` goes on with it. The exit code is that of a shell: 130 after Ctrl-C, 143
after SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from zarr_dask.cli.base import Interrupted, Terminated

__all__ = ["Told", "interruptible", "told_to_stop"]

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
_SHOW_CURSOR = b"\x1b[?25h\n"
"""What a bar that is not ended owes a terminal."""


class _Stopped(KeyboardInterrupt):
    """A signal has come; it goes wherever Ctrl-C would."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Told:
    """Whether a signal has come, for who looks now and then."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self) -> bool:
        """Whether one has."""
        return self._number != 0

    def by(self, number: int) -> None:
        """One has come."""
        self._number = number

    def leave(self) -> None:
        """End the process, with the exit code of the signal, if one has come."""
        if self():
            raise SystemExit(_exit_code(self._number))


def _exit_code(number: int) -> int:
    """Of a process that a signal has ended, as shells say it."""
    return 128 + number


@contextmanager
def interruptible(state: str, waits_for: str = "the tasks that are running") -> Iterator[None]:
    """A job that a signal ends, with words.

    Parameters
    ----------
    state
        What is left then, and how to go on.
    waits_for
        What comes to its end first.

    Raises
    ------
    Interrupted
        When a signal has come and what was running has ended.
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
def told_to_stop(waits_for: str) -> Iterator[Told]:
    """Whether a signal has come, instead of dying of it."""
    told = Told()
    with _taking_signals(told.by, waits_for):
        yield told


@contextmanager
def _taking_signals(first: Callable[[int], None], waits_for: str) -> Iterator[None]:
    """Hand the first signal on; the second ends the process.

    A signal that is ignored stays so (``nohup``, a shell's background); other threads than the
    main one cannot take any.
    """
    came: list[int] = []

    def take(number: int, _: FrameType | None) -> None:
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
            signal.signal(number, handler)


def _say(message: str) -> None:
    """Above bars if there are some, which stand in for `sys.stderr`; they know no `click.echo`."""
    try:
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()
    except RuntimeError:  # the signal came while this thread was writing there
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{message}\n".encode())


def _end_at_once(number: int) -> None:
    """As if killed: threads that write are waited for by no one, and nothing is cleaned up."""
    if sys.__stderr__ is not None and sys.__stderr__.isatty():
        os.write(sys.__stderr__.fileno(), _SHOW_CURSOR)
    os._exit(_exit_code(number))
