"""Kafka's protocol over sockets: connections, requests and responses as bytes, and errors."""

from __future__ import annotations

import sys


def _import_kio() -> None:
    """Import `kio` without Hypothesis, to which it tells its types where that is installed: beside
    tests it is, and is then four fifths of what this import takes."""
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # as Python notes "there is none"
    try:
        import kio.static.primitive  # noqa: F401
    finally:
        del sys.modules["hypothesis"]


_import_kio()
