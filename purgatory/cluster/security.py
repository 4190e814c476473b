"""The users and the ACLs of a cluster, and their file.

Each broker decides by a copy of the ACLs, as in Kafka: a change is complete once every broker has
it.

Ground rules
------------
* Everything happens on the event loop's thread.
* Changes are saved before any broker is notified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from purgatory.cluster.config import Authorization, ClusterConfig
from purgatory.cluster.storage import REAL_DISK, Disk
from purgatory.cluster.storage.metadata_file import load_security, save_security
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.security.authorizer import Acl, Authorizer
from purgatory.kafka.security.sasl import Credentials, ScramCredential, UserMechanism


class ClusterSecurity:
    """Users, their credentials, and the ACLs.

    Args:
        config: the configuration of the cluster.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self.authorization = config.authorization or Authorization()
        self.is_authorizing = config.authorization is not None
        """Whether requests are authorized at all."""
        self.credentials = Credentials(config.users or {})
        self.acls: dict[Acl, None] = {}
        self.version = 0
        """The number of changes of the ACLs."""
        self.on_acls_changed: Callable[[], object] = lambda: None
        self._folder: Path | None = None
        self._disk = REAL_DISK

    def load(self, folder: Path | None, disk: Disk = REAL_DISK) -> None:
        """Load the saved state, and the entries of the configuration.

        Args:
            folder: the folder of the saved changes; None: they are in memory.
            disk: the disk of the folder.

        Raises:
            ClusterError: the saved state can't be read.
        """
        self._folder, self._disk = folder, disk
        configured = [spec.acl for spec in self.authorization.acls]
        if folder is None:
            self.acls = dict.fromkeys(configured)
            return
        saved = load_security(folder, disk)
        self.acls = dict.fromkeys([*saved.acls, *configured])
        self.credentials.altered.update(saved.credentials)

    def new_authorizer(self) -> Authorizer:
        """Return an authorizer for one broker, with the current entries."""
        config = self.authorization
        authorizer = Authorizer(config.super_users, config.allow_everyone_if_no_acl_found)
        authorizer.apply(self.version, self.acls)
        return authorizer

    def change_acls(self, added: Iterable[Acl], removed: Iterable[Acl]) -> None:
        """Add and remove entries. Idempotent.

        Raises:
            ClusterError: the change can't be saved, and is not made.
        """
        gone = set(removed)
        acls = {acl: None for acl in self.acls if acl not in gone} | dict.fromkeys(added)
        self._save(acls, self.credentials.altered)
        self.acls = acls
        self.version += 1
        self.on_acls_changed()

    def alter_credentials(self, changes: dict[UserMechanism, ScramCredential | None]) -> None:
        """Change credentials; None removes one.

        Raises:
            ClusterError: the change can't be saved, and is not made.
        """
        altered = {**self.credentials.altered, **changes}
        self._save(self.acls, altered)
        self.credentials.altered.update(altered)

    def _save(
        self, acls: Iterable[Acl], altered: dict[UserMechanism, ScramCredential | None]
    ) -> None:
        if self._folder is None:
            return
        try:
            save_security(self._folder, acls, altered, self._disk)
        except OSError as error:
            raise ClusterError(f"{self._folder} can't be written to: {error.strerror}") from error
