"""Each pair of features meets in a cluster of a virtual world, and its invariants hold."""

from __future__ import annotations

import os
import time
from binascii import crc32

import pytest
from _pytest.mark import ParameterSet

from tests.world.invariants import broken_invariants
from tests.world.known_differences import KnownDifferenceError, known_differences
from tests.world.pairwise import Row, combinations_of, cover, possible_combinations
from tests.world.row_world import run_row
from tests.world.rows import DIMENSIONS, EXCLUSIONS, excluded, parse_row, row_id

_SECONDS_PER_DAY = 86_400
_SEEDS = 1_000_000


def _parameters(strength: int) -> list[ParameterSet]:
    """The rows, those marked that show a known difference."""
    parameters: list[ParameterSet] = []
    for row in cover(DIMENSIONS, excluded, strength):
        known = known_differences(row)
        reason = "; ".join(difference.name for difference in known)
        expected = pytest.mark.xfail(raises=KnownDifferenceError, strict=True, reason=reason)
        parameters.append(pytest.param(row, id=row_id(row), marks=[expected] if known else []))
    return parameters


def _check(row: Row, seed: int, command: str) -> None:
    """Run a row, and tell of what is broken and isn't known, or of what is known and isn't broken.

    Raises:
        KnownDifferenceError: the row broke what it is known to break.
    """
    __tracebackhide__ = True
    broken = broken_invariants(run_row(row, seed))
    known = known_differences(row)
    for one in broken:
        if not any(difference.explains(one) for difference in known):
            more = "".join(f"\n{other}" for other in broken if other is not one)
            pytest.fail(f"{one} [seed {seed}: {command}]{more}", pytrace=False)
    for difference in known:
        if difference.invariant not in {one.invariant for one in broken}:
            pytest.fail(f"no longer so: {difference.name} [seed {seed}: {command}]", pytrace=False)
    if known:
        raise KnownDifferenceError("; ".join(difference.name for difference in known))


@pytest.mark.parametrize("row", _parameters(2))
def test_cluster_keeps_its_invariants(row: Row) -> None:
    name = f"tests/world/test_pairs.py::test_cluster_keeps_its_invariants[{row_id(row)}]"
    _check(row, crc32(row_id(row).encode()) % _SEEDS, f"python -m pytest '{name}'")


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(8))
def test_cluster_keeps_its_invariants_in_triples(first: int) -> None:
    """Each eighth of the rows that cover all triples, with the seeds of the day or of ROW_SEED."""
    base = int(os.environ.get("ROW_SEED") or time.time() // _SECONDS_PER_DAY)
    for row in cover(DIMENSIONS, excluded, 3)[first::8]:
        seed = (base + crc32(row_id(row).encode())) % _SEEDS
        command = f"python -m tests.world.run_row '{row_id(row)}' {seed}"
        try:
            _check(row, seed, command)
        except KnownDifferenceError:
            continue


def test_rows_cover_all_possible_pairs() -> None:
    rows = cover(DIMENSIONS, excluded)
    covered = {pair for row in rows for pair in combinations_of(row, 2)}
    assert covered == set(possible_combinations(DIMENSIONS, excluded))
    assert [row for row in rows if excluded(row)] == []
    assert len(rows) <= 56
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
        parse_row("none/old/plain/kil/memory/unchanged/none/none")
