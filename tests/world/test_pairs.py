"""Each pair of features meets in a cluster of a virtual world, and its invariants hold."""

from __future__ import annotations

import os
import time
from binascii import crc32
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import cast

import pytest

from tests.world.history import History
from tests.world.invariants import Broken, broken_invariants
from tests.world.pairwise import Row, combinations_of, cover, possible_combinations
from tests.world.row_audit import audit_rows
from tests.world.row_world import DELAY_S, SHUFFLED_S, run_row
from tests.world.rows import DIMENSIONS, EXCLUSIONS, excluded, parse_row, row_id

_SECONDS_PER_DAY = 86_400
_SEEDS = 1_000_000
_PARTS = 16


class RowError(Exception):
    """A row could not be run to its end: a client or a broker raised."""


_AUDIT = "audit has no violation"


ROWS = pytest.mark.parametrize(
    "row", [pytest.param(row, id=row_id(row)) for row in cover(DIMENSIONS, excluded)]
)


def _command(row: Row) -> str:
    return f"python -m tests.world.run_row {row_id(row)} {_seed(row)} 3"


def _seed(row: Row) -> int:
    return crc32(row_id(row).encode()) % _SEEDS


def _check(broken: Sequence[Broken], seed: int, command: str) -> None:
    __tracebackhide__ = True
    if broken:
        first, *others = broken
        more = "".join(f"\n{other}" for other in others)
        pytest.fail(f"{first} [seed {seed}: {command}]{more}", pytrace=False)


def _run(row: Row, seed: int, command: str, delay_s: float) -> History:
    try:
        return run_row(row, seed, delay_s)
    except Exception as error:
        raise RowError(f"{error!r} ended the row [seed {seed}: {command}]") from error


_HISTORIES: dict[str, History] = {}


def _history(row: Row) -> History:
    """Return the history of a row, which is run once for both tests."""
    name = row_id(row)
    if name not in _HISTORIES:
        _HISTORIES[name] = _run(row, _seed(row), _command(row), DELAY_S)
    return _HISTORIES[name]


@pytest.mark.xdist_group("pairs")
@ROWS
def test_cluster_keeps_its_invariants(row: Row) -> None:
    broken = [one for one in broken_invariants(_history(row)) if one.invariant != _AUDIT]
    _check(broken, _seed(row), _command(row))


@pytest.fixture(scope="module")
def audited(request: pytest.FixtureRequest) -> Mapping[str, History]:
    """The histories of the rows whose audits were selected: one audit for all of them."""
    rows: list[Row] = [
        cast(Row, item.callspec.params["row"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == _AUDIT_TEST
    ]
    histories = {}
    for row in rows:
        with suppress(RowError):  # the row's own tests tell of it
            histories[row_id(row)] = _history(row)
    audit_rows(histories)
    return histories


@pytest.mark.xdist_group("pairs")
@ROWS
def test_audit_finds_no_violation(row: Row, audited: Mapping[str, History]) -> None:
    history = audited.get(row_id(row)) or _history(row)
    broken = [one for one in broken_invariants(history) if one.invariant == _AUDIT]
    _check(broken, _seed(row), _command(row))


_AUDIT_TEST = test_audit_finds_no_violation.__name__


_DELAYED_ROWS = {row_id(row): row for row in cover(DIMENSIONS, excluded)[::8]}


@pytest.mark.parametrize("name", _DELAYED_ROWS)
def test_cluster_behind_keeps_its_invariants(name: str) -> None:
    row = _DELAYED_ROWS[name]
    history = run_row(row, _seed(row), realistic_delays=True)
    broken = [one for one in broken_invariants(history) if one.invariant != _AUDIT]
    _check(broken, _seed(row), f"{_command(row)} realistic")


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(_PARTS))
def test_cluster_keeps_invariants_in_triples(part: int) -> None:
    """A part of the rows that cover all triples, with seeds of the day, or those of ROW_SEED."""
    base = int(os.environ.get("ROW_SEED") or time.time() // _SECONDS_PER_DAY)
    rows = cover(DIMENSIONS, excluded, 3)[part::_PARTS]
    seeds = [(base + _seed(row)) % _SEEDS for row in rows]
    commands = [
        f"python -m tests.world.run_row {row_id(row)} {seed} {SHUFFLED_S:g}"
        for row, seed in zip(rows, seeds, strict=True)
    ]
    runs = list(zip(rows, seeds, commands, strict=True))
    histories = {row_id(row): _run(row, seed, command, SHUFFLED_S) for row, seed, command in runs}
    audit_rows(histories)
    for row, seed, command in runs:
        _check(broken_invariants(histories[row_id(row)]), seed, command)


def test_rows_cover_all_possible_pairs() -> None:
    rows = cover(DIMENSIONS, excluded)
    covered = {pair for row in rows for pair in combinations_of(row, 2)}
    assert covered == set(possible_combinations(DIMENSIONS, excluded))
    assert [row for row in rows if excluded(row)] == []
    assert len(rows) <= 58
    assert cover(DIMENSIONS, excluded) == rows


def test_excluded_pairs_are_all_named() -> None:
    names = list(DIMENSIONS)
    of_two = {
        frozenset([(one, a), (other, b)])
        for place, one in enumerate(names)
        for other in names[place + 1 :]
        for a in DIMENSIONS[one]
        for b in DIMENSIONS[other]
    }
    missing = of_two - set(possible_combinations(DIMENSIONS, excluded))
    assert all(excluded(dict(pair)) for pair in missing)
    assert all(exclusion.reason for exclusion in EXCLUSIONS)


def test_row_names_are_read_back() -> None:
    for row in cover(DIMENSIONS, excluded):
        assert parse_row(row_id(row)) == row
    with pytest.raises(ValueError, match="fault 'kil'"):
        parse_row("none/old/plain/kil/memory/unchanged/none/none/none")
