"""A folder or a file of results at a URI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from purgatory.analysis.catalog.task_output import TaskOutput

if TYPE_CHECKING:
    from purgatory.analysis.uris.store_files import StoreFiles


class UriFolder:
    """A folder or file of results at a URI, with those methods of `Path` that writing needs."""

    def __init__(self, files: StoreFiles, text: str) -> None:
        self._files, self._text = files, text

    def __str__(self) -> str:
        return self._text

    def __truediv__(self, name: str) -> UriFolder:
        return UriFolder(self._files, f"{self._text}/{name}")

    def mkdir(self) -> None:
        """Make it."""
        self._files.make_folder(self._text)

    def write_bytes(self, content: bytes) -> None:
        """Make it a file."""
        self._files.write(self._text, content)

    def write_text(self, content: str, encoding: str) -> None:
        """Make it a file of text."""
        self.write_bytes(content.encode(encoding))


OutputFolder = Path | UriFolder | TaskOutput
"""Where results are written into."""


def written_path(place: Path | UriFolder) -> str:
    """A place as Spark takes it to write there: local files have a scheme too."""
    return f"file:{place}" if isinstance(place, Path) else str(place)
