"""Where traces are and results go: folders of this machine, URIs, or tables of a catalog."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from purgatory.analysis.errors import PipelineError

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


@dataclass(frozen=True)
class TableName:
    """A table of a catalog of Spark, or a database; as `TABLE=NAME`, a table in place of one."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> TableName:
        return TableName(f"{self.text}.{name}")


Place = Path | Uri | TableName


def place(text: str) -> Path | Uri:
    """What a text names: a URI with any scheme but `file`, or a folder of this machine.

    Raises:
        PipelineError: `file://` with something else than a path from the root.
    """
    local = _LOCAL.match(text)
    if local is not None:
        return Path(text[local.end() :])
    found = _URI.match(text)
    if found is None:
        return Path(text)
    if found[1] == "file":
        raise PipelineError(
            f"{text}: after file:// comes a path from the root, as in file:///{text[found.end() :]}"
        )
    return Uri(text)


def without_spark(one: Place) -> Path | Uri:
    """A place that this process reaches by itself: a folder of this machine, or one of S3.

    Raises:
        PipelineError: it is something else.
    """
    if isinstance(one, Path):
        return one
    scheme, _, rest = str(one).partition("://")
    if isinstance(one, TableName) or scheme.lower() not in _S3:
        raise PipelineError(
            f"{one}: DuckDB reads folders and s3://; a catalog's tables and other schemes are for "
            "--engine spark, which needs Java and pip install 'kafka-purgatory[spark]'"
        )
    return Uri(f"s3://{rest}")


def require_one_file(partition_by: str | None) -> None:
    """Refuse what DuckDB has not.

    Raises:
        PipelineError: tables of results shall be parted by a column.
    """
    if partition_by is not None:
        raise PipelineError("--partition-by: DuckDB writes one file; take --engine spark")
