"""The code that runs a scenario, as part of its key."""

from __future__ import annotations

import ast
import zipfile
from pathlib import Path

import pytest

from purgatory.sweeps.plan import (
    MEASURES,
    PACKAGES,
    _files,
    code_digest,
    digest_of,
)
from purgatory.sweeps.run import write_package

ROOT = Path(__file__).parents[4]


def test_any_change_of_any_file_changes_the_digest(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "inner" / "b.py").write_text("y = 1")

    def digest() -> str:
        return digest_of(_files(tmp_path, "p"))

    first = digest()
    assert digest() == first
    (tmp_path / "notes.txt").write_text("no code")
    assert digest() == first
    (tmp_path / "inner" / "b.py").write_text("y = 2")
    second = digest()
    (tmp_path / "inner" / "b.py").rename(tmp_path / "inner" / "c.py")
    third = digest()
    (tmp_path / "a.py").write_text("x = 1y = 2")
    (tmp_path / "inner" / "c.py").write_text("")
    assert len({first, second, third, digest()}) == 4


def test_cluster_with_shipped_code_has_the_same_digest(tmp_path: Path) -> None:
    write_package(tmp_path / "project.zip")
    archive = zipfile.Path(tmp_path / "project.zip")
    files = [
        file
        for package in PACKAGES
        for file in _files(archive.joinpath(*package.split(".")), package)
    ]
    files.append((MEASURES, archive / "purgatory" / "sweeps" / MEASURES))
    assert digest_of(files) == code_digest()


@pytest.mark.parametrize("package", PACKAGES)
def test_code_digest_covers_all_imported_packages(package: str) -> None:
    for path in ROOT.joinpath(*package.split(".")).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if module is not None and module.partition(".")[0] in ("purgatory", "timer"):
                # Metrics count, another package reads recorded results, former names raise: they
                # decide nothing.
                known = (
                    *PACKAGES,
                    "purgatory.former_names",
                    "purgatory.metrics",
                    "purgatory.pipeline",
                    "purgatory.import_names",
                )
                assert module == "purgatory" or module.startswith(known), f"{path}: {module}"
