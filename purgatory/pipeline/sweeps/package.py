"""The code of this project: as a hash in the keys of results, and as a file for Spark's workers."""

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
"""The one file of this package that turns the outcome of a run into columns."""

_SUFFIXES = (".py", ".toml", ".css", ".typed")
_TIME = (1980, 1, 1, 0, 0, 0)  # the same bytes whenever it is made: Spark refuses another file


@cache
def code_digest() -> str:
    """Return the hash of all code that runs a scenario. O(bytes of the code), once a process.

    A version number would have to be raised with each change. So comments count as well: a sweep is
    run again once too often rather than once too rarely.
    """
    files = [file for package in PACKAGES for file in _files(resources.files(package), package)]
    files.append((MEASURES, resources.files("purgatory.pipeline.sweeps") / MEASURES))
    return digest_of(files)


def digest_of(files: Iterable[tuple[str, Traversable]]) -> str:
    """Return the hash of files by name, independent of their order."""
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


# The package for workers
#
# A task of a sweep runs the simulation, so every worker needs this project. On the local machine it
# is installed; a cluster gets it with the sweep. Its dependencies (`pyarrow`, `pydantic`,
# `structlog`, `prometheus-client`) must be installed on the workers.


def write_package(path: Path) -> None:
    """Write the Python packages of this project into a zip file that Python imports from."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("purgatory", "timer"):
            _add(archive, resources.files(package), package)


def ship_package(session: SparkSession, folder: Path) -> None:
    """Send this project to the workers of a session, from a file that is written in `folder`."""
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
