"""The recordings: one file for each program and version of Kafka, in `answers/VERSION/PROGRAM`."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from pathlib import Path

from tests.recorded.recorder import Step

NEWEST = "4.3.1"
"""The version that ours is to be like."""

VERSIONS = (NEWEST, "4.0.1")
_FOLDER = Path(__file__).parent / "answers"


def _file(version: str, program: str) -> Path:
    return _FOLDER / version / f"{program}.json.xz"


def write_recording(version: str, program: str, steps: Sequence[Step]) -> None:
    """Store what a version of Kafka was answered."""
    file = _file(version, program)
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(steps, separators=(",", ":"))
    file.write_bytes(lzma.compress(text.encode(), preset=9))


def read_recording(version: str, program: str) -> list[Step]:
    """Return the steps of a program, as a version of Kafka was asked them.

    Raises:
        FileNotFoundError: the program was not recorded.
    """
    return [
        Step(*step) for step in json.loads(lzma.decompress(_file(version, program).read_bytes()))
    ]


def has_recording(version: str, program: str) -> bool:
    """Whether a program was recorded."""
    return _file(version, program).exists()
