"""docs/traces.md: its Python prints its output, its mapping is valid, its reasons are complete."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.ingest import trace_files as trace_parts
from purgatory.pipeline.ingest import trace_set as read_trace_set
from purgatory.pipeline.ingest.column_mapping import parse_mapping
from purgatory.pipeline.ingest.quarantine_rules import OTHER_RUN, TORN, WRONG_TYPE
from purgatory.trace import trace_schema
from purgatory.trace.trace_schema import MISSING, NULLABLE, TABLES

DOCUMENT = (Path(__file__).parents[3] / "docs" / "traces.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


@pytest.mark.spark
def test_example_prints_its_documented_output(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def shared_session(master: str) -> Iterator[SparkSession]:
        assert master == "local[2]"
        yield spark

    lines: list[object] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("purgatory.pipeline.engines.spark.session.spark_session", shared_session)
    exec(compile(_blocks("python")[-1], "docs/traces.md", "exec"), {"print": lines.append})
    shown = DOCUMENT.rsplit("\nprints\n\n", 1)[1].split("\n\n", 1)[0]
    assert [str(line) for line in lines] == [line.strip() for line in shown.splitlines()]


def test_document_shows_a_valid_mapping() -> None:
    (block,) = _blocks("toml")
    mapping = parse_mapping(tomllib.loads(block))
    assert set(mapping) == {"operations", "reads", "sends"}


def test_document_has_all_columns_with_their_types() -> None:
    kinds = {"string": "string", "int32": "int", "int64": "bigint", "bool": "boolean"}
    for table, columns in TABLES.items():
        section = DOCUMENT.split(f"### Table `{table}`\n", 1)[1].split("\n#", 1)[0]
        rows = [
            (name, kind, null)
            for names, kind, null in re.findall(
                r"^\| (`[^|]*`) \| ([\w ]+)(\??) \|", section, re.MULTILINE
            )
            for name in re.findall(r"`(\w+)`", names)
        ]
        told = {name: kinds.get(kind, "array<string>") for name, kind, _ in rows}
        assert told == columns
        assert {name for name, _, null in rows if null} == NULLABLE[table]


def test_document_has_all_reasons() -> None:
    section = DOCUMENT.split("## Bad rows and files", 1)[1].split("\n## ", 1)[0]
    told = set(re.findall(r"^\| `([\w. ]+)` \|", section, re.MULTILINE))
    named = {rule.reason for rules in trace_schema.RULES.values() for rule in rules}
    named |= {TORN, WRONG_TYPE, MISSING, OTHER_RUN}
    for module in (read_trace_set, trace_parts):
        assert module.__file__ is not None
        source = Path(module.__file__).read_text(encoding="utf-8")
        named |= {reason for reason in told if f'"{reason}"' in source}
    assert told == named
