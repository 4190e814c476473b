"""A recorded request log as the arrivals of a producer group.

The log is read once, into two integers per row: the time since the first row and the size. Rows may
be out of order; they are sorted by time, and rows of one time keep their order. An invalid row is
skipped and counted by its column, and the first ones are named by their row number; with `strict`
it stops the run.

Times are compared in nanoseconds. An ISO time without a zone counts as UTC, as does the time of a
Parquet timestamp without one.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path
from typing import Any

from purgatory.settings.problems import known_names
from purgatory.simulation.engine import Engine
from purgatory.simulation.producer import Producer
from purgatory.simulation.producer_group import ProducerGroup
from purgatory.simulation.scenario import ArrivalsSection

MAX_NAMED_BAD_ROWS = 20
"""The number of bad rows that are kept; all are counted."""

_UNIT_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION = re.compile(r"(?<=\d)[.,](\d+)")
_MAX_TIME_NS = 2**62
_MAX_RECORD_BYTES = 2**31


class ArrivalsError(ValueError):
    """A request log that cannot be used. The text names the file and the requirement."""


@dataclass(frozen=True)
class BadRow:
    """A row that was skipped.

    Args:
        row: its number in the file; the first row of data is 1.
        column: the column that is wrong.
        value: its value.
        reason: what it must be.
    """

    row: int
    column: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.column} = {self.value!r}: {self.reason}"


@dataclass
class Arrivals:
    """Arrival times of records, sorted, in nanoseconds after the start, and sizes in bytes.

    `sizes` is None if the log has none.
    """

    times_ns: array[int]
    sizes: array[int] | None
    bad_rows: int = 0
    bad_by_column: Counter[str] = field(default_factory=Counter)
    named_bad_rows: list[BadRow] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.times_ns)

    @property
    def last_ns(self) -> int:
        """When the last record arrives, in nanoseconds after the start."""
        return self.times_ns[-1]


class _BadValue(Exception):
    """A value that cannot be used; the text says what it must be."""


def read_arrivals(path: Path, section: ArrivalsSection, *, strict: bool = False) -> Arrivals:
    """Read a request log.

    Args:
        path: a .csv or .parquet file.
        section: which columns to read, and how.
        strict: stop at a bad row, whatever the section says.

    Raises:
        ArrivalsError: the file cannot be read, lacks a column, holds no usable row, or, if strict,
            holds a bad one.

    O(n log n) time and 16 bytes of memory per row, beside a buffer.
    """
    strict = strict or section.strict
    parse_time = _parse_iso if section.time_unit == "iso" else _number_parser(section.time_unit)
    times, sizes = array("q"), array("q")
    result = Arrivals(times, sizes if section.bytes is not None else None)
    for row, (time, size) in enumerate(_rows(path, section), start=1):
        column, value = section.time, time
        try:
            time_ns = parse_time(time)
            if section.bytes is not None:
                column, value = section.bytes, size
                sizes.append(_parse_size(size, section.bytes_per_unit))
        except _BadValue as error:
            bad = BadRow(row, column, "" if value is None else str(value)[:80], str(error))
            if strict:
                raise ArrivalsError(f"{path}: {bad}") from error
            result.bad_rows += 1
            result.bad_by_column[column] += 1
            if len(result.named_bad_rows) < MAX_NAMED_BAD_ROWS:
                result.named_bad_rows.append(bad)
            continue
        times.append(time_ns)
    if not times:
        raise ArrivalsError(_empty_file_message(path, result))
    _sort_and_scale(result, section.speed)
    return result


def _empty_file_message(path: Path, result: Arrivals) -> str:
    text = f"{path}: there is no usable row among {result.bad_rows}"
    if result.named_bad_rows:
        text += f"; the first: {result.named_bad_rows[0]}"
    return text


def _sort_and_scale(arrivals: Arrivals, speed: float) -> None:
    times, sizes = arrivals.times_ns, arrivals.sizes
    if any(later < earlier for earlier, later in pairwise(times)):
        order = sorted(range(len(times)), key=times.__getitem__)
        times = array("q", (times[index] for index in order))
        if sizes is not None:
            arrivals.sizes = array("q", (sizes[index] for index in order))
    first = times[0]
    # A division of two floats is the same on every machine: it is rounded correctly.
    arrivals.times_ns = array("q", (round((time - first) / speed) for time in times))


def _rows(path: Path, section: ArrivalsSection) -> Iterator[tuple[Any, Any]]:
    kind = path.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise ArrivalsError(f"{path}: must be a .csv or a .parquet file")
    if not path.is_file():
        raise ArrivalsError(f"{path}: there is no such file")
    return _csv_rows(path, section) if kind == ".csv" else _parquet_rows(path, section)


def _csv_rows(path: Path, section: ArrivalsSection) -> Iterator[tuple[Any, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            time_at = _column_index(path, header, section.time)
            size_at = None if section.bytes is None else _column_index(path, header, section.bytes)
            for row in reader:
                if row:
                    yield _cell(row, time_at), None if size_at is None else _cell(row, size_at)
    except (OSError, csv.Error) as error:
        raise ArrivalsError(f"{path}: cannot be read as CSV: {error}") from error


def _cell(row: list[str], column: int) -> str | None:
    return row[column] if column < len(row) else None


def _column_index(path: Path, header: list[str], name: str) -> int:
    if name not in header:
        raise ArrivalsError(f"{path}: there is no column {name!r}; {known_names(name, header)}")
    return header.index(name)


def _parquet_rows(path: Path, section: ArrivalsSection) -> Iterator[tuple[Any, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            columns = [section.time] + ([] if section.bytes is None else [section.bytes])
            for column in columns:
                _column_index(path, names, column)
            for batch in file.iter_batches(batch_size=65_536, columns=columns):
                times = _without_zone(batch.column(section.time))
                sizes = (
                    [None] * len(times)
                    if section.bytes is None
                    else batch.column(section.bytes).to_pylist()
                )
                yield from zip(times, sizes, strict=True)
    except (OSError, pa.ArrowException) as error:
        raise ArrivalsError(f"{path}: cannot be read as Parquet: {error}") from error


@dataclass(frozen=True)
class _Nanoseconds:
    """A timestamp of the file's own type, since the epoch."""

    value: int


def _without_zone(column: Any) -> list[Any]:
    """A Parquet column as Python values; timestamps as nanoseconds, which `datetime` has not."""
    import pyarrow as pa

    if not pa.types.is_timestamp(column.type):
        values: list[Any] = column.to_pylist()
        return values
    scale = _UNIT_NS[column.type.unit]
    raw = column.cast(pa.int64()).to_pylist()
    return [None if value is None else _Nanoseconds(value * scale) for value in raw]


def _parse_iso(value: Any) -> int:
    """Nanoseconds since the epoch of an ISO 8601 time."""
    if isinstance(value, _Nanoseconds):
        return value.value
    if isinstance(value, date) and not isinstance(value, datetime):
        value = value.isoformat()
    text = str(value).strip() if value is not None else ""
    fraction = _FRACTION.search(text)
    digits = fraction.group(1) if fraction else ""
    # The fraction is parsed separately: `datetime` keeps microseconds only.
    whole = text if fraction is None else text[: fraction.start()] + text[fraction.end() :]
    try:
        timestamp = datetime.fromisoformat(whole)
    except ValueError:
        raise _BadValue("must be an ISO 8601 time, such as 2023-11-16T18:15:46.68Z") from None
    if timestamp.tzinfo is None:
        timestamp = timestamp.replace(tzinfo=UTC)
    since = timestamp - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + int(digits[:9].ljust(9, "0"))


def _number_parser(unit: str) -> Callable[[Any], int]:
    scale = _UNIT_NS[unit]

    def parse(value: Any) -> int:
        if isinstance(value, _Nanoseconds):
            return value.value
        try:
            # A float holds no nanoseconds since the epoch; a decimal does.
            number = Decimal(str(value).strip())
        except InvalidOperation:
            raise _BadValue(f"must be a number of {unit}") from None
        if not number.is_finite() or abs(number) > _MAX_TIME_NS:
            raise _BadValue(f"must be a finite number of {unit}")
        time_ns = round(number * scale)
        if abs(time_ns) > _MAX_TIME_NS:
            raise _BadValue(f"must be a number of {unit} within 146 years of the epoch")
        return time_ns

    return parse


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise _BadValue("must be a number") from None


def _parse_size(value: Any, bytes_per_unit: float) -> int:
    """The size in bytes, at least 1."""
    number = _float(value)
    if not 0 <= number * bytes_per_unit < _MAX_RECORD_BYTES:
        raise _BadValue("must be at least 0, and below 2 GiB when multiplied by bytes_per_unit")
    return max(1, round(number * bytes_per_unit))


def schedule_arrivals(
    engine: Engine,
    group: ProducerGroup,
    producers: Sequence[Producer],
    log: Arrivals,
    end_ns: int,
) -> None:
    """Schedule the rows of a log, in turn at a group's producers; one event at a time.

    Args:
        group: draws the sizes if the log has none.
        end_ns: the end of arrivals, in virtual nanoseconds.
    """
    times, sizes = log.times_ns, log.sizes

    def arrive(index: int) -> None:
        producers[index % len(producers)].add_message(
            group.next_size() if sizes is None else sizes[index]
        )
        index += 1
        if index < len(times) and times[index] < end_ns:
            engine.call_at(times[index], arrive, index)

    engine.call_at(times[0], arrive, 0)
