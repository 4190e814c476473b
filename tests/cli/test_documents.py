"""The documents: their Python runs, and their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import RunCommand

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def run_python_of(document: Path) -> str:
    """Run the Python blocks of ``document`` as one program, and return what it printed."""
    blocks = re.findall(r"^```python\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks, f"{document.name} has no block of Python"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_readme_embeds_a_purgatory_in_20_lines() -> None:
    readme = (ROOT / "README.md").read_text()
    block = re.search(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert block is not None
    lines = [line for line in block[1].splitlines() if line.strip()]
    assert len(lines) <= 20
    printed = run_python_of(ROOT / "README.md").splitlines()
    shown = re.search(r"^```\n(2 of 2.*?)\n```$", readme, re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert [line for line in printed if " of " in line] == shown[1].splitlines()


def test_the_readme_shows_what_simulate_prints(run_command: RunCommand) -> None:
    shown = re.search(
        r"^```\n(slow-follower, .*?)^```$",
        (ROOT / "README.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert shown is not None
    ran = run_command("simulate", "slow-follower", "--quiet")
    assert ran.status == 0
    printed = "\n".join(line.rstrip() for line in ran.out.splitlines())
    assert shown[1] in printed


def test_getting_started_runs_from_top_to_bottom() -> None:
    assert "20 ms later" in run_python_of(ROOT / "docs" / "getting-started.md")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert missing == []


def test_every_document_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for document in DOCUMENTS[1:]:
        assert f"](docs/{document.name})" in readme
