"""Traces that are plain data: tables of sends and reads without `run.json`, as a program has them.

What such a table lacks has a value that shows no anomaly by itself; the anomalies that it would
take are named, and not looked for.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from io import TextIOWrapper
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from purgatory.pipeline.ingest.column_casts import ISO_TIME, ZEROS
from purgatory.pipeline.ingest.column_mapping import ColumnMapping, Source, sources_of
from purgatory.pipeline.jobs.audit.anomalies import NO_COLUMN
from purgatory.trace.trace_schema import DERIVED, NULLABLE

if TYPE_CHECKING:
    from purgatory.pipeline.ingest.stores import TracePath


class Default(NamedTuple):
    """The value of a column that plain data lacks, and the anomalies that it would show."""

    value: str | int | bool
    shows: tuple[str, ...] = ()


_DEFAULTS: Mapping[str, Mapping[str, Default]] = {
    "sends": {
        "outcome": Default("unknown", ("lost_write", "moved_write", "unseen")),
        "producer": Default(0, ("multi_writer",)),
        "sequence": Default(0, ("retry_reorder", "nonmonotonic_send", "sequence_gap")),
        "attempt": Default(1, ("lost_ack_duplicate",)),
        "send_us": Default(0, ("multi_writer",)),
        "acks": Default(-1),
        "group": Default("producers"),
        "key": Default(0),
        "size_bytes": Default(0),
    },
    "reads": {
        "poll": Default(1, ("nonmonotonic_poll",)),
        "applied": Default(False, ("reprocess", "effect_duplicate")),
        "consumer": Default(0),
        "group": Default("consumers"),
        "time_us": Default(0),
    },
    "effects": {
        "key": Default(0, ("key_order_violation",)),
        "version": Default(0, ("key_order_violation",)),
        "group": Default("consumers"),
        "consumer": Default(0),
        "time_us": Default(0),
    },
    "commits": {"group": Default("consumers"), "time_us": Default(0)},
}

PLAIN_TABLES = frozenset(_DEFAULTS)
"""The tables that plain data may have in parts."""

_MEANINGS: Mapping[str, str] = {
    "topic": 'its topic, or { value = "name" } for the same in all rows',
    "partition": "its number, or { value = 0 }",
    "offset": "where it was read",
    "value_id": "which record it is: any id or text, the same in sends and reads",
}
_FIRST_LINES = 100
_MOST_FOUND = 20


class PlainTable(NamedTuple):
    """A table of plain data, with what it lacks.

    Attributes:
        sources: constants for the columns that it lacks.
        lacking: these columns, with the anomalies that each would show.
        problem: the columns without which it says nothing, in words; empty if it has all.
    """

    sources: Mapping[str, Source]
    lacking: Mapping[str, Sequence[str]]
    problem: str = ""


def plain_table(
    table: str, columns: Sequence[str], mapping: ColumnMapping | None, *, in_lines: bool
) -> PlainTable:
    """Return how a table of plain data is read.

    Args:
        table: its name in the schema.
        columns: those of its files.
        mapping: that of the command.
        in_lines: they are lines of JSON, each of which may have a `run_id`.
    """
    defaults = _DEFAULTS.get(table, {})
    absent = [
        name
        for name, source in sources_of(table, mapping).items()
        if source.name is not None
        and source.name not in columns
        and name != "run_id"
        and name not in NULLABLE[table]
        and name not in DERIVED.get(table, {})
    ]
    missing = [name for name in absent if name not in defaults]
    if missing:
        wanted = "; ".join(
            f"{name} ({_MEANINGS[name]})" if name in _MEANINGS else name for name in missing
        )
        found = ", ".join(columns[:_MOST_FOUND]) or "none"
        problem = f"{table} lacks {wanted}. It has {found}: name them by --mapping"
        return PlainTable({}, {}, problem)
    values: dict[str, str | int | bool | None] = {name: defaults[name].value for name in absent}
    if not in_lines and sources_of(table, mapping)["run_id"].name not in (None, *columns):
        values["run_id"] = None  # the folder's
    return PlainTable(
        {name: Source(None, value=value) for name, value in values.items()},
        {name: defaults[name].shows for name in absent},
    )


def lacking_reasons(lacking: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, str]:
    """The anomalies that can't be looked for, and the first column that each would take."""
    reasons: dict[str, str] = {}
    for table, columns in lacking.items():
        for column, anomalies in columns.items():
            for anomaly in anomalies:
                reasons.setdefault(anomaly, f"{NO_COLUMN}{column} in {table}")
    return reasons


def json_columns(path: TracePath) -> list[str]:
    """The fields of the first lines of a file of JSON lines, in their order.

    Raises:
        OSError, EOFError: the file can't be read.
    """
    columns: dict[str, None] = {}
    with path.open("rb") as raw, gzip.open(raw) if path.name.endswith(".gz") else raw as file:
        for line in islice(file, _FIRST_LINES):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                columns.update(dict.fromkeys(row))
    return list(columns)


# CSV, as lines of JSON: the same rules hold for its rows.


CSV_ENDINGS = (".csv", ".csv.gz")
_ZEROS = re.compile(rf"(?<=[0-9]){ZEROS}\Z")
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_WORDS: Mapping[str, Any] = {"true": True, "True": True, "false": False, "False": False}
_LINES = 20_000
_MOST_CELL = (1 << 31) - 1
_AS_IS = "surrogateescape"


def peek_csv(path: TracePath, column: str | None) -> tuple[list[str], object]:
    """The names in the first line of a file of CSV, and the first value of one of them.

    Raises:
        OSError, EOFError, csv.Error: the file can't be read.
    """
    with _csv_text(path) as file:
        rows = _csv_rows(file)
        names = next(rows, [])
        if any("\ud800" <= letter <= "\udfff" for letter in "".join(names)):
            raise csv.Error("its first line is no text in UTF-8: save it so")
        index = names.index(column) if column in names else len(names)
        values = ("".join(row[index : index + 1]) for row in islice(rows, _FIRST_LINES))
        return names, next(filter(None, values), None)


def csv_lines(
    path: TracePath,
    texts: frozenset[str] = frozenset(),
    times: frozenset[str] = frozenset(),
    numbers: frozenset[str] = frozenset(),
) -> Iterator[list[bytes]]:
    """The rows of a file of CSV as lines of JSON; an empty cell is null. O(bytes).

    Args:
        path: the file; its first line has the names.
        texts: the columns whose numbers stay texts.
        times: those whose cells may be dates with times, as ISO 8601 has them.
        numbers: those whose cells may be whole numbers such as 1.0, as pandas writes them beside
            empty cells.
    """
    with _csv_text(path) as file:
        rows = _csv_rows(file)
        names = next(rows, [])
        lines = [b""]  # the names' line, which is no row
        for row in rows:
            lines.append(_json_line(names, row, texts, times, numbers) if row else b"")
            if len(lines) >= _LINES:
                yield lines
                lines = []
        yield lines


@contextmanager
def _csv_text(path: TracePath) -> Iterator[TextIOWrapper]:
    csv.field_size_limit(max(csv.field_size_limit(), _MOST_CELL))  # of the process
    with (
        path.open("rb") as raw,
        gzip.open(raw) if path.name.endswith(".gz") else nullcontext(raw) as content,
        # Bytes that are no UTF-8 come into the lines of JSON as they are: such a row is a bad one.
        TextIOWrapper(content, encoding="utf-8-sig", errors=_AS_IS, newline="") as text,
    ):
        yield text


def _csv_rows(file: TextIOWrapper) -> Iterator[list[str]]:
    """The rows; between their cells are commas, or what the first line has instead of them."""
    first = file.readline()
    others = (mark for mark in ";\t|" if mark in first and "," not in first)
    return csv.reader(chain([first] if first else [], file), delimiter=next(others, ","))


def _json_line(
    names: Sequence[str],
    row: Sequence[str],
    texts: frozenset[str],
    times: frozenset[str],
    numbers: frozenset[str],
) -> bytes:
    if len(row) != len(names):
        return ",".join(row).replace("\n", " ").encode(errors=_AS_IS)  # torn
    cells = {
        name: cell
        if name in texts
        else time
        if name in times and (time := iso_micros(cell)) is not None
        else _cell(_ZEROS.sub("", cell) if name in numbers else cell)
        for name, cell in zip(names, row, strict=True)
        if cell
    }
    return json.dumps(cells, ensure_ascii=False).encode(errors=_AS_IS)


def _cell(text: str) -> Any:
    return int(text) if _WHOLE.fullmatch(text) else _WORDS.get(text, text)


def iso_micros(text: str) -> int | None:
    """The microseconds since 1970 of a text of `ISO_TIME`, in UTC where it names no zone.

    None is returned for any other text.
    """
    if _ISO_TIME.fullmatch(text) is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None  # such as February 30
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - _EPOCH) // timedelta(microseconds=1)


_ISO_TIME = re.compile(ISO_TIME)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
