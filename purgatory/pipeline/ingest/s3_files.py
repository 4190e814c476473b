"""The files of S3, by Arrow: without Java, and with the credentials of AWS's own variables.

Ground rules: folders are prefixes of the names of objects, so none is made; each operation is a
request or some, tried three times at most, and raises StoreError with one line where it fails.
Several threads may share one object, which is Arrow's own.
"""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, TypeVar, cast
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.ingest.stores import StoreError

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem


T = TypeVar("T")

_CHUNK_BYTES = 1 << 20
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


class S3Files:
    """`StoreFiles` for URIs `s3://BUCKET/KEY`.

    Raises:
        PipelineError: Arrow came without S3, or the variable of the endpoint has no address.
    """

    def __init__(self) -> None:
        self._files = _connect()

    def status(self, text: str) -> tuple[str, bool] | None:
        """See `StoreFiles`; a missing bucket is an error."""
        key = _key(text)
        bucket = key.partition("/")[0]
        with _store_errors(text):
            if not bucket:
                raise StoreError("names no bucket")
            kind = self._files.get_file_info(key).type
            if kind == fs.FileType.NotFound:
                if self._files.get_file_info(bucket).type == fs.FileType.NotFound:
                    raise StoreError(f"there is no bucket {bucket!r}")
                return None
        return text.rstrip("/"), kind == fs.FileType.Directory

    def files_below(self, text: str) -> Iterator[tuple[str, int]]:
        """See `StoreFiles`: a request for each 1,000 files."""
        selected = fs.FileSelector(_key(text), recursive=True)
        with _store_errors(text):
            entries = _interruptible(lambda: self._files.get_file_info(selected))
        for entry in entries:
            if entry.type == fs.FileType.File:
                yield f"s3://{entry.path}", entry.size

    def names_in(self, text: str) -> list[str]:
        """See `StoreFiles`."""
        with _store_errors(text):
            entries = self._files.get_file_info(fs.FileSelector(_key(text)))
        return [entry.base_name for entry in entries]

    def open(self, text: str, _size_bytes: int) -> IO[bytes]:
        """See `StoreFiles`. Errors of reading are OSErrors of Arrow."""
        with _store_errors(text):
            return cast(IO[bytes], self._files.open_input_file(_key(text)))

    def check_gzip(self, text: str) -> None:
        """See `StoreFiles`."""
        with (
            self.open(text, 0) as raw,
            gzip.open(raw) as file,
        ):
            while file.read(_CHUNK_BYTES):
                pass

    def write(self, text: str, content: bytes) -> None:
        """See `StoreFiles`."""
        with _store_errors(text), self._files.open_output_stream(_key(text)) as stream:
            stream.write(content)

    def delete(self, text: str) -> None:
        """See `StoreFiles`. A folder that becomes empty is left as an empty object."""
        with _store_errors(text):
            kind = self._files.get_file_info(_key(text)).type
            if kind == fs.FileType.Directory:
                self._files.delete_dir(_key(text))
            elif kind == fs.FileType.File:
                self._files.delete_file(_key(text))

    def delete_at_the_end(self, text: str) -> None:
        """See `StoreFiles`."""
        with suppress(StoreError):
            self.delete(text)

    def rename(self, text: str, to: str) -> None:
        """See `StoreFiles`: copies all files, then deletes the old ones."""
        for file, _ in list(self.files_below(text)):
            with _store_errors(file):
                self._files.copy_file(_key(file), _key(to + file.removeprefix(text)))
        self.delete(text)


def _connect() -> S3FileSystem:
    if not hasattr(fs, "S3FileSystem"):
        raise PipelineError("s3://: this pyarrow was built without S3; take --engine spark")
    for name in _ENDPOINTS:
        if endpoint := os.environ.get(name):
            address = urlsplit(endpoint)
            if address.scheme not in ("http", "https") or not address.netloc:
                raise PipelineError(
                    f"{name} is {endpoint!r}: must be http://HOST:PORT, or https://"
                )
            return fs.S3FileSystem(endpoint_override=address.netloc, scheme=address.scheme)
    return fs.S3FileSystem()


def _key(text: str) -> str:
    return text.partition("://")[2].rstrip("/")


@contextmanager
def _store_errors(text: str) -> Iterator[None]:
    """Turn Arrow's errors about a URI into one line.

    Raises:
        StoreError: with the line.
    """
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise StoreError(f"{text}: {reason}") from error


def _interruptible(call: Callable[[], T]) -> T:
    """The result of a long call, made in a thread of its own, so that Ctrl-C ends the wait.

    Python does not wait for that thread at exit.
    """
    given: Future[T] = Future()

    def run() -> None:
        try:
            given.set_result(call())
        except BaseException as error:
            given.set_exception(error)

    threading.Thread(target=run, name="s3-listing", daemon=True).start()
    return given.result()
