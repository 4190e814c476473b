"""Builds distributions from a copy: the tree may be read-only, and stays as it is.

All the work is setuptools'. A package index shows the README, and has none of the files that it
links to. The copy has one for it, whose links lead to the repository at
``PURGATORY_REPOSITORY``, which the distribution then names as well; if that is not set, they are
plain text. An editable installation is made in place, since it is one of this tree.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta

get_requires_for_build_editable = build_meta.get_requires_for_build_editable
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable
build_editable = build_meta.build_editable

_FOR_AN_INDEX = "README-for-an-index.md"
_COPIED = (
    *("pyproject.toml", "README.md", _FOR_AN_INDEX, "LICENSE", "MANIFEST.in", "Makefile"),
    "constraints.txt",
    *(".gitignore", ".ci", ".github", "docs", "purgatory", "tests", "timer"),
)
_MADE = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so", "*.c", "*.egg-info")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)\s]+)\)")


def get_requires_for_build_wheel(*settings: Any) -> list[str]:
    """Return what building a wheel needs (PEP 517). To find out, setuptools writes as well."""
    with _copy_of(Path.cwd()):
        needed: list[str] = build_meta.get_requires_for_build_wheel(*settings)
    return needed


def get_requires_for_build_sdist(*settings: Any) -> list[str]:
    """Return what building a source distribution needs (PEP 517)."""
    with _copy_of(Path.cwd()):
        needed: list[str] = build_meta.get_requires_for_build_sdist(*settings)
    return needed


def build_wheel(wheel_directory: str, *settings: Any) -> str:
    """Build a wheel into a folder, and return its name (PEP 517)."""
    return _in_a_copy(build_meta.build_wheel, wheel_directory, *settings)


def build_sdist(sdist_directory: str, *settings: Any) -> str:
    """Build a source distribution into a folder, and return its name (PEP 517)."""
    return _in_a_copy(build_meta.build_sdist, sdist_directory, *settings)


def prepare_metadata_for_build_wheel(metadata_directory: str, *settings: Any) -> str:
    """Write the wheel's metadata into a folder, and return their name there (PEP 517)."""
    return _in_a_copy(build_meta.prepare_metadata_for_build_wheel, metadata_directory, *settings)


def _in_a_copy(build: Callable[..., str], target: str, *settings: Any) -> str:
    target = str(Path(target).absolute())
    with _copy_of(Path.cwd()):
        return build(target, *settings)


@contextmanager
def _copy_of(tree: Path) -> Iterator[None]:
    """Work in a copy of ``tree``, as far as it belongs to a distribution."""
    with tempfile.TemporaryDirectory(prefix="purgatory-build-") as temporary:
        copy = Path(temporary, "tree")
        copy.mkdir()
        for name in _COPIED:
            path = tree / name
            if path.is_dir():
                shutil.copytree(path, copy / name, ignore=_MADE, copy_function=_copy_writable)
            elif path.exists():
                _copy_writable(path, copy / name)
        for folder in (copy, *(path for path in copy.rglob("*") if path.is_dir())):
            folder.chmod(0o755)
        if not (copy / _FOR_AN_INDEX).exists():  # a source distribution brings it
            _prepare_for_an_index(copy, os.environ.get("PURGATORY_REPOSITORY", "").rstrip("/"))
        os.chdir(copy)
        try:
            yield
        finally:
            os.chdir(tree)


def _copy_writable(source: str | Path, target: str | Path) -> str:
    """Copy a file; what is run stays so, and of a read-only one the copy can be written."""
    shutil.copyfile(source, target)
    os.chmod(target, 0o755 if os.access(source, os.X_OK) else 0o644)
    return str(target)


def _prepare_for_an_index(tree: Path, repository: str) -> None:
    text = index_readme((tree / "README.md").read_text(), repository)
    (tree / _FOR_AN_INDEX).write_text(text)
    project = tree / "pyproject.toml"
    settings = project.read_text().replace('readme = "README.md"', f'readme = "{_FOR_AN_INDEX}"')
    project.write_text(with_urls(settings, repository) if repository else settings)


def index_readme(text: str, repository: str) -> str:
    """Return a README whose links lead into ``repository``, or without one are plain text."""

    def absolute(link: re.Match[str]) -> str:
        bang, words, place = link.groups()
        if not repository:
            return f"*{words}*" if bang else words
        return f"{bang}[{words}]({repository}/{'raw' if bang else 'blob'}/main/{place})"

    return _LINK.sub(absolute, text)


def with_urls(project: str, repository: str) -> str:
    """Return ``pyproject.toml`` with the addresses of the project in ``repository``."""
    places = {
        "Repository": "",
        "Documentation": "/blob/main/docs/index.md",
        "Changelog": "/blob/main/docs/changelog.md",
        "Issues": "/issues",
        "Security": "/security/policy",
    }
    lines = [f'{name} = "{repository}{place}"' for name, place in places.items()]
    return "\n".join([project.rstrip("\n"), "", "[project.urls]", *lines, ""])
