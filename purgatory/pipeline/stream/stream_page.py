"""Bars over time as SVG in a page: small enough to be written anew with each result.

They take the width that there is; what is written stands in HTML around them, and keeps its size.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa

from purgatory.pipeline.errors import OutputError, PipelineError
from purgatory.pipeline.report.findings import opening
from purgatory.pipeline.report.page import Column, PagePart, folded, page, row_links, section, table
from purgatory.pipeline.report.sentences import AFTER_LOST, DUPLICATE
from purgatory.pipeline.result_rows import Row, milliseconds
from purgatory.pipeline.stream.rows import watermark_us
from purgatory.pipeline.stream.sinks import LiveJobs
from purgatory.pipeline.stream.totals import (
    MOST_ROWS,
    ToldSoFar,
    Waits,
    clock,
    duration_text,
    happened_so_far,
    moment,
)

_HEIGHT = 100.0
_LEAST_HEIGHT = 2.0
"""What is there is seen, however small it is."""

_GAP = 0.1


@dataclass(frozen=True)
class Bar:
    """What a bucket of time has.

    Attributes:
        number: the bucket's.
        value: how high it is.
        part: how much of that is marked, from below.
        words: what a pointer on it shows.
    """

    number: int
    value: float
    part: float
    words: str


def time_bars(bars: Sequence[Bar], label: str, ends: tuple[str, str], most: str) -> str:
    """A figure with bars, in the order of their numbers.

    Args:
        bars: at least one.
        label: what it shows, as plain text, for readers who can't see it.
        ends: from when to when it is.
        most: how much the highest one is.
    """
    first = min(bar.number for bar in bars)
    width = max(bar.number for bar in bars) - first + 1
    scale = _HEIGHT / (max(bar.value for bar in bars) or 1)
    drawn = "".join(_drawn(bar, bar.number - first, scale) for bar in bars)
    return (
        f'<div class="bars"><p class="note">{escape(most)}</p>'
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {width} {_HEIGHT:g}" '
        f'preserveAspectRatio="none">{drawn}</svg>'
        f'<p class="note ends"><span>{escape(ends[0])}</span> <span>{escape(ends[1])}</span></p>'
        "</div>"
    )


def _drawn(bar: Bar, place: int, scale: float) -> str:
    rects = ""
    for name, value in (("whole", bar.value), ("part", bar.part)):
        if value:
            height = max(_LEAST_HEIGHT, value * scale)
            rects += (
                f'<rect class="{name}" x="{place + _GAP / 2:g}" width="{1 - _GAP:g}" '
                f'y="{_HEIGHT - height:.2f}" height="{height:.2f}"/>'
            )
    return f"<g>{rects}<title>{escape(bar.words)}</title></g>" if rects else ""


# The page of a stream: what happened so far in sentences, then bars over time, then tables.
#
# It draws by itself, without plotly, so that it is some ten thousand characters and not five million:
# it is written anew with each result.


MOST_DRAWN = 6
"""How many purgatories are drawn; the tables have all."""

RUNNING = "running"
MADE_BY = "purgatory stream"

_MOST_SHOWN_ROWS = 20
_TIMES = {"window_start", "window_end", "time"}
_NEWEST = f"The newest {MOST_ROWS} rows at most"
_AGAIN = """<p><label><input type="checkbox" id="again"> Load this page again every 10 s, while
nothing on it is unfolded</label></p>
<script>
const again = document.getElementById("again");
again.checked = sessionStorage.getItem("again") === "yes";
again.addEventListener("change", () => sessionStorage.setItem("again", again.checked ? "yes" : ""));
setInterval(() => {
  if (again.checked && !document.hidden && !document.querySelector("details[open]"))
    location.reload();
}, 10000);
</script>"""


def stream_page(
    name: str,
    told: ToldSoFar,
    until_us: Mapping[str, int],
    *,
    state: str,
    written_us: int,
    parquet: Mapping[str, str],
) -> str:
    """The whole page, as text; its length does not grow with what is told.

    Args:
        name: what is followed.
        told: what the results add up to.
        until_us: up to when each query has told all, by its name.
        state: `RUNNING`, or how it ended.
        written_us: when this is, in microseconds since 1970.
        parquet: where the page finds the tables, by their names.
    """
    part = PagePart(0, parquet=parquet)
    below = "\n".join(filter(None, _sections(part, told)))
    opened = opening(part, happened_so_far(told, until_us), below)
    is_running = state == RUNNING
    title = f"What happen{'s' if is_running else 'ed'} in {name}"
    header = f"<header><h1>{escape(title)}</h1>{_about(told, until_us, state, written_us)}</header>"
    parts = [header, "<h2>So far</h2>", opened, _AGAIN if is_running else "", below, _last_words()]
    return page(title, parts, with_plots=False, made_by=MADE_BY)


def _about(told: ToldSoFar, until_us: Mapping[str, int], state: str, written_us: int) -> str:
    is_well = not state.startswith("failed")
    mark = f'<span class="mark{"" if is_well else " broken"}">{escape(state)}</span>'
    runs = ""
    if told.runs:
        several = len(told.runs) > 1
        names = ", ".join(told.runs)
        runs = f" {'The newest runs, summed up' if several else 'The run'}: {escape(names)}."
    known = [
        f"{words} up to {moment(until_us[query])}"
        for query, words in (("waits", "the waits"), ("order", "order and duplicates"))
        if until_us.get(query)
    ]
    upto = f" It tells {' and '.join(known)}." if known else ""
    return f"<p>{mark} Written at {moment(written_us)}.{upto}{runs}</p>"


def _last_words() -> str:
    return (
        '<p class="note">Rows tell of no faults, and a stream does not know how clients are '
        "configured: why something happened, and whether it breaks a promise, is told by "
        "purgatory analyze, from a trace.</p>"
    )


def _sections(part: PagePart, told: ToldSoFar) -> list[str]:
    drawn = [
        _over_time(part, told, number, purgatory)
        for number, purgatory in enumerate(list(told.waits)[:MOST_DRAWN])
    ]
    return [
        _facts(told),
        f'<div class="cards">{"".join(drawn)}</div>' if drawn else "",
        _waits_section(part, told),
        _order_section(part, told),
        _aside_section(part, told),
    ]


def _facts(told: ToldSoFar) -> str:
    waits = told.waits.values()
    if not waits:
        return ""
    waited = sum(one.waited for one in waits)
    expired = sum(one.outcomes["expired"] for one in waits)
    facts = [
        ("operations", f"{sum(one.operations for one in waits):,}", ""),
        ("had to wait", f"{waited:,}", ""),
        ("expired", f"{expired:,}", f" {100 * expired / waited:.1f} %" if waited else ""),
        ("longest wait", f"{max(one.max_us for one in waits) / 1000:,.1f}", " ms"),
    ]
    shown = "".join(
        f"<div><dt>{label}</dt><dd>{figure}<small>{unit}</small></dd></div>"
        for label, figure, unit in facts
    )
    return f'<dl class="facts">{shown}</dl>'


def _over_time(part: PagePart, told: ToldSoFar, number: int, purgatory: str) -> str:
    """How many waited in a purgatory, and how long, in each bucket of time."""
    rows = _of_buckets(told, purgatory)
    width = duration_text(told.width_us)
    ends = (moment(rows[0]["bucket_start_us"]), moment(rows[-1]["bucket_end_us"]))
    counts = [
        Bar(
            row["bucket_start_us"] // told.width_us,
            row["waited"],
            row["expired"],
            f"{clock(row['bucket_start_us'])}: {row['waited']:,} waited, "
            f"{row['expired']:,} expired",
        )
        for row in rows
    ]
    longest = [
        Bar(
            row["bucket_start_us"] // told.width_us,
            row["wait_max_us"],
            0,
            f"{clock(row['bucket_start_us'])}: {milliseconds(row['wait_max_us'], 1)} ms",
        )
        for row in rows
    ]
    most = max(row["waited"] for row in rows)
    most_us = max(row["wait_max_us"] for row in rows)
    return section(
        f"{purgatory} over time",
        time_bars(
            counts,
            f"How many waited in {purgatory} over time; the figures are in the table",
            ends,
            f"Operations that waited, by {width}, and of them those that expired: {most:,} at most",
        ),
        time_bars(
            longest,
            f"The longest wait in {purgatory} over time; the figures are in the table",
            ends,
            f"The longest wait, by {width}: {most_us / 1000:,.1f} ms at most",
        ),
        folded("In figures", _buckets_table(purgatory, rows)),
        row_links(PagePart(number), "over_time", rows),
        anchor=part.anchor(f"over-time-{number}"),
    )


def _of_buckets(told: ToldSoFar, purgatory: str) -> list[Row]:
    return [
        {
            "purgatory": purgatory,
            "bucket_start_us": told.bucket_us(number),
            "bucket_end_us": told.bucket_us(number + 1),
            **vars(of_time[purgatory]),
        }
        for number, of_time in sorted(told.buckets.items())
        if purgatory in of_time
    ]


def _buckets_table(purgatory: str, rows: Sequence[Row]) -> str:
    columns: list[Column] = [
        ("from", False, lambda row: moment(row["bucket_start_us"])),
        ("operations", True, lambda row: f"{row['operations']:,}"),
        ("waited", True, lambda row: f"{row['waited']:,}"),
        ("expired", True, lambda row: f"{row['expired']:,}"),
        ("longest, ms", True, lambda row: milliseconds(row["wait_max_us"], 1)),
    ]
    caption = f"Operations in {purgatory}, by when they ended; a window counts where it begins."
    return table(caption, columns, rows)


def _waits_section(part: PagePart, told: ToldSoFar) -> str:
    if not told.waits:
        return ""
    columns: list[Column] = [
        ("purgatory", False, lambda row: row["purgatory"]),
        ("operations", True, lambda row: f"{row['waits'].operations:,}"),
        ("at once", True, lambda row: f"{row['waits'].outcomes['immediate']:,}"),
        ("waited", True, lambda row: f"{row['waits'].waited:,}"),
        ("expired", True, lambda row: f"{row['waits'].outcomes['expired']:,}"),
        ("mean, ms", True, lambda row: _mean(row["waits"])),
        ("max, ms", True, lambda row: milliseconds(row["waits"].max_us, 1)),
    ]
    rows = [{"purgatory": name, "waits": one} for name, one in told.waits.items()]
    return section(
        "How long they waited",
        table("Operations that ended in closed windows, by purgatory.", columns, rows),
        row_links(part, "waits", _readable(told.newest["waits"]), _NEWEST),
    )


def _mean(waits: Waits) -> str:
    return milliseconds(waits.sum_us / waits.settled if waits.settled else None, 1)


def _order_section(part: PagePart, told: ToldSoFar) -> str:
    if not told.anomalies:
        return ""
    columns: list[Column] = [
        ("anomaly", False, _anomaly),
        ("group", False, lambda row: row["group"]),
        ("cases", True, lambda row: f"{row['cases'].count:,}"),
        ("from", False, lambda row: moment(row["cases"].times.from_us)),
        ("until", False, lambda row: moment(row["cases"].times.until_us)),
    ]
    rows = [
        {"anomaly": anomaly, "group": group, "cases": cases, "after_lost": _after_lost(told, group)}
        for (anomaly, group), cases in told.anomalies.items()
        if anomaly != AFTER_LOST or (DUPLICATE, group) not in told.anomalies
    ]
    caption = "What was found, by the group of the producers."
    newest = _readable(told.newest["order"])
    return section(
        "Order and duplicates",
        table(caption, columns, rows),
        folded("The newest cases", _cases_table(newest)),
        row_links(part, "order", newest, _NEWEST),
    )


def _after_lost(told: ToldSoFar, group: str) -> int:
    """How many cases of a group are duplicates after a lost answer."""
    after = told.anomalies.get((AFTER_LOST, group))
    return 0 if after is None else after.count


def _anomaly(row: Row) -> str:
    words: str = row["anomaly"].replace("_", " ")
    after = row["after_lost"]
    if row["anomaly"] == DUPLICATE and after:
        return f"{words}, {after:,} after a lost answer"
    return words


def _readable(rows: Iterable[Row]) -> list[Row]:
    """Rows with their times in words."""
    return [
        {name: moment(value) if name in _TIMES else value for name, value in row.items()}
        for row in rows
    ]


def _cases_table(newest: Sequence[Row]) -> str:
    columns: list[Column] = [
        ("at", False, lambda row: row["time"]),
        ("anomaly", False, lambda row: row["anomaly"].replace("_", " ")),
        ("partition", False, lambda row: f"{row['topic']}-{row['partition']}"),
        ("producer", True, lambda row: _or_dash(row["producer"])),
        ("value", True, lambda row: _or_dash(row["value_id"])),
        ("sequence", True, lambda row: _or_dash(row["sequence"])),
        ("offset", True, lambda row: _or_dash(row["offset"])),
        ("other offset", True, lambda row: _or_dash(row["other_offset"])),
    ]
    doubled = {_place(row) for row in newest if row["anomaly"] == DUPLICATE}
    once = [row for row in newest if row["anomaly"] != AFTER_LOST or _place(row) not in doubled]
    shown = once[: -_MOST_SHOWN_ROWS - 1 : -1]
    return table("The cases that were told last, the newest first.", columns, shown)


def _place(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("run_id", "topic", "partition", "value_id", "offset"))


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _aside_section(part: PagePart, told: ToldSoFar) -> str:
    if not told.aside:
        return ""
    columns: list[Column] = [
        ("rows of", False, lambda row: row["source"]),
        ("reason", False, lambda row: row["reason"]),
        ("rows", True, lambda row: f"{row['rows']:,}"),
        ("such as", False, lambda row: row["example"]),
    ]
    rows = [
        {"source": source, "reason": reason, **vars(aside)}
        for (source, reason), aside in told.aside.items()
    ]
    return section(
        "Set aside",
        table("Rows that changed no result.", columns, rows),
        row_links(part, "aside", _readable(told.newest["aside"]), _NEWEST),
    )


# The page that a stream keeps up to date in a file.
#
# Ground rules
# ------------
# * The queries' threads add results; the thread that looks after the queries writes. A lock holds
#   what they share, for as long as rows are added or the page's text is made.
# * The file is whole at each moment: a new page is made beside it and takes its place. One that a
#   kill left beside it is replaced by the next.
# * Sums begin with the results that are in Parquet, so after a restart the page goes on.


_TABLES = ("waits", "order", "aside")


class StreamReport:
    """The page of one stream.

    Args:
        file: where it is.
        name: what is followed, as the page says it.
        jobs: what the stream does.
    """

    def __init__(self, file: Path, name: str, jobs: LiveJobs) -> None:
        self._file = file
        self._name = name
        self._jobs = jobs
        self._lock = threading.Lock()
        self._told = ToldSoFar(jobs.window_us)
        self._until_us: dict[str, int] = {}
        self._is_new = True

    def add(self, table: str, rows: pa.Table) -> None:
        """Take rows of the results: of ``waits``, ``order`` or ``aside``. O(rows)."""
        with self._lock:
            self._told.add(table, rows)
            self._is_new = True

    def batch_done(self, query: str, progress: Mapping[str, Any], _batch: int) -> None:
        """Note how far a query is; arguments as of `LiveMetrics.batch_done`."""
        time_us = watermark_us(progress)
        with self._lock:
            if time_us is not None and time_us > self._until_us.get(query, 0):
                self._until_us[query] = time_us
                self._is_new = True

    def refresh(self) -> None:
        """Write the page if there is something new; as much work however much was told.

        Raises:
            OutputError: the file can't be written.
        """
        if self._is_new:
            self._write(RUNNING)

    @contextmanager
    def kept(self, stop: threading.Event) -> Iterator[None]:
        """Write the page now, and at the end of the block with how that ended.

        Args:
            stop: whether it is set tells a stream that was stopped from one that is at its end.

        Raises:
            OutputError: the file can't be written.
        """
        self._write(RUNNING)
        try:
            yield
        except PipelineError as error:
            with suppress(OutputError):  # the first failure is told
                self._write(f"failed: {error}")
            raise
        self._write("stopped" if stop.is_set() else "ended: all is read that was there")

    def _write(self, state: str) -> None:
        with self._lock:
            self._is_new = False
            text = stream_page(
                self._name,
                self._told,
                self._until_us,
                state=state,
                written_us=time.time_ns() // 1_000_000_000 * 1_000_000,
                parquet=self._parquet(),
            )
        beside = self._file.with_name(f".{self._file.name}.part")
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(self._file)
        except OSError as error:
            raise OutputError(f"--report {self._file}: can't be written: {error}") from error

    def _parquet(self) -> dict[str, str]:
        """The folders of the tables that are there, as the page finds them."""
        folders = {name: self._jobs.out / name for name in _TABLES}
        beside = self._file.parent.resolve()
        return {
            name: f"{os.path.relpath(folder.resolve(), beside)}/"
            for name, folder in folders.items()
            if folder.is_dir()
        }
