"""Signals that end a job: an orderly end at SIGTERM and SIGHUP, as at Ctrl-C.

Temporary files and processes are removed. A closed terminal sends SIGHUP. The exit status is 128
and the signal's number. Jobs of Spark are cancelled first (`spark.job_threads`).

Ground rules: only the main thread sets handlers; a program that has its own handler keeps it, and
one that ignores a signal, as under `nohup`, still ignores it.
"""

from __future__ import annotations

import _thread
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

TERMINATED = 128 + signal.SIGTERM
"""The exit status after SIGTERM, as shells have it."""

HUNG_UP = 128 + signal.SIGHUP
"""The exit status after SIGHUP."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a command."""

_AT_ONCE: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
"""The handlers of Python, after which a signal ends a command at once."""


def ending(number: int) -> BaseException:
    """The exception for a signal: KeyboardInterrupt at Ctrl-C, otherwise SystemExit."""
    if number == signal.SIGHUP:
        _leave_closed_terminal()
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


def _leave_closed_terminal() -> None:
    """Keep later writes to a closed terminal from failing."""
    for descriptor in range(3):
        with suppress(OSError):
            # A closed terminal is no terminal any more, but still a device.
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)


def end(number: int, _frame: FrameType | None) -> None:
    """A signal handler that raises the exception for a signal."""
    raise ending(number)


def is_free(number: signal.Signals) -> bool:
    """Whether a job may set a handler: none is set, or only that of `exit_on_signal`."""
    return signal.getsignal(number) in (_AT_ONCE[number], end)


@contextmanager
def handle_signals(
    handler: Callable[[int, FrameType | None], object], numbers: Iterable[signal.Signals]
) -> Iterator[Callable[[], None]]:
    """Set the handler of some signals for the `with` block.

    Outside of the main thread, where Python allows no handlers, none is set.

    Yields:
        A function that restores the handlers of before; the end of the block calls it, too.
    """
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, previous in before.items():
            # None: that of an extension, which can't be restored.
            signal.signal(number, _AT_ONCE[number] if previous is None else previous)

    try:
        for number in before:
            signal.signal(number, handler)
        yield restore
    finally:
        restore()


def _not_ignored() -> list[signal.Signals]:
    return [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer Ctrl-C, SIGTERM and SIGHUP until the end of the `with` block, which must be short."""
    signals: list[int] = []
    try:
        with handle_signals(lambda number, _: signals.append(number), _not_ignored()):
            yield
    finally:
        for number in signals:
            signal.raise_signal(number)


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Raise SystemExit with status 143 at SIGTERM, and with 129 at SIGHUP."""
    ends = (signal.SIGTERM, signal.SIGHUP)
    with handle_signals(end, [one for one in ends if signal.getsignal(one) == signal.SIG_DFL]):
        yield


@contextmanager
def interruptible(interrupt: Callable[[], object]) -> Iterator[list[int]]:
    """Call `interrupt` at the first SIGINT, SIGTERM or SIGHUP; the second has its usual effect.

    A KeyboardInterrupt does not suffice: one that is raised in a callback of the garbage collector
    is lost.

    Yields:
        A list that will have the number of the first signal.
    """
    signals: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        interrupt()
        restore()

    with handle_signals(handle, _not_ignored()) as restore:
        yield signals


@contextmanager
def cancel_on_signal(cancel: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Call `cancel` at the first signal, then raise its exception; a second one ends the process.

    The exception leaves the block even if another error was raised on the way out. A program's own
    handlers of SIGTERM or SIGHUP are kept.

    Yields:
        A list that will have the exception.

    Raises:
        KeyboardInterrupt: Ctrl-C.
        SystemExit: SIGTERM, with 143; SIGHUP, with 129.
    """
    signals: list[BaseException] = []
    numbers = [one for one in ENDING if one == signal.SIGINT or is_free(one)]

    def handle(number: int, _frame: FrameType | None) -> None:
        signals.append(ending(number))
        for one in numbers:
            signal.signal(one, _AT_ONCE[one])
        cancel()
        raise signals[0]

    with handle_signals(handle, numbers):
        try:
            yield signals
        except BaseException:
            if signals:
                # Errors of what was cancelled, raised while the block is left, are of no interest.
                raise signals[0] from None
            raise


# Signals while DuckDB computes: the job ends, and its spilled files are removed.
#
# DuckDB turns the exception of a handler into a RuntimeError, and drops it while DuckDB itself
# imports a module. The signal is therefore raised again, once a second, until the block ends.
#
# Ground rules: handlers run in the main thread, where the block is; the thread that raises a signal
# again ends with the block, after which a signal does nothing here.


_AGAIN_S = 1.0


@contextmanager
def stop_computation() -> Iterator[None]:
    """Raise the exception of a signal at the end of the block, at the latest.

    Raises:
        KeyboardInterrupt: Ctrl-C.
        SystemExit: SIGTERM, with 143; SIGHUP, with 129.
    """
    signals: list[BaseException] = []
    ended = threading.Event()

    def stop(number: int, _: FrameType | None) -> None:
        if ended.is_set():
            return
        if not signals:
            threading.Thread(target=raise_again, args=(number,), daemon=True).start()
        signals.append(ending(number))
        raise signals[-1]

    def raise_again(number: int) -> None:
        while not ended.wait(_AGAIN_S):
            _thread.interrupt_main(signal.Signals(number))

    try:
        with handle_signals(stop, [number for number in ENDING if is_free(number)]):
            try:
                yield
            finally:
                ended.set()
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt | SystemExit):
            raise error.__cause__ from None
        raise
    finally:
        ended.set()  # once more, for a signal that came before the first
    if signals:
        raise signals[0]


# The outputs that a command has completed, for the message of a later interrupt.
#
# Ground rules: imports are fast; one command at a time runs in a process.


_outputs: list[str] = []


def record_output(location: object) -> None:
    """Record that the results at a location are complete."""
    _outputs.append(str(location))


def forget_outputs() -> None:
    """Clear the record before a command."""
    _outputs.clear()


def last_output() -> str | None:
    """The location of the last results, or None."""
    return _outputs[-1] if _outputs else None


# The temporary folder of a job.
#
# Ground rules: signals are deferred while it is created and removed, since a signal
# between the creation and the assignment would leave it behind.


@contextmanager
def working_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder, which is removed with its content at the end of the `with` block.

    Args:
        prefix: of its name.
        parent: None: the system's temporary folder.

    Raises:
        OSError: it can't be created.
    """
    folder = None
    try:
        with defer_signals():
            folder = TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
        yield Path(folder.name)
    finally:
        if folder is not None:
            with defer_signals():
                folder.cleanup()
