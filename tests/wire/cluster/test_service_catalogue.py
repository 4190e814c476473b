"""The audit of typical services, correct and incorrect ones (`service_programs`).

Of a right one it says nothing, whatever is expected, with faults and without, whether or not it is
told what the service did. A wrong one is found, or the audit names the missing evidence and its
source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.wire.cluster import service_programs as programs
from tests.wire.cluster.service_programs import Run, faults, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KINDS = ("classic", "consumer", "share")
"""Of groups."""


class Wrong(NamedTuple):
    """The check that finds a wrong service."""

    anomaly: str
    expect: str
    by_effects: bool = True
    """Whether it takes what the service did to find it; else the broker's view is enough."""
    verdict: str = "violation"


SERVICES: Mapping[Callable[[Run], None], Wrong | None] = {
    programs.commit_before_work: Wrong("offset_without_result", "no-loss"),
    programs.retries_without_idempotence: Wrong("duplicate", "once", by_effects=False),
    programs.no_commit_on_revoke: Wrong("effect_duplicate", "once"),
    # Its producer got the refusal of the order; nobody sees that the service knew better.
    programs.outbox: Wrong("failed_send", "no-loss", by_effects=False, verdict="permitted"),
    programs.auto_commit_and_crash: Wrong("offset_without_result", "no-loss"),
    programs.commit_past_failure: Wrong("offset_without_result", "no-loss"),
    programs.rebalance_in_the_middle: None,
}
DOCUMENT = Path(__file__).parents[3] / "docs" / "testing.md"
EXPECTATIONS = ("once", "no-loss", "order")


def _name(service: Callable[[Run], None]) -> str:
    return service.__name__


@pytest.mark.parametrize(
    ("service", "kind", "with_faults", "by_effects"),
    [
        # Each pair of a service, a kind of group, calm or faults, and whether the audit is told
        # what the service did; by night three of them.
        pytest.param(
            *(service, kind, with_faults, row // 2 % 2 == with_faults),
            id=f"{_name(service)}-{kind}-{'faults' if with_faults else 'calm'}",
            marks=[] if (row + column + with_faults) % 2 else [pytest.mark.exhaustive],
        )
        for row, service in enumerate(SERVICES)
        for column, kind in enumerate(KINDS)
        for with_faults in (False, True)
    ],
)
def test_audit_finds_nothing_in_a_correct_service(
    service: Callable[[Run], None], kind: str, with_faults: bool, by_effects: bool
) -> None:
    with running(kind, is_right=True, with_faults=with_faults) as run:
        with faults(run):
            service(run)
        effects = run.effects if by_effects else None
        run.cluster.audit(expect=EXPECTATIONS, effects=effects).assert_no_violations()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("service", [one for one in SERVICES if SERVICES[one]], ids=_name)
def test_audit_finds_each_incorrect_service(service: Callable[[Run], None], kind: str) -> None:
    wrong = SERVICES[service]
    assert wrong is not None
    with running(kind, is_right=False) as run:
        service(run)
        if wrong.by_effects and kind == KINDS[0]:
            seen = run.cluster.audit(expect=[wrong.expect])
            assert seen.count(wrong.anomaly) == 0
            assert "no effects" in seen.unchecked[wrong.anomaly]
        effects = run.effects if wrong.by_effects else None
        seen = run.cluster.audit(expect=[wrong.expect], effects=effects)
        found = {(one.anomaly, one.verdict) for one in seen if one.count}
        assert (wrong.anomaly, wrong.verdict) in found, str(seen)


def test_document_names_how_each_incorrect_service_is_found() -> None:
    rows = re.findall(r"^\| .* \| `(\w+)`.* \| `(\w+)` \|$", DOCUMENT.read_text(), re.MULTILINE)
    named = {_name(service): wrong.anomaly for service, wrong in SERVICES.items() if wrong}
    assert {service: anomaly for anomaly, service in rows} == named
