"""docs/source.md: its Python runs, and it describes the real options and columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from purgatory.source import options as source_options
from purgatory.source.partition_reader import column_names

DOCUMENT = (Path(__file__).parents[4] / "docs" / "source.md").read_text(encoding="utf-8")


def _first_cells(section: str) -> list[str]:
    text = DOCUMENT.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    cells = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([\w.*]+)`", cell)]


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_example_prints_its_documented_output(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def shared_session(master: str) -> Iterator[SparkSession]:
        assert master == "local[2]"
        yield spark

    monkeypatch.setattr("purgatory.pipeline.engines.spark.session.spark_session", shared_session)
    found = re.search(r"^```python\n(.*?)^```\n\nprints\n\n```\n(.*?)^```$", DOCUMENT, re.M | re.S)
    assert found is not None
    program, shown = found.groups()
    lines: list[str] = []
    exec(
        compile(program, "source.md", "exec"),
        {"print": lambda *words: lines.append(" ".join(map(str, words)))},
    )
    assert lines == shown.splitlines()


def test_document_has_all_options() -> None:
    assert sorted(_first_cells("Options")) == sorted(
        [*source_options._NAMES, "kafka.bootstrap.servers", "kafka.*"]
    )


def test_document_has_all_columns() -> None:
    assert _first_cells("Columns") == column_names(include_headers=True)
