"""Where the results of the queries go: Parquet and, if asked for, a topic for each.

Ground rules: the results of a batch go to Parquet first, then into the topic. What is there
already, of a batch that is repeated after a crash, is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from purgatory.analysis.errors import OutputError
from purgatory.live.live_jobs import LiveJobs
from purgatory.live.live_order import ORDER_COLUMNS
from purgatory.live.live_waits import WAITS_COLUMNS
from purgatory.live.outputs import ASIDE, ASIDE_COLUMNS
from purgatory.live.result_parts import Parts, split
from purgatory.live.result_topic import ResultTopic, check_result_topic

_COLUMNS = {"waits": WAITS_COLUMNS, "order": ORDER_COLUMNS}
_ASIDE = ["run_id", *ASIDE_COLUMNS]


@dataclass(frozen=True)
class ResultPlaces:
    """The places of one query's results.

    Args:
        query: its name, ``waits`` or ``order``: also that of its main table.
        parts: the Parquet of each of its tables.
        topic: the one that it writes to, or none.
    """

    query: str
    parts: Mapping[str, Parts]
    topic: ResultTopic | None

    def write(self, rows: pa.Table, batch: int) -> dict[str, pa.Table]:
        """Write a batch's results; return those by table that were not in Parquet yet.

        Raises:
            FaultError: the topic didn't take them.
        """
        tables = split(rows, self.query, list(_COLUMNS[self.query]), _ASIDE)
        new = {name: self.parts[name].write(batch, rows) for name, rows in tables.items()}
        if self.topic is not None:
            named = [(name, row) for name in tables for row in tables[name].to_pylist()]
            self.topic.write(batch, [{"table": name, **row} for name, row in named])
        return {name: tables[name] for name in tables if new[name]}

    def earlier(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield what is in Parquet already, by table, a batch at a time."""
        for name, parts in self.parts.items():
            for rows in parts.read():
                yield name, rows


def check_folders(jobs: LiveJobs) -> None:
    """Refuse results of another checkpoint, whose batches have the same numbers as ours.

    Raises:
        OutputError: saying what is there and what to do.
    """
    for folder, name in ((jobs.out, "--out"), (jobs.checkpoint, "--checkpoint")):
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{name} {folder}: is a file; name a folder")
    for query in _COLUMNS:
        began = (jobs.checkpoint / query / "metadata").exists()
        if not began and any((jobs.out / query).glob("part-*.parquet")):
            raise OutputError(
                f"--out {jobs.out}: has results, and {jobs.checkpoint} does not know of them: "
                "name the checkpoint that goes with them, or another folder"
            )


def open_places(jobs: LiveJobs) -> dict[str, ResultPlaces]:
    """Return the places of each query; a topic with results of another checkpoint is refused.

    Raises:
        OutputError: saying what is there and what to do.
    """
    return {query: _open(query, jobs) for query in _COLUMNS}


def _open(query: str, jobs: LiveJobs) -> ResultPlaces:
    parts = {name: Parts(folder) for name, folder in _folders(query, jobs.out).items()}
    topic = None
    if jobs.to_topic is not None:
        topic = ResultTopic(jobs.bootstrap_servers, f"{jobs.to_topic}.{query}", jobs.client)
        check_result_topic(topic, jobs.checkpoint / query)
    return ResultPlaces(query, parts, topic)


def _folders(query: str, out: Path) -> dict[str, Path]:
    """The folder of each table that a query has; both have rows set aside."""
    return {query: out / query, ASIDE: out / ASIDE / query}
