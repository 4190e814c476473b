"""The runs of Spin: each configuration of the model as it is, and with each rule broken."""

from __future__ import annotations

from typing import Literal, NamedTuple

Search = Literal["safety", "progress", "liveness"]
"""Asserts and deadlocks; going round for ever; the claim that a retry is not given up."""


class Configuration(NamedTuple):
    """One question to Spin."""

    script: str
    """The threads' calls: a macro of ``scripts.pml``."""
    policy: str = ""
    """The policy by which it is closed, if it is."""
    search: Search = "safety"
    broken: str = ""
    """The macro that breaks a rule; empty for the model as it is."""
    is_quick: bool = True
    """Whether it takes a few seconds."""

    @property
    def macros(self) -> list[str]:
        """The macros that it defines."""
        policy = [f"POLICY={self.policy}"] if self.policy else []
        return [self.script, *policy, *([self.broken] if self.broken else [])]

    @property
    def name(self) -> str:
        """All of it, as it is printed."""
        search = [] if self.search == "safety" else [self.search]
        return " ".join([*self.macros, *search])


RIGHT = [
    Configuration("EVENTS"),
    Configuration("BOTH_SUBMIT", is_quick=False),
    Configuration("FROM_OUTSIDE"),
    Configuration("THRESHOLDS"),
    Configuration("FORGET"),
    Configuration("LOCK", is_quick=False),
    Configuration("LOCK_FORCED"),
    Configuration("SHARED_LOCK", is_quick=False),
    Configuration("HELD_LOCKS"),
    Configuration("CLOSE", "EXPIRED", is_quick=False),
    Configuration("CLOSE", "FAILED", is_quick=False),
    Configuration("CLOSE", "LEAVE"),
    Configuration("CLOSE_FORCED", "EXPIRED"),
    Configuration("CLOSE_FORCED", "FAILED"),
    Configuration("CLOSE_FORCED", "LEAVE"),
    Configuration("CLOSE_LOCKED", "EXPIRED", is_quick=False),
    Configuration("CLOSE_LOCKED", "LEAVE", is_quick=False),
    Configuration("DEADLINE", "EXPIRED", is_quick=False),
    Configuration("DEADLINE", "FAILED", is_quick=False),
    Configuration("DEADLINE_EXPIRING", "LEAVE", is_quick=False),
    Configuration("EVENTS", search="progress", is_quick=False),
    Configuration("FROM_OUTSIDE", search="progress"),
    Configuration("LOCK", search="progress", is_quick=False),
    Configuration("HELD_LOCKS", search="progress", is_quick=False),
    Configuration("CLOSE_FORCED", "EXPIRED", search="progress", is_quick=False),
    Configuration("FOR_EVER", search="liveness", is_quick=False),
]

BROKEN = [
    Configuration("EVENTS", broken="BREAK_CHECK_UNNOTED"),
    Configuration("EVENTS", broken="BREAK_NO_SECOND_CHECK"),
    Configuration("EVENTS", broken="BREAK_NO_LOOK_AFTER_RELEASE"),
    Configuration("EVENTS", broken="BREAK_CLEARED_AFTER_CHECK"),
    Configuration("EVENTS", broken="BREAK_SERVING_UNCLAIMED"),
    Configuration("EVENTS", broken="BREAK_EXPIRY_UNCHECKED"),
    Configuration("BOTH_SUBMIT", broken="BREAK_EXPIRY_SEEN_AFTER_CHECK"),
    Configuration("FROM_OUTSIDE", broken="BREAK_COMPLETING_UNCLAIMED"),
    Configuration("FROM_OUTSIDE", search="progress", broken="BREAK_LOSER_KEEPS_NOTES"),
    Configuration("FROM_OUTSIDE", broken="BREAK_COMPLETED_STAYS_WATCHED"),
    Configuration("FROM_OUTSIDE", broken="BREAK_COMPLETED_STAYS_ON_TIMER"),
    Configuration("FROM_OUTSIDE", broken="BREAK_WATCHING_UNLOOKED"),
    Configuration("FROM_OUTSIDE", broken="BREAK_TIMEOUT_UNLOOKED"),
    Configuration("THRESHOLDS", broken="BREAK_VALUE_TOLD_LATE"),
    Configuration("FORGET", broken="BREAK_FORGET_LOSES"),
    Configuration("HELD_LOCKS", broken="BREAK_LOCK_WAITED_FOR"),
    Configuration("LOCK", broken="BREAK_NO_RETRY"),
    Configuration("FOR_EVER", search="liveness", broken="BREAK_NO_RETRY"),
    Configuration("LOCK", search="progress", broken="BREAK_RETRY_GOES_ROUND"),
    Configuration("LOCK_FORCED", broken="BREAK_RETRY_UNLOOKED"),
    Configuration("CLOSE", "EXPIRED", broken="BREAK_INTAKE_STOPPED_LATE"),
    Configuration("CLOSE", "EXPIRED", broken="BREAK_CLOSE_LEAVES_COMPLETING"),
    Configuration("CLOSE_FORCED", "EXPIRED", broken="BREAK_CLOSE_LEAVES_CHECKS"),
    Configuration("CLOSE", "LEAVE", broken="BREAK_LET_GO_UNCLAIMED"),
    Configuration("CLOSE", "LEAVE", broken="BREAK_LET_GO_KEEPS_KEYS"),
    Configuration("DEADLINE", "EXPIRED", broken="BREAK_GIVING_UP_UNTOLD"),
]
