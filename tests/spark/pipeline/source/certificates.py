"""A certificate for brokers on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path) -> Path:
    """A certificate of this machine's loopback address, and its key, in one file."""
    if shutil.which("openssl") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("openssl is missing: install the package openssl")
        pytest.skip("openssl is not installed")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -keyout key.pem"
    )
    subprocess.run(
        [*command.split(), "-out", "cert.pem", "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return both
