"""The promises in the documents: each names a test, and each test that is named exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.documents.documents import DOCUMENTS, ROOT, named_tests_of, names_in

DOCS = ROOT / "docs"


def rows_after(document: Path, head: str) -> list[str]:
    """Return the rows of the table whose head begins like this."""
    lines = document.read_text().splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.startswith(head))
    rows = lines[start + 2 :]
    return rows[: next((n for n, row in enumerate(rows) if not row.startswith("|")), len(rows))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_each_test_named_by_a_document_exists(document: Path) -> None:
    missing = [
        f"{path.relative_to(ROOT)}::{name}"
        for path, name in named_tests_of(document)
        if not path.is_file() or name not in names_in(path)
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("document", "head", "least"),
    [("purgatory.md", "| guarantee |", 10), ("timer.md", "| promise | test |", 10)],
)
def test_each_promise_in_a_table_names_a_test(document: str, head: str, least: int) -> None:
    rows = rows_after(DOCS / document, head)
    assert len(rows) >= least
    assert [row for row in rows if "::test_" not in row and "::Test" not in row] == []
