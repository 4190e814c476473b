"""Classic groups, offsets and their expiry: answers are a real Kafka's, but for the table's."""

from __future__ import annotations

import pytest

from tests.world.recorded.answers import check_answers, programs_of


@pytest.mark.parametrize("program", programs_of("groups", "offsets", "expirations"))
def test_answers_are_those_of_a_real_kafka(program: str) -> None:
    check_answers(program)
