"""docs/kafka-model.md: its program prints what it says, and the tests that it names exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "kafka-model.md").read_text()


def test_the_program_prints_what_the_document_shows() -> None:
    program = re.search(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    shown = re.search(r"^It prints:\n\n```\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert program is not None and shown is not None

    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program[1]],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
    )

    assert ran.stderr == ""
    assert ran.stdout == shown[1]


def test_every_test_that_the_document_names_exists() -> None:
    named = named_tests(DOCUMENT)
    assert len(named) > 30

    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"^(def {name}\(|{name} = )", (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert missing == []


def test_every_lettered_case_is_in_the_document() -> None:
    for name in ("test_delayed_produce.py", "test_delayed_fetch.py"):
        cases = re.findall(
            r"^def (test_case_[a-z]\d?)_", (ROOT / "tests/kafka" / name).read_text(), re.M
        )
        assert len(set(cases)) == {"test_delayed_produce.py": 4, "test_delayed_fetch.py": 8}[name]
        for case in cases:
            assert f"`::{case}_" in DOCUMENT


def named_tests(document: str) -> list[tuple[str, str]]:
    """(path, name) of each test: in a table, a short name belongs to the path in its head."""
    found = []
    folder = ""
    for line in document.splitlines():
        head = re.search(r"\| test, in `(tests/[\w/.]+)` \|", line)
        if head is not None:
            folder = head[1]
            continue
        for path, name in re.findall(r"`([\w/.]*)::(\w+)`", line):
            found.append((path if path.startswith("tests/") else f"{folder}{path}", name))
    return found
