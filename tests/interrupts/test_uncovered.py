"""The instructions that no test interrupts are those that the docs list, with their number."""

from __future__ import annotations

import dis
import re
import sys
from pathlib import Path

import pytest

import timer
from purgatory import core
from tests.interrupts.instructions import code_of, uncovered

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("package", "page"), [(core, "purgatory.md"), (timer, "timer.md")])
def test_the_docs_list_the_functions_with_instructions_that_are_not_interrupted(
    package: object, page: str
) -> None:
    files = Path(package.__file__).parent.glob("*.py")  # type: ignore[attr-defined]
    codes = [code for file in files for code in code_of(file.read_text(encoding="utf-8"))]
    found = {code.co_qualname: len(uncovered(code)) for code in codes if uncovered(code)}
    text = (DOCS / page).read_text(encoding="utf-8")
    written = re.search(r"On Python 3\.11 these are ([\d,]+) of ([\d,]+)(.*?)[.;]\s", text, re.S)
    assert written is not None
    assert set(re.findall(r"`(.+?)`", written[3])) == set(found)
    if sys.version_info[:2] == (3, 11):
        instructions = sum(1 for code in codes for _ in dis.get_instructions(code))
        assert f"{sum(found.values()):,}" == written[1]
        assert abs(int(written[2].replace(",", "")) / instructions - 1) < 0.05
