"""Replica lag and the ISR over time, from the table `changes` of a trace.

No job reads that table, which only the traces of this project have: the page does, of the runs that
it draws, where the trace is a folder of this machine with Parquet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.report.page import (
    Column,
    PagePart,
    collapsible,
    figure,
    row_links,
    section,
    table,
)
from purgatory.pipeline.report.plots import Figure, fault_band, line_color, panels, time_axis
from purgatory.pipeline.report.wait_sections import view_columns
from purgatory.pipeline.result_rows import Row, group_by
from purgatory.trace.change_rows import CHANGES, LOG_END, PARTITION
from purgatory.trace.trace_writer import arrow_schema

_MOST_CHANGES = 2_000_000
_COLUMNS = ("time_us", "change", "broker", "name", "partition", "number", "names", "in_sync")

_Partition = tuple[str, int]


class _Replicas:
    """The replicas of all partitions at one moment."""

    def __init__(self) -> None:
        self.lags: dict[int, dict[_Partition, int]] = {}
        """The lags of each broker's replicas by partition."""
        self.out_of_sync: Counter[int] = Counter()
        """The number of each broker's replicas that are not in the ISR."""
        self._ends: dict[_Partition, dict[int, int]] = {}
        self._leaders: dict[_Partition, int | None] = {}
        self._replicas: dict[_Partition, dict[int, bool]] = {}

    def apply(self, change: Row) -> Iterator[tuple[int, int]]:
        """Apply a change; yield brokers and the lag of their replica now. O(replicas)."""
        place = (change["name"], change["partition"])
        ends = self._ends.setdefault(place, {})
        if change["change"] == PARTITION:
            for broker, is_out in self._replicas.get(place, {}).items():
                del self.lags[broker][place]
                self.out_of_sync[broker] -= is_out
            in_sync = {int(name) for name in change["in_sync"] or ()}
            replicas = {int(name): int(name) not in in_sync for name in change["names"] or ()}
            self._leaders[place], self._replicas[place] = change["broker"], replicas
            self.out_of_sync.update(replicas)
            changed: Iterable[int] = replicas
        else:
            if change["number"] is None:
                ends.pop(change["broker"], None)
            else:
                ends[change["broker"]] = change["number"]
            replicas = self._replicas.get(place, {})
            is_leader = change["broker"] == self._leaders.get(place)
            changed = replicas if is_leader else replicas.keys() & {change["broker"]}
        leader = self._leaders.get(place)
        for broker in changed:
            # Without a leader no records are copied, so no replica is behind.
            end = ends.get(broker if leader is None else leader, 0)
            lag = max(0, end - ends.get(broker, 0))
            self.lags.setdefault(broker, {})[place] = lag
            yield broker, lag

    def of_brokers(self) -> dict[int, tuple[int, int]]:
        """The longest lag of a replica of each broker, and how many are not in the ISR."""
        return {
            broker: (max(lags.values(), default=0), self.out_of_sync[broker])
            for broker, lags in self.lags.items()
        }


def replication_rows(run: Row, width_us: int) -> list[Row]:
    """Return a row per window of time and broker: the most of the window.

    Each has `run_id`, `window_start_us`, `window_end_us`, `broker`, `replica_lag`, the records that
    its replica of some partition was behind the leader, and `out_of_sync`, the partitions that it
    is a replica of without being in their ISR. O(changes + windows x replicas).

    Returns:
        No rows where the trace has no such table.

    Raises:
        OSError, ArrowException, ValueError: it can't be read, is no table of this project's, or has
            more than two million changes.
    """
    replicas = _Replicas()
    windows: list[dict[int, tuple[int, int]]] = [{}]
    for change in _changes(Path(run["folder"]) / CHANGES):
        number = min(change["time_us"], run["duration_us"]) // width_us
        while len(windows) <= number:
            windows.append(replicas.of_brokers())
        most = windows[-1]
        for broker, lag in replicas.apply(change):
            known_lag, known_out = most.get(broker, (0, 0))
            most[broker] = max(known_lag, lag), max(known_out, replicas.out_of_sync[broker])
    while len(windows) * width_us < run["duration_us"]:
        windows.append(replicas.of_brokers())
    return [
        {
            "run_id": run["run_id"],
            "window_start_us": number * width_us,
            "window_end_us": (number + 1) * width_us,
            "broker": broker,
            "replica_lag": lag,
            "out_of_sync": out_of_sync,
        }
        for number, most in enumerate(windows)
        for broker, (lag, out_of_sync) in sorted(most.items())
    ]


def _changes(folder: Path) -> Iterator[Row]:
    """Yield the changes of partitions and of the ends of their logs, in their order."""
    files = [pq.ParquetFile(path) for path in sorted(folder.glob("*.parquet"))]
    if sum(file.metadata.num_rows for file in files) > _MOST_CHANGES:
        raise ValueError(f"it has more than {_MOST_CHANGES:,} rows")
    for file in files:
        if lacking := {*_COLUMNS} - {*file.schema_arrow.names}:
            raise ValueError(f"it has no column {min(lacking)}")
    columns = pa.schema([arrow_schema(CHANGES).field(name) for name in _COLUMNS])
    for file in files:
        for batch in file.iter_batches(columns=list(_COLUMNS)):
            # Without pyarrow.compute, whose import takes longer than this.
            table = pa.Table.from_batches([batch]).select(list(_COLUMNS))
            if table.schema != columns:
                table = table.cast(columns)
            cells = table.to_pydict()
            for number, change in enumerate(cells["change"]):
                if change in (LOG_END, PARTITION):
                    yield {name: column[number] for name, column in cells.items()}


def replication_results(runs: Sequence[Row], width_us: Callable[[Row], int]) -> list[Row]:
    """Return the rows of several runs; one with `error`, a line, for a run without them.

    Args:
        width_us: the width of a run's windows.
    """
    results: list[Row] = []
    for run in runs:
        try:
            results += replication_rows(run, width_us(run))
        except (OSError, pa.ArrowException, ValueError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            results.append({"run_id": run["run_id"], "error": reason})
    return results


def replication_section(part: PagePart, run: Row, rows: Sequence[Row]) -> str:
    """Replica lag and the ISR over time, by broker; or why they are missing."""
    if not rows or not part.plotted:
        return ""
    if "error" in rows[0]:
        text = f"The table {CHANGES} can't be read: {rows[0]['error']}"
        return section("Replica lag and ISR", f'<p class="note">{escape(text)}</p>')
    anchored = part.anchored("replication", rows)
    plot = figure(
        f"replication-{part.number}",
        replication_over_time(anchored, run["duration_us"], run["faults"]),
        f"Replica lag and ISR over time in {run['run_id']}",
        "The records that a broker's replica of some partition was behind its leader, and the "
        "partitions that the broker is a replica of without being in their ISR: the most of each "
        "window.",
        where="table replication in CSV",
    )
    figures = collapsible("In figures", _most_table(run, anchored))
    links = row_links(part, "replication", rows)
    return section("Replica lag and ISR", plot, figures, links, anchor=part.anchor("replication"))


def _most_table(run: Row, rows: Sequence[Row]) -> str:
    columns: list[Column] = [
        ("broker", True, lambda row: str(row["broker"])),
        ("highest lag", True, lambda row: f"{row['replica_lag']:,}"),
        ("at, s", True, lambda row: f"{row['window_start_us'] / 1e6:,.3f}"),
        *view_columns(run, "window_start_us"),
    ]
    most = [_most(of_broker, "replica_lag") for of_broker in group_by(rows, "broker").values()]
    return table("Replica lag, in records.", columns, most)


def _most(rows: Sequence[Row], column: str) -> Row:
    return max(rows, key=lambda row: row[column])


def replication_over_time(rows: Sequence[Row], end_us: int, faults: Sequence[Row] = ()) -> Figure:
    """The lag of each broker's replicas over time, and how many are not in the ISR.

    Args:
        rows: those of `replication_rows`; at least one.
        end_us: the end of the run, in microseconds.
        faults: marked over both panels.
    """
    columns = {
        "replica_lag": "replica lag: records behind the leader",
        "out_of_sync": "partitions without the broker in the ISR",
    }
    layout = panels(list(columns.values()))
    layout["shapes"] = [fault_band(fault, end_us / 1e6) for fault in faults]
    layout["xaxis"] |= time_axis(end_us)
    data: list[Figure] = []
    for axis, column in (("y", "replica_lag"), ("y2", "out_of_sync")):
        for place, (broker, of_broker) in enumerate(group_by(rows, "broker").items()):
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": f"broker {broker}",
                    "legendgroup": f"broker {broker}",
                    "showlegend": axis == "y",
                    "meta": {
                        "broker": str(broker),
                        "row": _most(of_broker, "replica_lag").get("anchor", ""),
                    },
                    "x": [row["window_start_us"] / 1e6 for row in of_broker],
                    "y": [row[column] for row in of_broker],
                    "line": {"shape": "hv", "width": 1.8, "color": line_color(place)},
                    "hovertemplate": f"broker {broker}, %{{x}} s: %{{y:,}}<extra></extra>",
                    "yaxis": axis,
                }
            )
    return {"data": data, "layout": layout}
