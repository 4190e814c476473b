"""A stream's micro-batches in the order of Spark's calls, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from purgatory.source.options import OffsetsDocument
from purgatory.source.stream_reader import PurgatoryStreamReader
from tests.spark.pipeline.source.topics import options

Row = Mapping[str, Any]


class MicroBatches:
    """Plans batches from a checkpoint, and reads each of their ranges in a copy of the reader.

    Args:
        servers: of the cluster.
        given: options, as of `topics.options`.
    """

    def __init__(self, servers: str, **given: Any) -> None:
        self._options = options(servers, given)
        self._reader = PurgatoryStreamReader(self._options)
        self._planned: OffsetsDocument | None = None
        self.position = self._reader.initialOffset()
        self.batches: list[list[Row]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._reader.stop()

    @property
    def rows(self) -> list[Row]:
        """All rows of the committed batches, in their order."""
        return [row for batch in self.batches for row in batch]

    def restart(self) -> None:
        """Continue as another process: with the checkpoint alone."""
        self._reader.stop()
        self._reader = PurgatoryStreamReader(self._options)

    def plan(self, limit: int | None = None) -> OffsetsDocument | None:
        """Write the end of the next batch into the checkpoint, and return it; None: no news."""
        read_limit: ReadLimit = ReadAllAvailable() if limit is None else ReadMaxRows(limit)
        end = self._reader.latestOffset(self.position, read_limit)
        self._planned = None if end == self.position else end
        return self._planned

    def read(self) -> list[Row]:
        """Read the planned batch, without committing it."""
        assert self._planned is not None
        ranges = self._reader.partitions(self.position, self._planned)
        tasks = [pickle.loads(pickle.dumps((self._reader, one))) for one in ranges]
        return [row for task, one in tasks for batch in task.read(one) for row in batch.to_pylist()]

    def commit(self) -> None:
        """Read the planned batch and commit it."""
        rows = self.read()
        assert self._planned is not None
        self.batches.append(rows)
        self.position, self._planned = self._planned, None

    def run(self, limit: int | None = None) -> None:
        """Plan, read and commit until there is no news."""
        while self.plan(limit) is not None:
            self.commit()
