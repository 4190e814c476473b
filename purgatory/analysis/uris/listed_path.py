"""A folder of traces that one listing told of, read as one of this machine's is.

An object store answers each question in tens of milliseconds; so it is asked once for all files of
a root, and what there is in a folder is looked up here. Only opening a file asks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from purgatory.analysis.uris.store_files import StoreFiles

_Entries = Mapping[str, int | None]


class ListedPath:
    """A file or a folder; has those methods of `pathlib.Path` that reading traces needs.

    Args:
        files: opens the files.
        folders: what is in each folder: the size of a file, None for a folder.
        text: its URI.
    """

    def __init__(
        self, files: StoreFiles | None, folders: Mapping[str, _Entries], text: str
    ) -> None:
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
        assert self._files is not None, "what is listed can be opened"
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
        if self._files is not None and self.size_bytes():
            self._files.check_gzip(self._text)

    def size_bytes(self) -> int | None:
        """How long it is; None: it is no file."""
        folder, _, name = self._text.rpartition("/")
        return self._folders.get(folder, {}).get(name)


class CatalogTable(ListedPath):
    """A table of a catalog in the place of a file: a path at which there is nothing to list."""

    def __init__(self, name: str) -> None:
        super().__init__(None, {}, name)


TracePath = Path | ListedPath
"""Where a trace is, or a file of it."""


def listed(files: StoreFiles, text: str) -> ListedPath:
    """List all files in a folder, at any depth. O(files), some 1 ms for each.

    Raises:
        OSError: it is not there, is a file, or can't be read.
    """
    found = files.status(text)
    if found is None:
        raise FileNotFoundError(f"{text}: there is no such folder; give the folder of a trace")
    if not found[1]:
        raise NotADirectoryError(f"{text}: is a file; give the folder of a trace")
    root = found[0].rstrip("/")
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
