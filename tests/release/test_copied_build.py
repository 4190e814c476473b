"""The sources of a distribution: a README that an index can show, the project's addresses."""

from __future__ import annotations

import re
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest

from tests.unit.documents.documents import README, ROOT

REPOSITORY = "https://example.org/purgatory"


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = spec_from_file_location("copied_build", ROOT / ".ci/copied_build.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def addresses(text: str) -> list[str]:
    """Return the targets of a Markdown text's links."""
    return re.findall(r"\]\(([^)\s]+)\)", text)


def test_readme_on_an_index_has_no_dead_links(build: ModuleType) -> None:
    text = build.index_readme(README.read_text(), "")
    assert [one for one in addresses(text) if not urlsplit(one).netloc] == []
    for words in ("Getting started", "asyncio.Condition", "Requests enter a purgatory"):
        assert words in text


def test_with_a_repository_every_link_leads_to_a_file_in_it(build: ModuleType) -> None:
    text = build.index_readme(README.read_text(), REPOSITORY)
    before, after = addresses(README.read_text()), addresses(text)
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        kind, _, path = new.removeprefix(f"{REPOSITORY}/").partition("/main/")
        assert kind in ("blob", "raw") and path == old
        assert (ROOT / path.partition("#")[0]).exists()


def test_the_metadata_name_the_repository(build: ModuleType) -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert "urls" not in tomllib.loads(project)["project"]
    urls = tomllib.loads(build.with_urls(project, REPOSITORY))["project"]["urls"]
    assert urls["Repository"] == REPOSITORY
    assert urls["Changelog"] == f"{REPOSITORY}/blob/main/docs/changelog.md"


def test_copied_build_has_only_distributed_files_all_writable(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with build._copy_of(ROOT):
        here = Path.cwd()
        assert here != ROOT
        assert "README-for-an-index.md" in (here / "pyproject.toml").read_text()
        assert (here / "README.md").read_text() == README.read_text()
        assert not list(here.rglob("*.so")) and not (here / ".venv").exists()
        (here / "purgatory/core/written.c").write_text("")
    assert Path.cwd() == ROOT
    assert not (ROOT / "purgatory/core/written.c").exists()


@pytest.mark.parametrize("name", ["get_requires_for_build_wheel", "get_requires_for_build_sdist"])
def test_build_requirements_write_nothing_into_the_tree(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # The environment's own setuptools may be too old for the project's metadata: a build has
    # the one that pyproject.toml asks for. Files that it writes are in its working directory.
    def setuptools_own(*_: object) -> list[str]:
        assert (Path.cwd() / "pyproject.toml").exists() and Path.cwd() != ROOT
        (Path.cwd() / "purgatory/core/written.c").write_text("")
        return ["cython"]

    monkeypatch.setattr(build.build_meta, name, setuptools_own)
    monkeypatch.chdir(ROOT)
    assert getattr(build, name)() == ["cython"]
    assert Path.cwd() == ROOT
    assert not (ROOT / "purgatory/core/written.c").exists()
