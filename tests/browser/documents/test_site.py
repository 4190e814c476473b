"""The site of the documents: built without a warning, whole, and searchable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.unit.documents.documents import DOCUMENTS, ROOT, imported_by

CONFIG = ROOT / "docs/site/mkdocs.yml"
INTERNAL = {"purgatory.cluster.storage"}
"""Packages whose names are for the folder above them; documents name what else uses of theirs."""
PUBLIC = sorted(
    module
    for path in (*ROOT.glob("timer/**/__init__.py"), *ROOT.glob("purgatory/**/__init__.py"))
    if "\n__all__ = " in path.read_text()
    and (module := ".".join(path.parent.relative_to(ROOT).parts)) not in INTERNAL
)
FIXTURES = (
    "kafka_cluster",
    "kafka_cluster_config",
    "kafka_cluster_recorded",
    "kafka_name",
    "kafka_proxy",
    "kafka_session_cluster",
    "kafka_session_config",
    "world",
)


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {""}
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a":
            self.links.append(values.get("href", ""))
        elif tag in ("script", "img"):
            self.loaded.append(values.get("src", ""))
        elif tag == "link" and values.get("rel") in ("stylesheet", "icon", "preconnect"):
            self.loaded.append(values.get("href", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(CONFIG)]
    built = subprocess.run(
        [*command, "--site-dir", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        timeout=280,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    # The page that a server shows for what is not there links from the server's root.
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_document_is_in_the_site(site: Path) -> None:
    for document in ROOT.glob("docs/*.md"):
        assert (site / document.with_suffix(".html").name).exists(), document


def test_each_link_leads_to_an_existing_page_and_anchor(
    pages: dict[Path, Page], site: Path
) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or not link:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(parts.fragment)
            if not target.exists() or (target in pages and anchor not in pages[target].anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


def test_site_loads_nothing_from_elsewhere(pages: dict[Path, Page]) -> None:
    assert [
        address for page in pages.values() for address in page.loaded if urlsplit(address).netloc
    ] == []


@pytest.fixture(scope="module")
def listed(site: Path) -> set[str]:
    """The names that the reference has."""
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_reference_has_all_public_names(module: str, listed: set[str]) -> None:
    public = import_module(module).__all__
    assert [name for name in public if f"{module}.{name}" not in listed] == []


@pytest.mark.parametrize(
    "name",
    [
        *("try_complete_else_watch", "check_and_complete", "advance", "close"),
        *("DelayedOperation.force_complete", "DelayedOperation.on_expiration"),
        *("DelayedOperation.cancel", "DelayedOperation.call_when_completed"),
    ],
)
def test_the_reference_has_inherited_methods(name: str, listed: set[str]) -> None:
    path = name if "." in name else f"DelayedOperationPurgatory.{name}"
    assert f"purgatory.{path}" in listed


def test_reference_has_the_pytest_plugin(listed: set[str]) -> None:
    assert [name for name in FIXTURES if f"purgatory.pytest_plugin.{name}" not in listed] == []


def test_reference_has_all_imports_of_documents(listed: set[str]) -> None:
    imported = {name for document in DOCUMENTS for name in imported_by(document)}
    assert len(imported) > 50
    assert sorted(imported - listed) == []


def test_site_search_finds_a_name_and_a_word(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text())
    text = " ".join(f"{entry['title']} {entry['text']}" for entry in index["docs"])
    for word in ("try_complete_else_watch", "close_on_signals", "purgatory", "acks=all"):
        assert word in text


@pytest.mark.browser
def test_site_search_works_from_a_folder(site: Path) -> None:
    from tests.browser.view.chromium import chromium

    wrong: list[str] = []
    with chromium() as browser:
        for page in ("index.html", "reference/timer.html"):
            shown = browser.new_page(viewport={"width": 1_280, "height": 900})
            shown.on("console", lambda message: wrong.append(message.text))
            shown.on("pageerror", lambda error: wrong.append(str(error)))
            shown.goto((site / page).as_uri())
            typed = shown.locator("input.md-search__input")
            typed.click()
            typed.press_sequentially("check_and_complete")
            shown.locator(".md-search-result__item").first.wait_for(state="attached")
            assert "matching documents" in shown.locator(".md-search-result__meta").inner_text()
            assert wrong == []
