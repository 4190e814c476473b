"""Places as a session reaches them: folders of this machine as they are, URIs with their files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from purgatory.analysis.errors import TraceError
from purgatory.analysis.uris.hadoop_files import HadoopFiles
from purgatory.analysis.uris.listed_path import TracePath, listed
from purgatory.analysis.uris.places import Place, TableName, Uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def reached(session: SparkSession, places: Sequence[Place]) -> list[TracePath]:
    """Places where traces are; lists all files at URIs.

    Raises:
        TraceError: nothing is there, or nothing can be reached there.
    """
    found: list[TracePath] = []
    for one in places:
        if isinstance(one, TableName):
            raise TraceError(f"{one}: is a table; give tables alone, or folders and URIs alone")
        found.append(_listed(session, one) if isinstance(one, Uri) else one)
    return found


def _listed(session: SparkSession, uri: Uri) -> TracePath:
    try:
        return listed(HadoopFiles(session), str(uri))
    except OSError as error:
        raise TraceError(str(error)) from error
