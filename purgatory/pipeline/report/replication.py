"""Replica lag and the ISR over time, from the table `changes` of a trace.

No job reads that table, which only the traces of this project have: the page does, of the runs that
it draws, where the trace is a folder of this machine with Parquet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from purgatory.pipeline.report.page import PagePart, figure, row_links, section
from purgatory.pipeline.report.plots import Figure, axis_title, fault_band, line_color, panels
from purgatory.pipeline.result_rows import Row, group_by
from purgatory.trace.change_rows import CHANGES, LOG_END, PARTITION

_MOST_CHANGES = 2_000_000
_COLUMNS = ("time_us", "change", "broker", "name", "partition", "number", "names", "in_sync")

_Partition = tuple[str, int]


class _Replicas:
    """The replicas of all partitions at one moment."""

    def __init__(self) -> None:
        self.lags: dict[tuple[_Partition, int], int] = {}
        self.out_of_sync: dict[tuple[_Partition, int], bool] = {}
        self._ends: dict[_Partition, dict[int, int]] = {}
        self._leaders: dict[_Partition, int] = {}
        self._replicas: dict[_Partition, list[int]] = {}

    def apply(self, change: Row) -> Iterator[int]:
        """Apply a change; yield the brokers whose replica it concerns. O(replicas)."""
        place = (change["name"], change["partition"])
        if change["change"] == PARTITION:
            self._leaders[place] = change["broker"]
            self._replicas[place] = [int(name) for name in change["names"] or ()]
            in_sync = {int(name) for name in change["in_sync"] or ()}
            for key in [key for key in self.lags if key[0] == place]:
                del self.lags[key], self.out_of_sync[key]
            for broker in self._replicas[place]:
                self.out_of_sync[place, broker] = broker not in in_sync
            changed = self._replicas[place]
        else:
            ends = self._ends.setdefault(place, {})
            if change["number"] is None:
                ends.pop(change["broker"], None)
            else:
                ends[change["broker"]] = change["number"]
            is_leader = change["broker"] == self._leaders.get(place)
            changed = self._replicas.get(place, []) if is_leader else [change["broker"]]
        ends, leader = self._ends.get(place, {}), self._leaders.get(place)
        for broker in changed:
            if broker in self._replicas.get(place, ()):
                # Without a leader nothing is copied: then no replica is behind.
                end = ends.get(broker, 0) if leader is None else ends.get(leader, 0)
                self.lags[place, broker] = max(0, end - ends.get(broker, 0))
                yield broker

    def of_broker(self, broker: int) -> tuple[int, int]:
        """The greatest lag of a broker's replicas, and how many of them are not in the ISR."""
        lag = max((lag for (_, one), lag in self.lags.items() if one == broker), default=0)
        return lag, sum(out for (_, one), out in self.out_of_sync.items() if one == broker)


def replication_rows(run: Row, width_us: int) -> list[Row]:
    """Return a row per window of time and broker: the most of the window.

    Each has `run_id`, `window_start_us`, `window_end_us`, `broker`, `replica_lag`, the records that
    its replica of some partition was behind the leader, and `out_of_sync`, the partitions that it
    is a replica of without being in their ISR. O(changes x replicas).

    Returns:
        No rows where the trace has no such table, or more than two million changes.
    """
    try:
        changes = _changes(Path(run["folder"]) / CHANGES)
    except (OSError, pa.ArrowException):
        return []
    replicas, most = _Replicas(), dict[tuple[int, int], tuple[int, int]]()
    window, known = 0, set[int]()
    for change in changes:
        now = min(change["time_us"], run["duration_us"]) // width_us
        for passed in range(window + 1, now + 1):
            most |= {(passed, broker): replicas.of_broker(broker) for broker in known}
        window = now
        for broker in set(replicas.apply(change)):
            known.add(broker)
            old, new = most.get((now, broker), (0, 0)), replicas.of_broker(broker)
            most[now, broker] = (max(old[0], new[0]), max(old[1], new[1]))
    for passed in range(window + 1, -(-run["duration_us"] // width_us)):
        most |= {(passed, broker): replicas.of_broker(broker) for broker in known}
    return [
        {
            "run_id": run["run_id"],
            "window_start_us": number * width_us,
            "window_end_us": (number + 1) * width_us,
            "broker": broker,
            "replica_lag": lag,
            "out_of_sync": out_of_sync,
        }
        for (number, broker), (lag, out_of_sync) in sorted(most.items())
    ]


def _changes(folder: Path) -> list[dict[str, Any]]:
    """The changes of partitions and of the ends of their logs, in their order."""
    files = [pq.ParquetFile(path) for path in sorted(folder.glob("*.parquet"))]
    if sum(file.metadata.num_rows for file in files) > _MOST_CHANGES:
        return []
    rows: list[dict[str, Any]] = []
    for file in files:
        table = file.read(columns=list(_COLUMNS))
        kept = pc.is_in(table.column("change"), pa.array([LOG_END, PARTITION]))
        rows += table.filter(kept).to_pylist()
    return rows


def replication_section(part: PagePart, run: Row, rows: Sequence[Row]) -> str:
    """Replica lag and the ISR over time, by broker."""
    if not rows or not part.plotted:
        return ""
    plot = figure(
        f"replication-{part.number}",
        replication_over_time(rows, run["duration_us"], run["faults"]),
        f"Replica lag and ISR over time in {run['run_id']}",
        "The records that a broker's replica of some partition was behind its leader, and the "
        "partitions that the broker is a replica of without being in their ISR: the most of each "
        "window.",
        where="table replication in CSV",
    )
    links = row_links(part, "replication", rows)
    return section("Replica lag and ISR", plot, links, anchor=part.anchor("replication"))


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
    layout["xaxis"] |= {
        "range": [0, end_us / 1e6],
        "ticksuffix": " s",
        "title": axis_title("time since the start of the run"),
    }
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
                    "meta": {"broker": str(broker)},
                    "x": [row["window_start_us"] / 1e6 for row in of_broker],
                    "y": [row[column] for row in of_broker],
                    "line": {"shape": "hv", "width": 1.8, "color": line_color(place)},
                    "hovertemplate": f"broker {broker}, %{{x}} s: %{{y:,}}<extra></extra>",
                    "yaxis": axis,
                }
            )
    return {"data": data, "layout": layout}
