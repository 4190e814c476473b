"""The documents: their Python runs, their links are valid, they show the real output."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.processes.cli.conftest import RunCommand
from tests.unit.documents.documents import (
    DOCUMENTS,
    README,
    ROOT,
    imported_by,
    links_of,
    python_of,
    run_python_of,
)
from tests.world.virtual.pytest_run import run_pytest

# Run by tests/spark, in its session.
IN_A_SPARK_SESSION = {
    "audit.md",
    "occupancy.md",
    "pipeline.md",
    "source.md",
    "sweep.md",
    "traces.md",
    "waits.md",
}
WITH_LINKS = [
    *DOCUMENTS,
    *sorted(ROOT.glob(".github/*.md")),
    ROOT / "docs/monitoring/README.md",
    *sorted(ROOT.glob("docs/reference/*.md")),
]
WITH_PYTHON = [
    document
    for document in DOCUMENTS
    if python_of(document) and document.name not in IN_A_SPARK_SESSION
]


@pytest.mark.slow
@pytest.mark.parametrize("document", WITH_PYTHON, ids=lambda path: path.name)
def test_python_of_each_document_runs(document: Path) -> None:
    run_python_of(document)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_imports_in_documents_exist(document: Path) -> None:
    """Also where it is run only beside Spark or a cluster, or not at all."""
    missing = [
        f"{module}.{name}"
        for module, _, name in (full.rpartition(".") for full in sorted(imported_by(document)))
        if not hasattr(import_module(module), name) and find_spec(f"{module}.{name}") is None
    ]
    assert missing == []


def test_readme_is_short_and_shows_the_output_of_its_first_program() -> None:
    assert len(README.read_text().split()) <= 900
    assert len([line for line in python_of(README).splitlines() if line.strip()]) <= 12
    shown = README.read_text().partition("asyncio.run(main())\n```\n\n```\n")[2]
    assert run_python_of(README) == shown.partition("```")[0]


@pytest.mark.slow
def test_readme_shows_the_findings_of_its_audit(tmp_path: Path) -> None:
    readme = README.read_text()
    test, shown = re.findall(r"^```\n((?:def test_no|E   ).*?)^```$", readme, re.M | re.S)
    (tmp_path / "my_service.py").write_text(_SERVICE)
    status, said = run_pytest(tmp_path, text=f"import my_service\n\n\n{test}")
    assert status == 1
    said = re.sub(r"[0-9.]+ ms", "N ms", " ".join(said.split()))
    for part in re.split(r"\.\.\.,?", re.sub(r"[0-9.]+ ms", "N ms", shown)):
        assert " ".join(part.split()) in said


@pytest.mark.slow
def test_first_tests_of_a_kafka_application_end_as_documented(tmp_path: Path) -> None:
    document = ROOT / "docs" / "testing.md"
    status, said = run_pytest(tmp_path, text=python_of(document))
    assert status == 1
    assert "1 failed, 3 passed" in said
    shown = re.findall(r"^(E   .*)$", document.read_text(), re.MULTILINE)
    assert len(shown) == 3
    assert all(" ".join(line.split()) in " ".join(said.split()) for line in shown)


_SERVICE = """
from confluent_kafka import Consumer, Producer


def run_against(servers):
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    producer.produce("orders", "order 0", key="0")
    producer.flush()
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "billing", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    while not consumer.consume(1, timeout=1):
        pass
    consumer.close()
"""


def test_simulation_document_shows_the_output_of_simulate(run_command: RunCommand) -> None:
    text = (ROOT / "docs" / "simulation.md").read_text()
    shown = re.search(r"^```\n(slow-follower, .*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert shown is not None
    ran = run_command("simulate", "slow-follower", "--quiet")
    assert ran.status == 0
    printed = "\n".join(line.rstrip() for line in ran.out.splitlines())
    assert shown[1] in printed


@pytest.mark.parametrize("document", WITH_LINKS, ids=lambda path: path.name)
def test_links_between_documents_are_valid(document: Path) -> None:
    missing = [target for target in links_of(document) if not (document.parent / target).exists()]
    assert missing == []


def test_getting_started_has_every_extra_for_users() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "docs" / "getting-started.md").read_text()
    told = {extra for extra in project["optional-dependencies"] if f"\n| `{extra}` |" in text}
    assert project["optional-dependencies"].keys() - told == {
        *("core-tests", "dev", "docs", "release")  # of those who work on it
    }


def test_every_document_is_linked_from_the_index() -> None:
    """Or from the list of internals that it leads to."""
    lists = [ROOT / "docs" / name for name in ("index.md", "internals.md")]
    linked = {target for page in lists for target in links_of(page)} | {"index.md"}
    assert {document.name for document in DOCUMENTS[1:]} <= linked
