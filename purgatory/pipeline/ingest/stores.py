"""Locations of traces and results: local folders, and URIs of stores.

A store lists, reads and writes the files at a URI; a listing is read like a local folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Literal, Protocol

from purgatory.pipeline.errors import PipelineError, TraceError


class StoreError(OSError):
    """An operation of a store failed; the message has the URI and the reason."""


class StoreFiles(Protocol):
    """The files of stores, by their URIs. Every method may raise StoreError. Thread-safe."""

    def status(self, text: str) -> tuple[str, bool] | None:
        """The full URI, and whether it is a folder; None: it does not exist."""

    def files_below(self, text: str) -> Iterable[tuple[str, int]]:
        """All files in a folder at any depth: the URI and the bytes of each."""

    def names_in(self, text: str) -> list[str]:
        """The names of the files and folders directly in a folder."""

    def open(self, text: str, size_bytes: int) -> IO[bytes]:
        """Open a file of a known size for random access."""

    def check_gzip(self, text: str) -> None:
        """Read a compressed file to its end, to check it. O(bytes)."""

    def write(self, text: str, content: bytes) -> None:
        """Create a file, and its folders."""

    def delete(self, text: str) -> None:
        """Remove a file, or a folder with its content, if it exists."""

    def delete_at_the_end(self, text: str) -> None:
        """Remove a temporary folder, also after an interrupt; a failure is ignored."""

    def rename(self, text: str, to: str) -> None:
        """Move a folder to a URI that does not exist. S3 copies each file."""


# Locations, as the command line has them.


_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_S3 = ("s3", "s3a")
_LOCAL = re.compile(r"file:(?://(?=/)|(?=/(?!/)))")


@dataclass(frozen=True)
class Uri:
    """The URI of a folder or file, as Hadoop takes it: without escapes."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> Uri:
        return Uri(f"{self.text.rstrip('/')}/{name}")


Location = Path | Uri


def parse_location(text: str) -> Location:
    """Parse a location: a URI with any scheme but `file`, or a local path.

    Raises:
        PipelineError: `file://` without an absolute path.
    """
    local = _LOCAL.match(text)
    if local is not None:
        return Path(text[local.end() :])
    match = _URI.match(text)
    if match is None:
        return Path(text)
    if match[1] == "file":
        raise PipelineError(
            f"{text}: after file:// comes a path from the root, as in file:///{text[match.end() :]}"
        )
    return Uri(text)


def without_hadoop(location: Location) -> Location:
    """A location that needs no Hadoop: a local folder, or one in S3.

    Raises:
        PipelineError: the location has another scheme.
    """
    if isinstance(location, Path):
        return location
    scheme, _, rest = str(location).partition("://")
    if scheme.lower() not in _S3:
        raise PipelineError(
            f"{location}: DuckDB reads folders and s3://; other schemes are for --engine spark, "
            "which needs Java and pip install 'kafka-purgatory[spark]'"
        )
    return Uri(f"s3://{rest}")


# Locations as an engine reads them: local folders as they are, URIs as listings.


def resolve_locations(
    store: Callable[[], StoreFiles], locations: Sequence[Location]
) -> list[TracePath]:
    """The paths of traces; lists all files at URIs.

    Args:
        store: connects to the store; called only if there is a URI.

    Raises:
        TraceError: a URI does not exist, or its store is unreachable.
    """
    return [
        _list_location(store, location) if isinstance(location, Uri) else location
        for location in locations
    ]


def _list_location(store: Callable[[], StoreFiles], uri: Uri) -> TracePath:
    try:
        return list_files(store(), str(uri))
    except OSError as error:
        raise TraceError(str(error)) from error


# A listing of a folder of traces, read like a local folder.
#
# A request to an object store takes tens of milliseconds. One request lists all files of a root,
# and folders are looked up in the listing; only the opening of a file is another request.


_Entries = Mapping[str, int | None]


@dataclass(frozen=True)
class ListedPath:
    """A file or folder with the methods of `pathlib.Path` that reading traces needs.

    Args:
        files: opens the files.
        folders: the entries of each folder: the size of a file, None for a folder.
        text: its URI.
    """

    files: StoreFiles = field(compare=False, repr=False)
    folders: Mapping[str, _Entries] = field(compare=False, repr=False)
    text: str

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> ListedPath:
        return ListedPath(self.files, self.folders, f"{self.text}/{name}")

    @property
    def name(self) -> str:
        return self.text.rpartition("/")[2]

    def resolve(self) -> ListedPath:
        """This path: URIs are absolute."""
        return self

    def is_dir(self) -> bool:
        return self.text in self.folders

    def is_file(self) -> bool:
        return self.size_bytes() is not None

    def exists(self) -> bool:
        return self.is_dir() or self.is_file()

    def glob(self, pattern: str) -> Iterator[ListedPath]:
        """The entries of this folder whose names match."""
        names = self.folders.get(self.text, ())
        return (self / name for name in names if fnmatchcase(name, pattern))

    def walk(self) -> Iterator[tuple[ListedPath, list[str], list[str]]]:
        """This folder and those in it, as `os.walk`: the caller may modify the list of folders."""
        entries = self.folders[self.text]
        subfolders = [name for name, size in entries.items() if size is None]
        yield self, subfolders, [name for name, size in entries.items() if size is not None]
        for name in subfolders:
            yield from (self / name).walk()

    def open(self, _mode: Literal["rb"] = "rb") -> IO[bytes]:
        """Open the file for reading bytes.

        Raises:
            OSError: the URI is no file, or can't be read.
        """
        size_bytes = self.size_bytes()
        if size_bytes is None:
            raise FileNotFoundError(f"{self.text}: there is no such file")
        return self.files.open(self.text, size_bytes)

    def read_text(self, encoding: str) -> str:
        """The content of the file."""
        with self.open() as file:
            return file.read().decode(encoding)

    def check_gzip(self) -> None:
        """Read a compressed file to its end.

        Raises:
            OSError: the file is damaged.
        """
        if self.size_bytes():
            self.files.check_gzip(self.text)

    def size_bytes(self) -> int | None:
        """The size of the file; None for a folder."""
        folder, _, name = self.text.rpartition("/")
        return self.folders.get(folder, {}).get(name)


TracePath = Path | ListedPath
"""The path of a trace, or of a file of it."""


def list_files(files: StoreFiles, text: str) -> ListedPath:
    """List all files in a folder, at any depth. O(files), some 1 ms for each.

    Raises:
        OSError: the folder does not exist, is a file, or can't be read.
    """
    status = files.status(text)
    if status is None:
        raise FileNotFoundError(f"{text}: there is no such folder; give the folder of a trace")
    if not status[1]:
        raise NotADirectoryError(f"{text}: is a file; give the folder of a trace")
    root = status[0].rstrip("/")
    folders: dict[str, dict[str, int | None]] = {root: {}}
    for file, size_bytes in files.files_below(text):
        folder, _, name = file.rpartition("/")
        folders.setdefault(folder, {})[name] = size_bytes
        while folder != root:
            folder, _, name = folder.rpartition("/")
            inner = folders.setdefault(folder, {})
            if name in inner:
                break
            inner[name] = None
    in_order = {folder: dict(sorted(entries.items())) for folder, entries in folders.items()}
    return ListedPath(files, in_order, root)
