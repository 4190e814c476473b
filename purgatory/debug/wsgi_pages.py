"""The debug pages as a WSGI application."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING

from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.debug.debug_pages import DebugPages

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def wsgi_app(
    purgatories: Iterable[DelayedOperationPurgatory | AsyncPurgatory] | None = None,
) -> Callable[[WSGIEnvironment, StartResponse], list[bytes]]:
    """Return a WSGI application with the page, and with ``state``, its data as JSON.

    A thread samples the counters every five seconds from now on, for what is told of the last
    minutes.

    Args:
        purgatories: which are told of; by default all of this process, those made later too.
    """
    pages = DebugPages(purgatories)

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        method = environ["REQUEST_METHOD"]
        # WSGI hands the bytes of a path over as if they were Latin-1.
        mounted_at = environ.get("SCRIPT_NAME", "").encode("latin-1").decode(errors="replace")
        answer = pages.answer(method, environ.get("PATH_INFO", ""), mounted_at)
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", list(answer.headers))
        return [] if method == "HEAD" else [answer.body]

    return application
