"""The check of a program's answers, which the tests beside it share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.recorded.programs.registry import PROGRAMS
from tests.recorded.recordings import VERSIONS, has_recording
from tests.recorded.replay import differences_from, replay_named
from tests.recorded.table import entries_of, judge

_SHOWN = 20


def programs_of(*files: str) -> Sequence[str]:
    """Return the names of the programs of some files."""
    return [name for name in PROGRAMS if name.split(".")[0] in files]


def check_answers(name: str) -> None:
    """Fail for a difference from a real Kafka without an entry, and for an entry without one."""
    __tracebackhide__ = True
    steps = replay_named(name)
    assert len(steps) > 1
    recorded = [version for version in VERSIONS if has_recording(version, name)]
    assert recorded, f"{name} was not recorded: make record"
    for version in recorded:
        verdict = judge(differences_from(name, steps, version), entries_of(name))
        lines = str(verdict).splitlines() if version == recorded[0] else []
        if lines:
            more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
            pytest.fail("\n".join([f"Kafka {version}", *lines[:_SHOWN], *more]), pytrace=False)
