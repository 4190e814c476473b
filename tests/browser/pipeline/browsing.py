"""A headless Chromium that is driven through the DevTools protocol, over a pipe of its own."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """One tab, and the events of its use: its console, its requests, its errors."""

    def __init__(self, commands: BinaryIO, answers: BinaryIO) -> None:
        self.console: list[str] = []
        self.requests: list[str] = []
        self._commands, self._answers = commands, answers
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, page: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a page afresh on a screen of that size, and wait until it is drawn."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self.load(page.as_uri())
        # Two frames after loading, everything that plots itself has done so.
        self.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def load(self, url: str) -> None:
        """Go to a page, and wait until it is loaded."""
        self._loaded = False
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._read()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Write the whole page as a picture."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def print_pdf(self) -> bytes:
        """The page as it would be printed, with its headings as the document's outline."""
        answer = self.call(
            "Page.printToPDF",
            printBackground=False,
            generateTaggedPDF=True,
            generateDocumentOutline=True,
        )
        return base64.b64decode(answer["data"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The browser's response to one command."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            text += byte
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, parameters: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event in {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}:
            self.console.append(json.dumps(parameters))
        elif event == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])


@contextmanager
def headless_browser(profile: Path) -> Iterator[Browser]:
    """A browser that is ended with the `with` block; skips the test where none is installed.

    In continuous integration, where CI is true, a missing browser fails the test.
    """
    program = next((path for path in map(shutil.which, _NAMES) if path), None)
    if program is None:
        reason = f"no browser is installed (one of {', '.join(_NAMES)}; Debian: chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    commands_in, commands_out = os.pipe()
    answers_in, answers_out = os.pipe()
    # The browser reads its commands from descriptor 3 and answers on 4: a shell puts them there.
    script = f'exec "$@" 3<&{commands_in} 4>&{answers_out}'
    process = subprocess.Popen(
        [
            "bash",
            "-c",
            script,
            "bash",
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
        ],
        pass_fds=(commands_in, answers_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands_in)
    os.close(answers_out)
    with os.fdopen(commands_out, "wb") as commands, os.fdopen(answers_in, "rb") as answers:
        try:
            yield Browser(commands, answers)
        finally:
            process.terminate()
            process.wait(30)
