"""The project itself as one file that Spark hands to its workers.

A task of a sweep runs the simulation, so every worker needs this project. On a machine of one's own
it is installed; a cluster is sent it with the sweep. What the project needs from others (`pyarrow`,
`pydantic`, `structlog`, `prometheus-client`) must be installed on the workers.
"""

from __future__ import annotations

import zipfile
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from pyspark.sql import SparkSession

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
