"""How many instructions no test interrupts is what the docs say."""

from __future__ import annotations

import dis
import re
import sys
from pathlib import Path

import pytest

import timer
from purgatory import core
from tests.proofs.interrupts.instructions import code_of, uncovered

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the docs count those of Python 3.11")
@pytest.mark.parametrize(("package", "page"), [(core, "purgatory.md"), (timer, "timer.md")])
def test_docs_have_the_number_of_uninterrupted_instructions(package: object, page: str) -> None:
    files = Path(package.__file__).parent.glob("*.py")  # type: ignore[attr-defined]
    codes = [code for file in files for code in code_of(file.read_text(encoding="utf-8"))]
    found = sum(len(uncovered(code)) for code in codes)
    text = (DOCS / page).read_text(encoding="utf-8")
    written = re.search(r"On Python 3\.11 these are ([\d,]+) of ([\d,]+)", text)
    assert written is not None
    instructions = sum(1 for code in codes for _ in dis.get_instructions(code))
    assert f"{found:,}" == written[1]
    assert abs(int(written[2].replace(",", "")) / instructions - 1) < 0.05, instructions
