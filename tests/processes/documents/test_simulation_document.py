"""`docs/simulation.md` agrees with the code: keys, options, columns, scenarios, programs.

The columns of its trace are in `docs/traces.md`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from purgatory.cli.simulate_command import simulate
from purgatory.kafka.faults import KINDS
from purgatory.simulation import load_scenario, parse_scenario
from purgatory.simulation.scenario import FAULT_KINDS
from purgatory.simulation.scenario_file import describe_scenario
from purgatory.trace.table_rows import ROWS
from purgatory.trace.trace_schema import SCHEMA_VERSION
from purgatory.trace.trace_writer import TraceWriter, arrow_schema
from tests.unit.documents.documents import run_python_of

DOCUMENT = Path(__file__).parents[3] / "docs" / "simulation.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
TRACES = DOCUMENT.with_name("traces.md").read_text(encoding="utf-8")


def rows_after(heading: str, text: str = TEXT) -> list[list[str]]:
    """The cells of the first table after a heading, without the backquotes around a whole cell."""
    after = text.split(f"{heading}\n", 1)[1]
    table = re.search(r"^\|.*?(?=\n\n)", after, re.MULTILINE | re.DOTALL)
    assert table is not None
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_documented_keys_are_those_of_the_model() -> None:
    begin = "<!-- reference: python -m purgatory.simulation.scenario_file -->\n\n"
    shown = TEXT.split(begin, 1)[1].split("<!-- end of reference -->", 1)[0]
    assert shown.strip() == describe_scenario().strip()


@pytest.mark.parametrize(
    "block", re.findall(r"^```toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
)
def test_each_scenario_shown_is_valid(block: str) -> None:
    loaded = parse_scenario(block, "simulation.md", DOCUMENT.parent)
    assert loaded.scenario.producers


@pytest.mark.parametrize("name", ROWS)
def test_each_column_of_the_trace_is_described(name: str) -> None:
    described = [
        (column, kind.rstrip("?"), kind.endswith("?"))
        for columns, kind, _ in rows_after(f"### Table `{name}`", TRACES)
        for column in re.findall(r"`(\w+)`", columns)
    ]
    names = {"list<element: string not null>": "list of string"}
    assert described == [
        (
            field.name,
            names.get(str(field.type), str(field.type)),
            field.nullable,
        )
        for field in arrow_schema(name)
    ]


def test_documented_version_is_the_one_written() -> None:
    (row,) = [row for row in rows_after("## The trace") if row[0] == "`schema_version`"]
    assert row[1].startswith(f"{SCHEMA_VERSION}:")
    assert f"## Schema, version {SCHEMA_VERSION}" in TRACES


def test_each_key_of_run_json_is_described(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "trace", run_id="test-1", scenario="test", seed=1, timer={})
    trace.abandon(5, "interrupted")
    written = json.loads((tmp_path / "trace" / "run.json").read_text())
    described = {
        name for row in rows_after("## The trace") for name in re.findall(r"`(\w+)`", row[0])
    }
    assert described == written.keys()


def test_each_described_option_is_one_of_the_command() -> None:
    options = {
        name
        for parameter in simulate.params
        for name in parameter.opts
        if name.startswith("--") and name != "--help"
    }
    described = set(
        re.findall(r"^- `(--[a-z-]+)", TEXT.partition("Exit status: ")[0], re.MULTILINE)
    )
    assert len(described) >= 2
    assert described - options == set()


def test_each_fault_is_described() -> None:
    assert {row[0].strip("`") for row in rows_after("## Faults")} == set(FAULT_KINDS)


def test_each_fault_outside_the_simulation_is_named() -> None:
    named = TEXT.partition("These are the cluster's alone:")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", named)) == set(KINDS) - set(FAULT_KINDS)


def test_documented_program_runs() -> None:
    last = run_python_of(DOCUMENT).splitlines()[-1]
    assert re.fullmatch(r"orders \d+ acknowledged, \d+ duplicates", last)


def test_scenarios_named_in_commands_ship() -> None:
    for name in re.findall(r"purgatory simulate ([a-z-]+)(?!\S)", TEXT):
        assert load_scenario(name).scenario.name == name
