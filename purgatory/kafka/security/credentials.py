"""The users of a cluster: their passwords, and what SCRAM keeps of them.

A user who is there from the start has a password, which does for each mechanism. Credentials for
SCRAM can be altered while the cluster runs, as Kafka's AlterUserScramCredentials does; PLAIN stays
with the passwords.

Ground rules
------------
* One thread at a time calls it.
* Credentials of passwords are made when they are first asked for: each takes milliseconds.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import NamedTuple

from purgatory.kafka.security.scram import ScramCredential, ScramMechanism, new_credential


class UserMechanism(NamedTuple):
    """A user and a mechanism: what a credential is for."""

    user: str
    mechanism: ScramMechanism


class Credentials:
    """Knows the users.

    Args:
        passwords: by user, of those who are there from the start.
    """

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self._made: dict[UserMechanism, ScramCredential] = {}
        self.altered: dict[UserMechanism, ScramCredential | None] = {}
        """What was altered since; None: taken away."""

    def is_password(self, user: str, password: str) -> bool:
        """Whether it is the user's; takes as long where there is no such user."""
        known = self._passwords.get(user, "")
        same = hmac.compare_digest(password.encode(), known.encode())
        return same and user in self._passwords

    def scram(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """Return a user's credential for a mechanism, or None."""
        key = UserMechanism(user, mechanism)
        if key in self.altered:
            return self.altered[key]
        if user not in self._passwords:
            return None
        if key not in self._made:
            self._made[key] = new_credential(mechanism, self._passwords[user])
        return self._made[key]

    def scram_of(self, user: str) -> dict[ScramMechanism, ScramCredential]:
        """Return all credentials of a user."""
        found = {mechanism: self.scram(user, mechanism) for mechanism in ScramMechanism}
        return {mechanism: one for mechanism, one in found.items() if one is not None}

    def users_with_scram(self) -> list[str]:
        """Return all users who have a credential, sorted."""
        users = {*self._passwords, *(key.user for key in self.altered)}
        return sorted(user for user in users if self._has_scram(user))

    def _has_scram(self, user: str) -> bool:
        return any(
            self.altered.get(key, user in self._passwords)
            for key in (UserMechanism(user, mechanism) for mechanism in ScramMechanism)
        )
