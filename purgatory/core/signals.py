"""Closing a purgatory at the signal that ends its process, before the server waits for requests.

At SIGTERM a server takes nothing more, waits for the requests that it has, and tells the
application after that. But a request that waits in a purgatory is answered when something happens,
or when that is closed: the purgatory has to hear the signal first.

Ground rules
------------
* A signal's handler here is short, takes no lock of the purgatory's and raises nothing: it may come
  anywhere on the main thread.
* Handlers are set on the main thread alone. The purgatory's timer only looks whether they still
  stand, on whatever thread it runs.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType

from purgatory.core.async_purgatory import AsyncPurgatory, close_soon, core_of
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.recent_errors import log_safely
from timer import TimerTask

END_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_SignalHandler = Callable[[int, FrameType | None], object]


def close_on_signals(
    purgatory: AsyncPurgatory | DelayedOperationPurgatory,
    signals: Iterable[int] = END_SIGNALS,
) -> None:
    """At each of ``signals``, begin to close ``purgatory``, then call the previous handler.

    Call it on the main thread once the server has set its own handlers, such as in an ASGI
    application's lifespan. A signal without a handler is left as it is; so are all of them on
    another thread, where none arrives. A handler that is replaced within the next half a minute
    is logged as a warning: waiting requests would not be answered at that signal.

    Args:
        purgatory: closed by its ``aclose()`` on its loop, or by its ``close()`` on a new thread.
        signals: their numbers; SIGTERM and SIGINT by default.

    Raises:
        TypeError: ``purgatory`` is of another class; that of several workers has its ``local``.
    """
    core = core_of(purgatory)
    if threading.current_thread() is not threading.main_thread():
        return
    begin_to_close = (
        close_soon(purgatory)
        if isinstance(purgatory, AsyncPurgatory)
        else threading.Thread(target=purgatory.close, name=f"close-{purgatory.name}").start
    )
    handlers = {}
    for number in signals:
        before = signal.getsignal(number)
        if callable(before):
            handlers[number] = _Handler(begin_to_close, before)
            signal.signal(number, handlers[number])
            if hasattr(signal, "siginterrupt"):
                signal.siginterrupt(number, False)  # as asyncio and gunicorn have it
    if handlers and not core.is_closed:
        core.timer.add(_ReplacedHandlers(core, handlers))


class _Handler:
    """Begins to close a purgatory, then does what was done at the signal before."""

    def __init__(self, begin_to_close: Callable[[], object], before: _SignalHandler) -> None:
        self._begin_to_close = begin_to_close
        self.before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            # The purgatory is being closed already, or its loop is closed. In gevent's hub nothing
            # can wait for a thread to have begun; the thread begins all the same.
            with suppress(Exception):
                self._begin_to_close()
        finally:
            self.before(number, frame)


class _ReplacedHandlers(TimerTask):
    """Looks a few times, since a server may take long to start, and warns of what was replaced."""

    _DELAYS_MS = (1_000, 4_000, 25_000)

    def __init__(
        self, core: DelayedOperationPurgatory, handlers: dict[int, _Handler], look: int = 0
    ) -> None:
        super().__init__(self._DELAYS_MS[look])
        self._core = core
        self._handlers = handlers
        self._look = look

    def run(self) -> None:
        if self._core.is_closed:
            return
        for number, handler in list(self._handlers.items()):
            if not _calls(signal.getsignal(number), handler):
                del self._handlers[number]
                log_safely(
                    "warning",
                    "signal_handler_replaced",
                    purgatory=self._core.name,
                    signal=signal.Signals(number).name,
                    advice="requests that wait will not be answered at this signal: "
                    "call close_on_signals after the server has set its own handlers",
                )
        if self._handlers and self._look + 1 < len(self._DELAYS_MS):
            self._core.timer.add(_ReplacedHandlers(self._core, self._handlers, self._look + 1))


def _calls(current: object, handler: _Handler) -> bool:
    while isinstance(current, _Handler):
        if current is handler:
            return True
        current = current.before
    return False
