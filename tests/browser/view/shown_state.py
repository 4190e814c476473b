"""The state shown by a page, compared with a state as sent over the wire."""

from __future__ import annotations

from collections import Counter
from typing import Any

from playwright.sync_api import Page

from tests.browser.view.chromium import told, until

_NAMES = {"topics": "name", "groups": "name", "transactions": "id", "faults": "number"}


def in_order(state: dict[str, Any]) -> dict[str, Any]:
    """A state whose lists have one order."""
    for broker in state["brokers"]:
        broker["purgatories"].sort(key=lambda one: one["name"])
    state["operations"].sort()
    for part, name in _NAMES.items():
        state[part].sort(key=lambda one: one[name])
    return state


def assert_shows(page: Page, state: dict[str, Any]) -> None:
    """Assert that the page holds this state, and draws as many marks."""
    said = [(one["at_us"], one["text"], one["level"]) for one in state.pop("log", [])]
    lines = told(page, f"model.log.slice(-{len(said)})") if said else []
    assert [(one["atUs"], one["text"], one["level"]) for one in lines] == said
    drawn, there = in_order(told(page, "model.toState()")), in_order(state)
    # Part by part: a difference between two whole states is too long to read.
    for part in {**drawn, **there}:
        assert drawn[part] == there[part], (part, drawn[part], there[part])
    parked = Counter(str(one[1]) for one in state["operations"])
    expected = {str(broker["id"]): parked[str(broker["id"])] for broker in state["brokers"]}
    assert told(page, "model.marks") == expected
    until(lambda: told(page, "drawn") == expected)


def at(page: Page) -> int:
    """The moment that is shown."""
    return int(told(page, "Math.floor(model.atUs)"))
