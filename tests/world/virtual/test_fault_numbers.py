"""Numbers of faults on the command line and in reports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.virtual.planned_faults import format_numbers, parse_numbers


@given(st.sets(st.integers(0, 40) | st.integers(0, 999_999)))
def test_printed_command_can_be_run(numbers: set[int]) -> None:
    assert parse_numbers(format_numbers(numbers)) == sorted(numbers)


def test_consecutive_fault_numbers_are_one_range() -> None:
    assert format_numbers([7, 1, 0, 2, 2]) == "0-2,7"
    assert format_numbers([]) == ""
    assert parse_numbers(" 4 - 5, 1 ") == [1, 4, 5]
    assert parse_numbers("3,2-4") == [2, 3, 4]


@pytest.mark.parametrize("text", ["x", "3,", "1-", "-1", "1-2-3", "½", "99999999999", "0..3"])
def test_invalid_list_of_faults_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the numbers of faults are given as 3,7 or 0-2,7"):
        parse_numbers(text)


def test_invalid_range_is_refused() -> None:
    for text in ("5-3", "0-1000000"):
        with pytest.raises(ValueError, match="a range of faults goes up, to below 1,000,000"):
            parse_numbers(text)
