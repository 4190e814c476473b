"""The documents: their Python runs, their links lead somewhere, they show what is printed."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.conftest import RunCommand
from tests.documents.documents import (
    DOCUMENTS,
    README,
    ROOT,
    imported_by,
    links_of,
    python_of,
    run_python_of,
)

# Run by tests/pipeline and tests/pipeline/source, in their sessions.
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


@pytest.mark.parametrize("document", WITH_PYTHON, ids=lambda path: path.name)
def test_the_python_runs_from_top_to_bottom(document: Path) -> None:
    run_python_of(document)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_the_python_imports_of_this_project_is_there(document: Path) -> None:
    """Also where it is run only beside Spark or a cluster, or not at all."""
    missing = [
        f"{module}.{name}"
        for module, _, name in (full.rpartition(".") for full in sorted(imported_by(document)))
        if not hasattr(import_module(module), name) and find_spec(f"{module}.{name}") is None
    ]
    assert missing == []


def test_the_readme_embeds_a_purgatory_in_20_lines() -> None:
    threaded, on_a_loop = python_of(README).split("import asyncio\n")
    assert len([line for line in threaded.splitlines() if line.strip()]) <= 20
    assert len([line for line in on_a_loop.splitlines() if line.strip()]) <= 10
    printed = run_python_of(README).splitlines()
    shown = re.search(r"^```\n(2 of 2.*?)\n```$", README.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert [line for line in printed if " of " in line] == shown[1].splitlines()
    assert printed.count("['hello']") == 1


def test_the_readme_shows_what_simulate_prints(run_command: RunCommand) -> None:
    shown = re.search(
        r"^```\n(slow-follower, .*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL
    )
    assert shown is not None
    ran = run_command("simulate", "slow-follower", "--quiet")
    assert ran.status == 0
    printed = "\n".join(line.rstrip() for line in ran.out.splitlines())
    assert shown[1] in printed


def test_getting_started_shows_what_its_timer_does() -> None:
    assert "20 ms later" in run_python_of(ROOT / "docs" / "getting-started.md")


@pytest.mark.parametrize("document", WITH_LINKS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    missing = [target for target in links_of(document) if not (document.parent / target).exists()]
    assert missing == []


def test_getting_started_has_every_extra_for_users() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "docs" / "getting-started.md").read_text()
    told = {extra for extra in project["optional-dependencies"] if f"\n| `{extra}` |" in text}
    assert project["optional-dependencies"].keys() - told == {
        *("core-tests", "dev", "docs", "release")  # of those who work on it
    }


def test_every_document_is_linked_from_the_readme() -> None:
    readme = README.read_text()
    for document in DOCUMENTS[1:]:
        assert f"](docs/{document.name})" in readme
