"""What code a simulation's outcome depends on, as a hash: results of other code are not kept.

A version number would have to be raised with each change, and one day isn't. So comments count as
well: a sweep is run again once too often rather than once too rarely.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from pyspark.sql import SparkSession

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
    files.append((MEASURES, resources.files("purgatory.pipeline.sweeps") / MEASURES))
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


# The project itself as one file that Spark hands to its workers.
#
# A task of a sweep runs the simulation, so every worker needs this project. On a machine of one's own
# it is installed; a cluster is sent it with the sweep. What the project needs from others (`pyarrow`,
# `pydantic`, `structlog`, `prometheus-client`) must be installed on the workers.


_PACKAGES = ("purgatory", "timer")
_SUFFIXES = (".py", ".toml", ".css", ".typed")
_TIME = (1980, 1, 1, 0, 0, 0)  # the same bytes whenever it is made: Spark refuses another file


def write_package(path: Path) -> None:
    """Write the project's Python packages into a zip file that Python can import from."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _PACKAGES:
            _add(archive, resources.files(package), package)


def ship_package(session: SparkSession, folder: Path) -> None:
    """Send the project to the workers of a session, from a file made in `folder`."""
    path = folder / "kafka-purgatory.zip"
    write_package(path)
    session.addArtifacts(str(path), pyfile=True)


def _add(archive: zipfile.ZipFile, entry: Traversable, name: str) -> None:
    if entry.is_dir():
        for child in sorted(entry.iterdir(), key=lambda item: item.name):
            if child.name != "__pycache__":
                _add(archive, child, f"{name}/{child.name}")
    elif name.endswith(_SUFFIXES):
        info = zipfile.ZipInfo(name, _TIME)
        info.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(info, entry.read_bytes())
