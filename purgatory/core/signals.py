"""Closing a purgatory at the signal that ends its process, before the server waits for requests.

At SIGTERM a server takes nothing more, waits for the requests that it has, and tells the
application after that. But a request that waits in a purgatory is answered when something happens,
or when that is closed: the purgatory has to hear the signal first.

Ground rules
------------
* What a signal's handler does here is short, takes no lock of the purgatory's and raises nothing:
  it may come anywhere on the main thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType

from purgatory.core.async_purgatory import AsyncPurgatory, close_soon
from purgatory.core.delayed_operation_purgatory import DelayedOperationPurgatory

END_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def close_on_signals(
    purgatory: AsyncPurgatory | DelayedOperationPurgatory,
    signals: Iterable[int] = END_SIGNALS,
) -> None:
    """At each of ``signals``, begin to close ``purgatory``, then do what was done at it before.

    Call it on the main thread once the server has set its own handlers, such as in an ASGI
    application's lifespan. A signal that nothing handles yet is left as it is; so are all of them
    on another thread, where none arrives.

    Args:
        purgatory: closed by its ``aclose()`` on its loop, or by its ``close()`` on a new thread.
        signals: their numbers; SIGTERM and SIGINT by default.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    begin_to_close = (
        close_soon(purgatory)
        if isinstance(purgatory, AsyncPurgatory)
        else threading.Thread(target=purgatory.close, name=f"close-{purgatory.name}").start
    )
    for number in signals:
        _do_first(number, begin_to_close)


def _do_first(number: int, action: Callable[[], object]) -> None:
    before = signal.getsignal(number)
    if not callable(before):
        return

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            # It is being closed already, or its loop is closed. In gevent's hub nothing can wait
            # for a thread to have begun; it does so all the same.
            with suppress(Exception):
                action()
        finally:
            before(number, frame)

    signal.signal(number, handle)
    if hasattr(signal, "siginterrupt"):
        signal.siginterrupt(number, False)  # as asyncio and gunicorn have it
