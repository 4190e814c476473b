"""The release's check finds superfluous and missing files of a wheel."""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.release.check import faults_of_wheel
from tests.unit.documents.documents import ROOT

NATIVE = [
    module["name"].replace(".", "/") + ".cpython-312-x86_64-linux-gnu.so"
    for module in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "ext-modules"
    ]
]
WHOLE = [
    "kafka_purgatory-0.1.0.dist-info/METADATA",
    "purgatory/py.typed",
    "timer/py.typed",
    *NATIVE,
]


def faults(folder: Path, names: list[str]) -> list[str]:
    path = folder / "some.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return list(faults_of_wheel(path))


def test_whole_wheel_has_no_faults(tmp_path: Path) -> None:
    assert len(NATIVE) > 5
    assert faults(tmp_path, WHOLE) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("tests/unit/core/test_core.py", "it has purgatory, tests, timer"),
        ("timer/native/core.c", "it has timer/native/core.c"),
    ],
)
def test_foreign_file_in_the_wheel_is_named(tmp_path: Path, more: str, said: str) -> None:
    assert faults(tmp_path, [*WHOLE, more]) == [said]


@pytest.mark.parametrize("lost", ["timer/py.typed", NATIVE[0]])
def test_missing_file_of_the_wheel_is_named(tmp_path: Path, lost: str) -> None:
    [said] = faults(tmp_path, [name for name in WHOLE if name != lost])
    assert said.startswith("it lacks ")
    assert lost.partition(".")[0].replace("/", ".") in said.replace("/", ".")
