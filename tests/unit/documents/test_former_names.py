"""Names of earlier releases raise with the new names in the text."""

from __future__ import annotations

import pytest

from purgatory.former_names import FORMER, FormerName
from purgatory.kafka.groups.group_manager import GroupManager


@pytest.mark.parametrize("former", FORMER)
def test_each_former_name_raises_with_its_new_name(former: str) -> None:
    module, _, name = former.rpartition(".")
    with pytest.raises(ImportError) as caught:
        exec(f"from {module} import {name}")
    assert str(caught.value) == f"{former} is gone; use {FORMER[former]}"


def test_a_former_name_in_a_module_survives_from_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMER, "purgatory.Delayed", "DelayedOperation")
    with pytest.raises(ImportError, match=r"^purgatory.Delayed is gone; use DelayedOperation$"):
        from purgatory import Delayed  # type: ignore[attr-defined]  # noqa: F401


def test_former_method_raises_and_hasattr_is_false() -> None:
    class Faults:
        lose_answers = FormerName("Faults.lose_responses")

    assert not hasattr(Faults(), "lose_answers")
    with pytest.raises(AttributeError, match=r"lose_answers is gone; use Faults.lose_responses$"):
        Faults().lose_answers  # noqa: B018


@pytest.mark.parametrize("former", ["join", "sync", "heartbeat", "leave"])
def test_former_request_of_group_manager_raises_with_its_new_place(former: str) -> None:
    with pytest.raises(AttributeError, match=rf"\.{former} is gone; use .*requests\.{former}$"):
        getattr(GroupManager, former)


def test_former_groups_of_group_manager_raise_with_their_new_place() -> None:
    with pytest.raises(AttributeError, match=r"use GroupManager\.classic\.groups$"):
        GroupManager.groups  # noqa: B018
