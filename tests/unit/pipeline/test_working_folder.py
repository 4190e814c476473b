"""Folders for a job's temporary files: a signal at any step leaves none of them."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from purgatory.pipeline.signals import exit_on_signal, working_folder

pytestmark = pytest.mark.usefixtures("interruptible")

_ENDS = [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]


def _hit(function: Callable[..., Any], number: signal.Signals) -> Callable[..., Any]:
    """Return a function that does its work, and is then hit by a signal."""

    def hit(*arguments: Any, **more: Any) -> Any:
        try:
            return function(*arguments, **more)
        finally:
            signal.raise_signal(number)

    return hit


def test_working_folder_exists_in_its_block_only(tmp_path: Path) -> None:
    with working_folder("made-", tmp_path) as folder:
        assert folder.parent == tmp_path
        assert folder.name.startswith("made-")
        (folder / "in").mkdir()
        (folder / "in" / "file").write_text("text")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "raised"), _ENDS)
def test_signal_while_the_folder_is_created_leaves_no_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    raised: type[BaseException],
) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", _hit(tempfile.mkdtemp, number))
    reached = False
    with exit_on_signal(), pytest.raises(raised), working_folder("made-", tmp_path):
        reached = True
    assert not reached
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "raised"), _ENDS)
def test_signal_while_the_folder_is_removed_leaves_no_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    raised: type[BaseException],
) -> None:
    rmtree = tempfile._shutil.rmtree  # type: ignore[attr-defined]
    unlink = _hit(Path.unlink, number)

    def struck(path: Any, *arguments: Any, **more: Any) -> None:
        unlink(Path(path) / "a")
        rmtree(path, *arguments, **more)

    def leave_some() -> None:
        with working_folder("made-", tmp_path) as folder:
            for name in "ab":
                (folder / name).write_text("text")
            monkeypatch.setattr(tempfile._shutil, "rmtree", struck)  # type: ignore[attr-defined]

    with exit_on_signal(), pytest.raises(raised):
        leave_some()
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_missing_parent_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), working_folder("made-", tmp_path / "nowhere"):
        pass
