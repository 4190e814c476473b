"""``purgatory cluster --view`` opens the page that it serves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request


def test_the_page_is_opened_in_the_browser() -> None:
    words = ["cluster", "--brokers", "1", "--port", "0", "--control-port", "0", "--view"]
    with subprocess.Popen(
        [sys.executable, "-m", "purgatory", *words],
        stdout=subprocess.PIPE,
        env={**os.environ, "BROWSER": "echo opened %s"},
        text=True,
    ) as process:
        assert process.stdout is not None
        address = opened = ""
        for line in process.stdout:
            if line.startswith("view: "):
                address = line.removeprefix("view: ").strip()
            if line.startswith("opened "):
                opened = line.removeprefix("opened ").strip()
                break
        try:
            assert opened == address != ""
            with urllib.request.urlopen(opened) as answer:
                assert b"<html" in answer.read()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
