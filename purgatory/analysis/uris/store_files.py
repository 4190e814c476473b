"""What reading traces and writing results ask of a store, whichever library reaches it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Protocol


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
