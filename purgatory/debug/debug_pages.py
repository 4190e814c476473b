"""The debug pages, whatever serves them: a path in, an answer out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from urllib.parse import quote

from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.debug.description import describe
from purgatory.debug.past import Past

_FILES = {"": "page.html", "page.js": "page.js", "page.css": "page.css"}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "json": "application/json",
    "txt": "text/plain; charset=utf-8",
}
_OF_ALL = (
    # Names of keys and operations are text on the page; were one taken for markup, nothing of it
    # would run.
    ("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; "
     "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)  # fmt: skip

_past = Past()
"""Of this process; begun by its first application."""


@dataclass(frozen=True)
class Answer:
    """What is sent for a request."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class DebugPages:
    """The page and what it reads.

    Args:
        purgatories: which are told of; by default all of this process.
    """

    def __init__(
        self, purgatories: Iterable[DelayedOperationPurgatory | AsyncPurgatory] | None = None
    ) -> None:
        self._purgatories = None if purgatories is None else list(purgatories)
        _past.keep()

    def answer(self, method: str, path: str, mounted_at: str = "") -> Answer:
        """Answer a request.

        Args:
            method: GET or HEAD; others are refused.
            path: below the place where the pages are mounted, with its slash.
            mounted_at: that place, without a slash at its end.
        """
        if method not in {"GET", "HEAD"}:
            return _answer(
                405, "txt", b"The debug pages only read: GET or HEAD.\n", "Allow", "GET, HEAD"
            )
        if not path:
            return _answer(307, "txt", b"", "Location", f"{quote(mounted_at)}/")
        name = path.removeprefix("/")
        if name == "state":
            _past.keep()  # a fork leaves no thread that does
            state = describe(self._purgatories, past=_past)
            return _answer(200, "json", json.dumps(state).encode())
        if name not in _FILES:
            return _answer(404, "txt", b"There are: the page itself, and state (JSON).\n")
        file = files("purgatory.debug") / "page" / _FILES[name]
        return _answer(200, file.name.rpartition(".")[2], file.read_bytes())


def _answer(status: int, kind: str, body: bytes, name: str = "", value: str = "") -> Answer:
    headers = (
        ("Content-Type", _TYPES[kind]),
        ("Content-Length", str(len(body))),
        *_OF_ALL,
        *(((name, value),) if name else ()),
    )
    return Answer(status, headers, body)
