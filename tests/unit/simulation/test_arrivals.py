"""Recorded request logs: ISO times and numbers, CSV and Parquet, bad rows."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory.simulation import ArrivalsError, read_arrivals
from purgatory.simulation.scenario import ArrivalsSection


def section(file: str, **more: Any) -> ArrivalsSection:
    return ArrivalsSection(**{"file": file, "time": "at", "bytes": "tokens", **more})


def csv_file(folder: Path, rows: Sequence[str], header: str = "at,tokens") -> Path:
    path = folder / "log.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("first", "second", "gap_ns"),
    [
        ("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:50.9951690", 4_314_579_000),
        ("2023-11-16T18:15:46.680590012Z", "2023-11-16T18:15:46.680590013Z", 1),
        ("2023-11-16T18:15:46+01:00", "2023-11-16T18:15:46Z", 3_600_000_000_000),
        ("20231116T181546", "20231116T181547.5", 1_500_000_000),
        ("2023-11-16", "2023-11-17", 86_400_000_000_000),
        ("2023-W46-4", "2023-11-16T00:00:01", 1_000_000_000),
        ("2023-11-16 18:15:46,25", "2023-11-16 18:15:46,75", 500_000_000),
    ],
)
def test_iso_times(tmp_path: Path, first: str, second: str, gap_ns: int) -> None:
    path = csv_file(tmp_path, [f'"{first}",1', f'"{second}",2'])
    arrivals = read_arrivals(path, section("log.csv"), strict=True)
    assert list(arrivals.times_ns) == [0, gap_ns]


@pytest.mark.parametrize(
    ("unit", "first", "second", "gap_ns"),
    [
        ("s", "1700158546.680590012", "1700158546.680590013", 1),
        ("ms", "0", "1.5", 1_500_000),
        ("us", "1e3", "2e3", 1_000_000),
        ("ns", "1700158546680590012", "1700158546680590015", 3),
    ],
)
def test_numbers_with_a_unit(
    tmp_path: Path, unit: str, first: str, second: str, gap_ns: int
) -> None:
    path = csv_file(tmp_path, [f"{first},1", f"{second},2"])
    arrivals = read_arrivals(path, section("log.csv", time_unit=unit), strict=True)
    assert list(arrivals.times_ns) == [0, gap_ns]


def test_sizes_and_speed(tmp_path: Path) -> None:
    path = csv_file(tmp_path, ["10,374", "20,0", "30,2.5"])
    arrivals = read_arrivals(
        path, section("log.csv", time_unit="s", bytes_per_unit=4.0, speed=10.0)
    )
    assert list(arrivals.times_ns) == [0, 1_000_000_000, 2_000_000_000]
    assert arrivals.sizes is not None and list(arrivals.sizes) == [1_496, 1, 10]
    assert arrivals.last_ns == 2_000_000_000


def test_without_a_column_of_sizes_there_are_none(tmp_path: Path) -> None:
    path = csv_file(tmp_path, ["10,x", "20,y"])
    arrivals = read_arrivals(path, section("log.csv", time_unit="s", bytes=None), strict=True)
    assert arrivals.sizes is None and len(arrivals) == 2


def test_rows_are_sorted_by_time_and_equal_times_keep_order(tmp_path: Path) -> None:
    path = csv_file(tmp_path, ["3,1", "1,2", "3,3", "2,4"])
    arrivals = read_arrivals(path, section("log.csv", time_unit="ns"))
    assert list(arrivals.times_ns) == [0, 1, 2, 2]
    assert arrivals.sizes is not None and list(arrivals.sizes) == [2, 4, 1, 3]


BAD_ROWS = ["1,5", "yesterday,5", "2,-1", "3,nan", "4", ",5", "inf,5", "5,many", "6,7"]


def test_bad_rows_are_counted_and_named(tmp_path: Path) -> None:
    path = csv_file(tmp_path, BAD_ROWS)
    arrivals = read_arrivals(path, section("log.csv", time_unit="s"))
    assert list(arrivals.times_ns) == [0, 5_000_000_000]
    assert arrivals.bad_rows == 7
    assert arrivals.bad_by_column == {"at": 3, "tokens": 4}
    assert str(arrivals.named_bad_rows[0]) == "row 2: at = 'yesterday': must be a number of s"
    assert [bad.row for bad in arrivals.named_bad_rows] == [2, 3, 4, 5, 6, 7, 8]


def test_only_the_first_bad_rows_are_kept_by_name(tmp_path: Path) -> None:
    path = csv_file(tmp_path, ["1,1", *(["bad,1"] * 500)])
    arrivals = read_arrivals(path, section("log.csv", time_unit="s"))
    assert arrivals.bad_rows == 500 and len(arrivals.named_bad_rows) == 20


@pytest.mark.parametrize("by_section", [True, False])
def test_strict_stops_at_the_first_bad_row_and_names_it(tmp_path: Path, by_section: bool) -> None:
    path = csv_file(tmp_path, BAD_ROWS)
    strict = section("log.csv", time_unit="s", strict=by_section)
    with pytest.raises(ArrivalsError, match=r"log\.csv: row 2: at = 'yesterday': must be a number"):
        read_arrivals(path, strict, strict=not by_section)


def test_errors_of_the_file_name_a_valid_value(tmp_path: Path) -> None:
    with pytest.raises(ArrivalsError, match="there is no such file"):
        read_arrivals(tmp_path / "none.csv", section("none.csv"))
    with pytest.raises(ArrivalsError, match=r"must be a \.csv or a \.parquet file"):
        read_arrivals(tmp_path / "log.txt", section("log.txt"))
    path = csv_file(tmp_path, ["1,2"], header="time,size")
    with pytest.raises(ArrivalsError, match="no column 'at'; there are time, size"):
        read_arrivals(path, section("log.csv"))
    path = csv_file(tmp_path, ["x,2"])
    with pytest.raises(ArrivalsError, match="no usable row among 1; the first: row 1: at = 'x'"):
        read_arrivals(path, section("log.csv"))
    broken = tmp_path / "log.parquet"
    broken.write_bytes(b"no parquet")
    with pytest.raises(ArrivalsError, match="cannot be read as Parquet"):
        read_arrivals(broken, section("log.parquet"))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_parquet_timestamps(tmp_path: Path, unit: str) -> None:
    start = datetime.datetime(2023, 11, 16, 18, 15, 46)
    times = [start, None, start + datetime.timedelta(seconds=2)]
    table = pa.table({"at": pa.array(times, pa.timestamp(unit)), "tokens": [1, 2, 3]})
    pq.write_table(table, tmp_path / "log.parquet")
    arrivals = read_arrivals(tmp_path / "log.parquet", section("log.parquet", bytes_per_unit=4.0))
    assert list(arrivals.times_ns) == [0, 2_000_000_000]
    assert arrivals.sizes is not None and list(arrivals.sizes) == [4, 12]
    assert arrivals.bad_rows == 1 and arrivals.named_bad_rows[0].row == 2


def test_parquet_numbers_and_texts(tmp_path: Path) -> None:
    table = pa.table({"at": [5, 7], "text": ["2023-11-16", "2023-11-17"], "tokens": [1.5, 2.0]})
    pq.write_table(table, tmp_path / "log.parquet")
    numbers = section("log.parquet", time_unit="ms")
    assert list(read_arrivals(tmp_path / "log.parquet", numbers).times_ns) == [0, 2_000_000]
    texts = section("log.parquet", time="text")
    arrivals = read_arrivals(tmp_path / "log.parquet", texts)
    assert list(arrivals.times_ns) == [0, 86_400_000_000_000]
