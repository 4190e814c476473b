"""What code a simulation's outcome depends on, as a hash: results of other code are not kept.

A version number would have to be raised with each change, and one day isn't. So comments count as
well: a sweep is run again once too often rather than once too rarely.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

PACKAGES = (
    "timer",
    "purgatory.core",
    "purgatory.kafka",
    "purgatory.settings",
    "purgatory.trace",
    "purgatory.simulation",
)
MEASURES = "measures.py"
"""The one file of this package that makes columns of a run's outcome."""


@cache
def code_digest() -> str:
    """Return the hash of all that runs a scenario. O(bytes of the code), once a process."""
    files = [file for package in PACKAGES for file in _files(resources.files(package), package)]
    files.append((MEASURES, resources.files("purgatory.sweeps") / MEASURES))
    return digest_of(files)


def digest_of(files: Iterable[tuple[str, Traversable]]) -> str:
    """Return the hash of files, each under a name, in whatever order they come."""
    found = sorted((name, file.read_bytes()) for name, file in files)
    digest = hashlib.sha256()
    for name, content in found:
        digest.update(f"{name}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()


def _files(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        inner = f"{name}/{entry.name}"
        if entry.is_dir():
            yield from _files(entry, inner)
        elif entry.name.endswith(".py"):
            yield inner, entry
