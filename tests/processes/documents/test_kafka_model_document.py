"""docs/kafka-model.md: its program prints what it says, and every lettered case is there."""

from __future__ import annotations

import re

from tests.unit.documents.documents import ROOT, named_tests_of, run_python_of
from tests.wire.drivers.stories import STORIES

DOCUMENT = ROOT / "docs" / "kafka-model.md"


def test_program_prints_its_documented_output() -> None:
    shown = re.search(
        r"^The program prints:\n\n```\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL
    )
    assert shown is not None
    assert run_python_of(DOCUMENT) == shown[1]


def test_every_lettered_case_is_in_the_document() -> None:
    named = named_tests_of(DOCUMENT)
    assert len(named) > 30
    for name, count in {"test_delayed_produce.py": 4, "test_delayed_fetch.py": 8}.items():
        cases = re.findall(
            r"^def (test_case_[a-z]\d?)_",
            (ROOT / "tests/unit/kafka/replication" / name).read_text(),
            re.M,
        )
        assert len(set(cases)) == count
        for case in cases:
            assert any(test.startswith(f"{case}_") for _, test in named)


def test_the_number_of_stories_of_both_drivers_is_the_documents() -> None:
    section = DOCUMENT.read_text().partition("## Two drivers, the same decisions\n")[2]
    assert f" plays {len(STORIES)} stories" in section.partition("\n## ")[0]
