"""The tutorial's tests end on a real Kafka as the document says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from purgatory.real_kafka import KafkaFiles
from tests.unit.documents.documents import python_of
from tests.world.virtual.pytest_run import run_pytest

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]

_TUTORIAL = Path(__file__).parents[3] / "docs" / "testing.md"


def test_first_tests_of_a_kafka_application_end_as_here(
    kafka_files: KafkaFiles, tmp_path: Path
) -> None:
    option = f"--kafka={kafka_files.jars}"
    status, said = run_pytest(tmp_path, option, text=python_of(_TUTORIAL))
    assert status == 1, said
    assert "1 failed, 3 passed" in said
    shown = re.findall(r"^(E   .*)$", _TUTORIAL.read_text(), re.MULTILINE)
    assert all(" ".join(line.split()) in " ".join(said.split()) for line in shown)
