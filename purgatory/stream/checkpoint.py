"""The query's checkpoint beside Spark's own: its settings, and the state of each batch.

* The settings decide what stored offsets and windows mean. A query with others is refused.
* The state of a batch is a Parquet file of the open windows, with the watermark in its metadata.
  The file is written before the results of the batch: when Spark repeats the batch after a crash,
  the watermark is the same again, and so are the results, however many records have come since.
* The states of the last two batches are kept, since the last one may be repeated.
* The waits of a batch are a Parquet file, too, which stays until no open window of occupancy, of
  before the last batch, can have one of them.

A checkpoint has one writer, the query's thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.kafka.topic_partition import TopicPartition
from purgatory.pipeline.errors import OutputError
from purgatory.settings.typed_duration import duration_of
from purgatory.stream.watermark import Watermark
from purgatory.stream.windowed_occupancy import PARKED
from purgatory.stream.windowed_waits import State

QUERY = "waits"
"""The name of the query, of its main table, and of its folder in `--checkpoint`."""

_UNFINISHED = ".part"
_ANEW = "name another --out (and --checkpoint and --to-topic, if given) to begin anew"


@dataclass(frozen=True)
class Settings:
    """The settings that a checkpoint can't be continued without.

    Args:
        window_us: the length of a window.
        watermark_delay_us: how late a row may be.
        longest_wait_us: the longest wait that occupancy counts whole.
        topic: the topic of operations.
        topic_id: its id; None from brokers without ids.
    """

    window_us: int
    watermark_delay_us: int
    longest_wait_us: int
    topic: str
    topic_id: str | None = None

    def difference(self, other: Settings) -> str | None:
        """Return what differs from the settings of a checkpoint, and what to do; None: nothing."""
        for option, us, stored_us in (
            ("--window", self.window_us, other.window_us),
            ("--watermark", self.watermark_delay_us, other.watermark_delay_us),
            ("--longest-wait", self.longest_wait_us, other.longest_wait_us),
        ):
            if us != stored_us:
                given, stored = duration_of(us), duration_of(stored_us)
                return (
                    f"has windows of {option} {stored}, not {given}: give {option} {stored}, or "
                    f"{_ANEW}"
                )
        if self.topic != other.topic:
            return (
                f"has windows of topic {other.topic}, not {self.topic}: give --prefix "
                f"{other.topic.removesuffix('.operations')}, or {_ANEW}"
            )
        if None not in (self.topic_id, other.topic_id) and self.topic_id != other.topic_id:
            return (
                f"has windows of another topic {self.topic}: it was deleted and created again, or "
                f"--bootstrap is another cluster; {_ANEW}"
            )
        return None


class Checkpoint:
    """The files of one query.

    Args:
        folder: of the query's checkpoint; made with its first file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._settings = folder / "settings.json"
        self._states = folder / "windows"
        self._parked = folder / "parked"

    def check_folder(self, out: Path) -> None:
        """Refuse a folder with results of another checkpoint: its batches have the same numbers.

        Raises:
            OutputError: with what the folder holds, and what to do.
        """
        if not self.batches() and any((out / QUERY).glob("part-*.parquet")):
            raise OutputError(
                f"--out {out}: has results, and {self.folder} does not know of them: name the "
                "checkpoint that goes with them, or another folder"
            )

    def check_topic(self, topic: str, last_batch: int) -> None:
        """Refuse a topic with results of another checkpoint: new ones would pass for repeated ones.

        Raises:
            OutputError: with what the topic holds, and what to do.
        """
        if last_batch > max(self.batches(), default=-1):
            raise OutputError(
                f"--to-topic {topic}: has results up to batch {last_batch}, and {self.folder} does "
                "not know of them: name the checkpoint that goes with them, or another topic"
            )

    def batches(self) -> list[int]:
        """Return the numbers of the batches that were begun, as far as Spark keeps them."""
        files = self.folder.glob("offsets/*")
        return sorted(int(path.name) for path in files if path.name.isdecimal())

    def check(self, settings: Settings) -> None:
        """Keep the settings of a new query; refuse those that a begun one can't continue with.

        Raises:
            OutputError: with what the checkpoint has, and what to do.
        """
        if not self.batches():
            self.folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(asdict(settings), indent=2)
            write_whole(self._settings, lambda path: path.write_text(text, "utf-8"))
            return
        problem: str | None = f"is of another version of this command: {_ANEW}"
        if self._settings.exists():
            stored = json.loads(self._settings.read_text("utf-8"))
            if stored.keys() == asdict(settings).keys():
                problem = settings.difference(Settings(**stored))
        if problem is not None:
            raise OutputError(f"--checkpoint {self.folder}: {problem}")

    def state_before(self, batch: int) -> State:
        """Return the state that a batch begins with.

        Raises:
            OutputError: the checkpoint lacks it.
        """
        if batch == 0:
            return State()
        state = self.state_after(batch - 1)
        if state is None:
            raise OutputError(
                f"--checkpoint {self.folder}: lacks the windows of batch {batch - 1}: restore the "
                f"whole folder, or {_ANEW}"
            )
        return state

    def state_after(self, batch: int) -> State | None:
        """Return the state that a batch ended with; None: it was interrupted before."""
        path = self._path(batch)
        if not path.exists():
            return None
        windows = pq.read_table(path)
        us, newest = json.loads((windows.schema.metadata or {})[b"watermark"])
        places = ((TopicPartition(topic, number), time_us) for topic, number, time_us in newest)
        return State(Watermark(us, dict(places)), windows.replace_schema_metadata(None))

    def keep_state(self, batch: int, state: State) -> None:
        """Keep the state that a batch ends with, and drop those of two batches before and more."""
        self._states.mkdir(exist_ok=True)
        newest = [[*place, time_us] for place, time_us in sorted(state.watermark.newest_us.items())]
        watermark = json.dumps([state.watermark.us, newest])
        table: pa.Table = state.windows.replace_schema_metadata({"watermark": watermark})
        write_whole(self._path(batch), lambda path: pq.write_table(table, path, compression="zstd"))
        for path in self._states.glob("batch-*.parquet"):
            if path.name < self._path(batch - 1).name:
                path.unlink()

    def keep_parked(self, batch: int, parked: pa.Table) -> None:
        """Keep the waits of a batch, with the columns of `PARKED`, in the order of their ends."""
        if not len(parked):
            return
        self._parked.mkdir(exist_ok=True)
        newest = {"newest_us": str(parked["end_us"][-1])}
        table = parked.replace_schema_metadata(newest)
        # Groups of rows that end at about the same time: few of them are in a window.
        write_whole(
            self._parked / f"batch-{batch:09}.parquet",
            lambda path: pq.write_table(table, path, compression="zstd", row_group_size=50_000),
        )

    def parked(self, from_us: int, until_us: int) -> pa.Table:
        """Return the waits of all batches that are in a span of time. O(rows of the result)."""
        of_batches = [
            pq.read_table(path, filters=[("start_us", "<", until_us), ("end_us", ">", from_us)])
            for path in self._parked.glob("batch-*.parquet")
        ]
        return pa.concat_tables([PARKED.empty_table(), *of_batches])

    def drop_parked(self, until_us: int) -> None:
        """Drop the waits of each batch whose last one ended by a time."""
        for path in self._parked.glob("batch-*.parquet"):
            if int(pq.read_schema(path).metadata[b"newest_us"]) <= until_us:
                path.unlink()

    def _path(self, batch: int) -> Path:
        return self._states / f"batch-{batch:09}.parquet"


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let a file appear whole, and stay: also where the machine stops in the middle.

    Args:
        path: of the file; its folder exists.
        write: writes what the file has to the path that it is given.
    """
    # Readers of Parquet ignore names that begin with a dot.
    unfinished = path.with_name(f".{path.name}{_UNFINISHED}")
    write(unfinished)
    with unfinished.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(unfinished, path)
