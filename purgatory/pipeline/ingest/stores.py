"""Where traces are and results go: folders of this machine, and URIs, by whichever library.

A store is what is asked for the files at a URI; a listing of it is read as a folder is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Literal, Protocol

from purgatory.pipeline.errors import PipelineError, TraceError


class StoreError(OSError):
    """A store did not do what it was asked for; the message says which URI, and why."""


class StoreFiles(Protocol):
    """The files of stores, by their URIs; each method raises StoreError where it fails.

    Several threads may share one object.
    """

    def status(self, text: str) -> tuple[str, bool] | None:
        """The whole URI of a place and whether it is a folder; None: nothing is there."""

    def files_below(self, text: str) -> Iterable[tuple[str, int]]:
        """All files in a folder at any depth: the URI and the bytes of each."""

    def names_in(self, text: str) -> list[str]:
        """The names of the files and folders right in a folder."""

    def open(self, text: str, size_bytes: int) -> IO[bytes]:
        """A file of a known size, to be read from anywhere."""

    def check_gzip(self, text: str) -> None:
        """Read a compressed file through, and find it whole. O(bytes)."""

    def write(self, text: str, content: bytes) -> None:
        """Make a file with this content, and the folders that it needs."""

    def make_folder(self, text: str) -> None:
        """Make a folder, and those that it is in."""

    def delete(self, text: str) -> None:
        """Remove a file, or a folder with all that it holds; nothing there is as well."""

    def delete_at_the_end(self, text: str) -> None:
        """Remove what was in the making, whatever was raised before; a failure says nothing."""

    def rename(self, text: str, to: str) -> None:
        """Give a folder another place, where nothing is yet. S3 copies each file to do it."""


# Places, as they are written on the command line.


_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_S3 = ("s3", "s3a")
_LOCAL = re.compile(r"file:(?://(?=/)|(?=/(?!/)))")


@dataclass(frozen=True)
class Uri:
    """A folder or file by its URI, as Hadoop takes it: no character in it is escaped."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> Uri:
        return Uri(f"{self.text.rstrip('/')}/{name}")


Location = Path | Uri


def parse_location(text: str) -> Location:
    """What a text names: a URI with any scheme but `file`, or a folder of this machine.

    Raises:
        PipelineError: `file://` with something else than a path from the root.
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
    """A place that this process reaches by itself: a folder of this machine, or one of S3.

    Raises:
        PipelineError: it is something else.
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


# Places as an engine reaches them: folders of this machine as they are, URIs with their files.


def resolve_locations(
    store: Callable[[], StoreFiles], locations: Sequence[Location]
) -> list[TracePath]:
    """Places where traces are; lists all files at URIs.

    Args:
        store: gives what reaches URIs; called only where there is one.
        locations: folders and URIs.

    Raises:
        TraceError: nothing is there, or nothing can be reached there.
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


# A folder of traces that one listing told of, read as one of this machine's is.
#
# An object store answers each question in tens of milliseconds; so it is asked once for all files
# of a root, and what there is in a folder is looked up here. Only opening a file asks again.


_Entries = Mapping[str, int | None]


class ListedPath:
    """A file or a folder; has those methods of `pathlib.Path` that reading traces needs.

    Args:
        files: opens the files.
        folders: what is in each folder: the size of a file, None for a folder.
        text: its URI.
    """

    def __init__(self, files: StoreFiles, folders: Mapping[str, _Entries], text: str) -> None:
        self._files, self._folders, self._text = files, folders, text

    def __str__(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ListedPath) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __truediv__(self, name: str) -> ListedPath:
        return ListedPath(self._files, self._folders, f"{self._text}/{name}")

    @property
    def name(self) -> str:
        return self._text.rpartition("/")[2]

    def resolve(self) -> ListedPath:
        """Itself: a listing has whole URIs."""
        return self

    def is_dir(self) -> bool:
        return self._text in self._folders

    def is_file(self) -> bool:
        return self.size_bytes() is not None

    def exists(self) -> bool:
        return self.is_dir() or self.is_file()

    def glob(self, pattern: str) -> Iterator[ListedPath]:
        """What is right in this folder under a name that matches."""
        names = self._folders.get(self._text, ())
        return (self / name for name in names if fnmatchcase(name, pattern))

    def walk(self) -> Iterator[tuple[ListedPath, list[str], list[str]]]:
        """This folder and those in it, as `os.walk` gives them: the caller may cut the list."""
        entries = self._folders[self._text]
        subfolders = [name for name, size in entries.items() if size is None]
        yield self, subfolders, [name for name, size in entries.items() if size is not None]
        for name in subfolders:
            yield from (self / name).walk()

    def open(self, _mode: Literal["rb"] = "rb") -> IO[bytes]:
        """Open it to read bytes.

        Raises:
            OSError: it is no file, or can't be read.
        """
        size_bytes = self.size_bytes()
        if size_bytes is None:
            raise FileNotFoundError(f"{self._text}: there is no such file")
        return self._files.open(self._text, size_bytes)

    def read_text(self, encoding: str) -> str:
        """All of it."""
        with self.open() as file:
            return file.read().decode(encoding)

    def check_gzip(self) -> None:
        """Read a compressed file through.

        Raises:
            OSError: it is not whole.
        """
        if self.size_bytes():
            self._files.check_gzip(self._text)

    def size_bytes(self) -> int | None:
        """How long it is; None: it is no file."""
        folder, _, name = self._text.rpartition("/")
        return self._folders.get(folder, {}).get(name)


TracePath = Path | ListedPath
"""Where a trace is, or a file of it."""


def list_files(files: StoreFiles, text: str) -> ListedPath:
    """List all files in a folder, at any depth. O(files), some 1 ms for each.

    Raises:
        OSError: it is not there, is a file, or can't be read.
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
