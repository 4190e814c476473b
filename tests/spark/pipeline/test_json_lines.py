"""Lines of JSON on DuckDB: the fast reader has the rows of the reader for one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.pipeline.ingest import json_lines
from purgatory.pipeline.ingest.column_mapping import sources_of
from purgatory.pipeline.ingest.json_lines import JsonCells, JsonLines
from purgatory.trace.trace_schema import TABLES
from tests.spark.pipeline.dirty_traces import DirtyTraces
from tests.spark.pipeline.test_quarantine import LINES, OPERATION, mangled

KINDS = TABLES["operations"]
SOURCES = sources_of("operations", None)


def _read(path: Path) -> list[tuple[int, Any, str | None, str | None]]:
    """The number, the values, the wrong column of each line, and what that has."""
    rows = []
    for block in JsonLines(KINDS, SOURCES).blocks(path):
        for row in block.columns.to_pylist():
            values = None if row["_torn"] else [row[name] for name in KINDS]
            rows.append((row["_line"], values, row["_wrong"], row["_value"]))
    return rows


def _one_by_one(lines: list[bytes]) -> list[tuple[int, Any, str | None, str | None]]:
    cells = JsonCells(KINDS, SOURCES)
    return [
        (number, *cells.parse_line(line))
        for number, line in enumerate(lines, 1)
        if line.strip(b" \t\r")
    ]


def _write(folder: Path, lines: list[bytes]) -> Path:
    path = folder / "operations.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


STRANGE = [
    json.dumps(OPERATION).encode()[:-1] + more
    for more in (
        b', "more": NaN}',
        b', "more": -Infinity}',
        b', "more": Inf}',
        b', "more": [1,]}',
        b', "more": 01}',
        b', "more": ' + b"9" * 1_001 + b"}",
        b', "more": ' + b"[" * 997 + b"]" * 997 + b"}",
        b', "more": ' + b"[" * 998 + b"]" * 998 + b"}",
        b', "more": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b', "more": "\\ud800"}',
        b', "kind": "\\udc00"}',
        b', "kind": "\\ud83d\\ude00"}',
        b', "kind": "\\u0000"}',
        b', "kind": "twice"}',
        b', "broker": null}',
        b', "watch_keys": ["a", null]}',
        b', "watch_keys": [1]}',
        b', "more": "\t"}',
        b', "more": "\\x"}',
        b"}}",
        b"}{",
        b"} {}",
        b", }",
        b"/**/}",
    )
]


@pytest.mark.parametrize("line", [*(line for line, _ in LINES), *STRANGE])
def test_line_is_read_alike_alone_and_among_plain_ones(tmp_path: Path, line: bytes) -> None:
    plain = json.dumps(OPERATION).encode()
    for lines in ([line], [plain, line], [line, plain], [plain, line, plain]):
        assert _read(_write(tmp_path, lines)) == _one_by_one(lines)


@settings(max_examples=100, derandomize=True)
@given(st.lists(mangled, min_size=1, max_size=3))
def test_mangled_lines_are_read_as_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = _write(tmp_path_factory.mktemp("mangled"), lines)
    assert _read(path) == _one_by_one(lines)


def test_objects_and_lines_that_do_not_match_are_bad_rows(tmp_path: Path) -> None:
    lines = [b'{"broker": 1}{"broker": 2}', b'{"more": {}', b', "broker": 3}', b'{"a":[{}', b"{}]}"]
    for count in range(1, 6):
        rows = _read(_write(tmp_path, lines[:count]))
        assert rows == [(number, None, None, None) for number in range(1, count + 1)]


@pytest.mark.parametrize("block_bytes", [1, 7, 100, 5_000])
def test_blocks_may_end_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    DirtyTraces(3).write_json(tmp_path / "run", 30)
    (path,) = (tmp_path / "run").glob("operations.jsonl*")
    whole = _read(path)
    assert len(whole) > 20
    monkeypatch.setattr(json_lines, "_BLOCK_BYTES", block_bytes)
    assert _read(path) == whole


def test_plain_lines_are_not_taken_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps({**OPERATION, "more": {"deep": [n, 1.5]}}).encode() for n in range(1_000)]
    lines[500] += b" \r"
    wanted = _one_by_one(lines)

    def refused(*_: object) -> None:
        raise AssertionError("a plain line was taken alone")

    monkeypatch.setattr(JsonCells, "parse_line", refused)
    assert _read(_write(tmp_path, lines)) == wanted
