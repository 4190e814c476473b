"""The file systems of a Spark session: Hadoop's `FileSystem` by URIs.

Ground rules: each operation is one or more calls into Spark's Java process, and raises StoreError
with one line. Thread-safe: each thread has its own connection.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from purgatory.pipeline.engines.spark.connect import is_connect
from purgatory.pipeline.engines.spark.job_threads import run_in_thread
from purgatory.pipeline.errors import SessionError
from purgatory.pipeline.ingest.stores import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_BLOCK_BYTES = 1 << 16
_PACKAGES = {"s3a": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}


class HadoopFiles:
    """The file systems that a session reaches, with the session's settings for them.

    Args:
        session: not of Spark Connect, which has no access to its file systems.

    Raises:
        SessionError: it is a session of Spark Connect.
    """

    def __init__(self, session: SparkSession) -> None:
        if is_connect(session):
            raise SessionError(
                "a Spark Connect server lists and moves no files for its clients, so it takes no "
                "URIs: give a folder that both see under one path"
            )
        self._jvm: Any = session._jvm
        self._settings: Any = session._jsparkSession.sessionState().newHadoopConf()

    def status(self, text: str) -> tuple[str, bool] | None:
        """See `StoreFiles`."""
        with self._file_system(text) as (files, path):
            if not files.exists(path):
                return None
            status = files.getFileStatus(path)
            return status.getPath().toString(), status.isDirectory()

    def files_below(self, text: str) -> Iterator[tuple[str, int]]:
        """See `StoreFiles`."""
        with self._file_system(text) as (files, path):
            entries = files.listFiles(path, True)
            while entries.hasNext():
                entry = entries.next()
                yield entry.getPath().toString(), entry.getLen()

    def names_in(self, text: str) -> list[str]:
        """See `StoreFiles`."""
        with self._file_system(text) as (files, path):
            return [entry.getPath().getName() for entry in files.listStatus(path)]

    def open(self, text: str, size_bytes: int) -> IO[bytes]:
        """See `StoreFiles`."""
        with self._file_system(text) as (files, path):
            stream = _Stream(self, text, files.open(path), size_bytes)
        return io.BufferedReader(stream, _BLOCK_BYTES)

    def check_gzip(self, text: str) -> None:
        """See `StoreFiles`; Java reads the file."""
        with self._file_system(text) as (files, path):
            stream = files.open(path)
            try:
                whole = self._jvm.java.util.zip.GZIPInputStream(stream, _BLOCK_BYTES)
                whole.transferTo(self._jvm.java.io.OutputStream.nullOutputStream())
            finally:
                stream.close()

    def write(self, text: str, content: bytes) -> None:
        """See `StoreFiles`."""
        with self._file_system(text) as (files, path):
            stream = files.create(path, False)
            stream.write(bytearray(content))
            stream.close()

    def delete(self, text: str) -> None:
        """See `StoreFiles`."""
        with self._file_system(text) as (files, path):
            if not files.delete(path, True):
                self._require(not files.exists(path), f"{text}: can't be removed")

    def delete_at_the_end(self, text: str) -> None:
        """See `StoreFiles`."""
        # After an interrupt, the connection of this thread is unusable.
        run_in_thread(lambda: self.delete(text))

    def rename(self, text: str, to: str) -> None:
        """See `StoreFiles`."""
        with self._file_system(text) as (files, path):
            done = files.rename(path, self._jvm.org.apache.hadoop.fs.Path(to))
            self._require(done, f"{text}: can't be moved to {to}")

    @staticmethod
    def _require(done: bool, otherwise: str) -> None:
        if not done:
            raise StoreError(otherwise)

    @contextmanager
    def _file_system(self, text: str) -> Iterator[tuple[Any, Any]]:
        """The file system of a URI and its path; errors of Java become StoreError."""
        with self.java_errors(text):
            path = self._jvm.org.apache.hadoop.fs.Path(text)
            yield path.getFileSystem(self._settings), path

    @contextmanager
    def java_errors(self, text: str) -> Iterator[None]:
        """Turn errors of Java into StoreError with one line."""
        try:
            yield
        except (Py4JError, PySparkException) as error:
            raise StoreError(f"{text}: {self._reason(text, error)}") from error

    def _reason(self, text: str, error: Exception) -> str:
        java = getattr(error, "java_exception", None)
        message = str(error if java is None else java.toString())
        lines = message.splitlines() or [type(error).__name__]
        reason = lines[0].partition("; For more details see")[0]
        # The inner one of nested errors is more specific.
        while ": " in reason and _is_class(reason.split(": ")[1]):
            reason = reason.partition(": ")[2]
        name, colon, rest = reason.partition(": ")
        if _is_class(name):
            reason = name.rpartition(".")[2] + colon + rest
        if text.startswith("s3://") and "No FileSystem for scheme" in reason:
            reason += "; Spark reads it as s3a://, and --engine duckdb as it is"
        package = _PACKAGES.get(text.partition(":")[0])
        if package is not None and "ClassNotFoundException" in reason:
            version = self._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
            reason += (
                "; Spark needs its jar: set PYSPARK_SUBMIT_ARGS='--packages "
                f"org.apache.hadoop:{package}:{version} pyspark-shell'"
            )
        return reason


def _is_class(name: str) -> bool:
    """Whether a name is that of a Java exception."""
    return "." in name and name.replace(".", "").isalnum() and name.endswith(("Exception", "Error"))


class _Stream(io.RawIOBase):
    """A file of Hadoop as a Python file."""

    def __init__(self, files: HadoopFiles, text: str, stream: Any, size_bytes: int) -> None:
        self._files, self._text = files, text
        self._stream, self._size_bytes, self._at = stream, size_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        if start + offset < 0:
            raise ValueError(f"there is nothing at {start + offset}")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._size_bytes - self._at)
        if size <= 0:
            return 0
        with self._files.java_errors(self._text):
            self._stream.seek(self._at)
            content = self._stream.readNBytes(size)
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

    def close(self) -> None:
        if not self.closed:
            super().close()
            with self._files.java_errors(self._text):
                self._stream.close()
