"""``purgatory wheel`` on a terminal: drawn in place, by its pace or by keys."""

from __future__ import annotations

import importlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from purgatory.cli import wheel_player

_TIMEOUT_S = 60
_LEFT, _RIGHT = b"\x1b[D", b"\x1b[C"


class Played:
    """The command on a terminal of its own."""

    def __init__(self, terminal: int, process: subprocess.Popen[bytes]) -> None:
        self.terminal = terminal
        self.process = process
        self.seen = b""

    def press(self, key: bytes) -> None:
        os.write(self.terminal, key)

    def see(self, text: str) -> str:
        """Wait until ``text`` is written; return what was written up to it, and forget that."""
        until_s = time.monotonic() + _TIMEOUT_S
        while text.encode() not in self.seen:
            assert time.monotonic() < until_s, self.seen[-2_000:]
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.seen += os.read(self.terminal, 65_536)
        end = self.seen.index(text.encode()) + len(text)
        seen, self.seen = self.seen[:end], self.seen[end:]
        return seen.decode(errors="replace")


@contextmanager
def _played(*words: str) -> Iterator[Played]:
    mine, its = pty.openpty()
    termios.tcsetwinsize(its, (50, 120))
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", "purgatory", "wheel", *words],
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment,
        start_new_session=True,
    )
    try:
        yield Played(mine, process)
    finally:
        process.kill()
        process.wait()
        os.close(its)
        os.close(mine)


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_the_walk_is_drawn_in_place() -> None:
    with _played("--pause", "1ms") as played:
        seen = played.see("7 tasks ran in 7 advances of the clock")
        assert played.process.wait(_TIMEOUT_S) == 0
    # Each step but the first goes back over the one before.
    assert len(re.findall(r"\x1b\[\d*A", seen)) > 100
    assert [f"step {number} of 14" in _plain(seen) for number in range(15)] == [True] * 15


def test_keys_stop_it_and_step_forward_and_back() -> None:
    with _played("--pause", "1min") as played:
        played.see("step 0 of 14")
        played.press(b" ")
        played.see("space goes on")
        for key, step in ((_RIGHT, 1), (b"l", 2), (_LEFT, 1), (b"h", 0), (b"h", 0), (b"G", 14)):
            played.press(key)
            played.see(f"step {step} of 14")
        played.press(b"x?\x1b[Zg")
        played.see("step 0 of 14")
        played.press(b"q")
        played.see("7 tasks ran")
        assert played.process.wait(_TIMEOUT_S) == 0


def test_the_terminal_is_left_as_it_was_also_by_ctrl_c() -> None:
    with _played("--pause", "1min") as played:
        before = termios.tcgetattr(played.terminal)
        played.see("step 0 of 14")
        assert termios.tcgetattr(played.terminal) != before
        played.process.send_signal(signal.SIGINT)
        assert played.process.wait(_TIMEOUT_S) in (1, 130, -signal.SIGINT)
        assert termios.tcgetattr(played.terminal) == before


def test_a_ctrl_c_just_before_it_waits_for_a_key_counts() -> None:
    # What Python's handler does is taken away: as if the signal had interrupted nothing.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    mine, its = pty.openpty()
    try:
        with wheel_player._noticed_signals() as signals:
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                wheel_player._pressed(its, signals, _TIMEOUT_S)
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(mine)
        os.close(its)


def test_in_real_time_it_is_drawn_in_place_too() -> None:
    with _played("--follow", "--delays", "10ms", "--tick", "1ms", "--idle", "100ms") as played:
        assert "now +" in _plain(played.see("nothing was due for 100 ms"))


def _page(words: Sequence[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "BROWSER": "echo opened %s"}
    return subprocess.Popen(
        [sys.executable, "-m", "purgatory", "wheel", *words],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )


def test_the_page_is_served_until_it_is_left() -> None:
    process = _page(["--view"])
    assert process.stdout is not None
    address = process.stdout.readline().removeprefix("view: ").strip()
    assert process.stdout.readline() == f"opened {address}\n"
    with urllib.request.urlopen(address) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(address.replace("/wheel.html", "/wheel/walk")) as answer:
        assert answer.status == 200
    process.send_signal(signal.SIGINT)
    assert process.wait(_TIMEOUT_S) == 0
    process.stdout.close()


def test_where_there_are_no_terminal_settings_it_plays_without_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("termios", "tty"):
        monkeypatch.setitem(sys.modules, name, None)  # as on Windows: its import fails
    monkeypatch.delitem(sys.modules, wheel_player.__name__)
    monkeypatch.setattr(sys, "stdin", None)  # nobody may ask it anything
    player = importlib.import_module(wheel_player.__name__)
    with player._keys() as key:
        assert key(0) is None
