"""docs/virtual-tutorial.md: its bugs are found with its seeds, and corrected."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.unit.documents.documents import ROOT
from tests.world.virtual.pytest_run import WITHOUT_OTHERS

DOCUMENT = ROOT / "docs" / "virtual-tutorial.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")

_BLOCKS = re.findall(r'^```python title="(\w+\.py)"\n(.*?)^```$', TEXT, re.MULTILINE | re.DOTALL)
SERVICE, MENDED = (text for name, text in _BLOCKS if name == "billing.py")


def run_tutorial(folder: Path, service: str, *words: str) -> tuple[int, str]:
    """Write the document's files, with this service, and run pytest on them."""
    files = {**dict(_BLOCKS), "billing.py": service, "pytest.ini": "[pytest]\n"}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    left_out = ("PYTEST", "PYTHONHASHSEED")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(left_out)
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *WITHOUT_OTHERS, *words],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
def test_account_is_overdrawn_in_the_documented_order(tmp_path: Path) -> None:
    status, said = run_tutorial(tmp_path, SERVICE, "test_account.py")
    assert status == 1
    shown = TEXT.partition("    pytest test_account.py\n")[2].partition("## A service")[0]
    choices = re.findall(r"^ +\d.* choice .*$", shown, re.MULTILINE)
    assert len(choices) == 3
    if sys.version_info[:2] == (3, 11):
        assert all(choice in said for choice in choices)
        assert "spend() #3" in said
        assert re.findall(r"^repeat it: .*$", shown, re.MULTILINE)[0] in said
    account = tmp_path / "test_account.py"
    mended = account.read_text(encoding="utf-8").replace(
        "        self.balance = 100\n",
        "        self.balance = 100\n        self.lock = asyncio.Lock()\n",
    )
    mended = mended.replace(
        "            await account", "          async with account.lock:\n            await account"
    )
    for mark, expected in (
        ("schedules=2000", "1 passed"),
        ("exhaustive=3", "all schedules with at most 3 deviations passed: "),
    ):
        account.write_text(mended.replace("schedules=2000", mark), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *WITHOUT_OTHERS, "test_account.py"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert expected in done.stdout, done.stdout


@pytest.mark.slow
def test_counter_loses_its_count_as_documented(tmp_path: Path) -> None:
    status, said = run_tutorial(tmp_path, SERVICE, "test_counter.py")
    assert status == 1
    shown = TEXT.partition("## A host")[2].partition("## A service")[0]
    lines = re.findall(r"^.*(?: faults, |[0-9] s  ).*$", shown, re.MULTILINE)
    assert len(lines) == 4
    if sys.version_info[:2] == (3, 11):
        assert all(line in said for line in lines)
    counter = dict(_BLOCKS)["test_counter.py"]
    answer = '            writer.write(b"ok'
    mended = counter.replace(answer, f'            counter.disk.sync("count")\n{answer}')
    mended = mended.replace("seeds=50", "seeds=10")
    assert mended.count(".sync(") == 1
    (tmp_path / "test_mended.py").write_text(mended, encoding="utf-8")
    assert run_tutorial(tmp_path, SERVICE, "test_mended.py")[0] == 0


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_bug_is_found_and_printed_as_documented(tmp_path: Path) -> None:
    status, said = run_tutorial(tmp_path, SERVICE, "test_billing.py")
    assert status == 1
    assert "1 failed" in said
    if sys.version_info[:2] == (3, 11) and version("aiokafka") == "0.14.0":  # the document's
        [first, *_] = re.findall(r"^seed 1, .* digest \w+$", TEXT, re.MULTILINE)
        assert first in said
    [repeat, *_] = re.findall(r"^repeat it: .*$", said, re.MULTILINE)
    assert "test_every_order_is_charged --virtual-seed" in repeat
    for told in (
        r"^network: .*$",
        r"^faults: .*$",
        r"^ +\d  .* s  .*deploy\(\)$",
        r"^last events:$",
    ):
        assert re.search(told, said, re.MULTILINE)
        assert re.search(told, TEXT, re.MULTILINE)


@pytest.mark.slow
def test_corrected_service_passes_all_seeds(tmp_path: Path) -> None:
    status, said = run_tutorial(tmp_path, MENDED, "test_billing.py")
    assert status == 0
    assert "1 passed" in said


@pytest.mark.slow
def test_corrected_service_charges_twice_after_lost_responses(tmp_path: Path) -> None:
    status, said = run_tutorial(tmp_path, MENDED, "--virtual-no-shrink", "test_charged_once.py")
    assert status == 1
    assert "FAILED test_charged_once.py::test_no_order_is_charged_twice - " in said
    assert "1 failed" in said


def test_the_two_services_differ_in_the_order_of_two_lines() -> None:
    assert SERVICE != MENDED
    assert sorted(SERVICE.splitlines()) == sorted(MENDED.splitlines())
