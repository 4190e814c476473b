"""Runs aiokafka's own tests of its integration with Kafka in virtual time.

    git clone https://github.com/aio-libs/aiokafka
    python -m tests.suites.aiokafka_in_world aiokafka

The distribution on the package index has no tests, hence the folder of a checkout; the tests run
against the installed aiokafka. The output ends with pytest's closing line; the status is pytest's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.suites import aiokafka_fixtures

ROOT = Path(__file__).parents[2]
_FILES = (
    "admin",
    "client",
    "conn",
    "consumer",
    "coordinator",
    "fetcher",
    "message_accumulator",
    "pep492",
    "producer",
    "sender",
    "transactional_consumer",
    "transactional_producer",
)
_LEFT_OUT = {
    "test_ssl_consume": "needs certificates that a container makes",
    "test_producer_ssl": "needs certificates that a container makes",
    "test_create_consumer_no_running_loop": "makes an event loop of its own",
    "test_create_producer_no_running_loop": "makes an event loop of its own",
}


def main() -> int:
    """Copy the tests, and run them."""
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "tests" / "_testutil.py").is_file():
        print("usage: python -m tests.suites.aiokafka_in_world CHECKOUT_OF_AIOKAFKA")
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shutil.copytree(Path(sys.argv[1]) / "tests", folder / "tests")
        shutil.copy(aiokafka_fixtures.__file__, folder / "tests" / "conftest.py")
        (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    ssl\n")
        files = [f"tests/test_{name}.py" for name in _FILES]
        left_out = " and ".join(f"not {name}" for name in _LEFT_OUT)
        words = [
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:hypothesispytest",
            "-k",
            left_out,
            "--tb=short",
            *files,
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "pytest", *words]
        return subprocess.run(command, check=False, cwd=folder, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
