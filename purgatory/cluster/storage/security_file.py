"""Access control lists and altered SCRAM credentials, in one file that is replaced as a whole.

Only its owner may read it: who has a credential can try passwords on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from purgatory.cluster.storage.disk import Disk
from purgatory.cluster.storage.disk_files import read_file, replace_file
from purgatory.cluster.storage.real_disk import REAL_DISK
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.security.authorizer import (
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from purgatory.kafka.security.sasl import ScramCredential, ScramMechanism, UserMechanism

_FILE = "security.json"
_VERSION = 1


class SavedSecurity(NamedTuple):
    """What is kept; None for a credential that was taken away."""

    acls: list[Acl]
    credentials: dict[UserMechanism, ScramCredential | None]


def save_security(
    folder: Path,
    acls: Iterable[Acl],
    credentials: Mapping[UserMechanism, ScramCredential | None],
    disk: Disk = REAL_DISK,
) -> None:
    """Write all of it.

    Raises:
        OSError: the disk refuses it; what was written before stays.
    """
    values = {
        "version": _VERSION,
        "acls": [[one.name if isinstance(one, _ENUMS) else one for one in acl] for acl in acls],
        "credentials": [
            {"user": key.user, "mechanism": key.mechanism.value, **_written(credential)}
            for key, credential in credentials.items()
        ],
    }
    replace_file(disk, folder / _FILE, json.dumps(values).encode(), True, mode=0o600)


def load_security(folder: Path, disk: Disk = REAL_DISK) -> SavedSecurity:
    """Read what was saved; nothing where there is no file.

    Raises:
        ClusterError: it can't be read.
    """
    path = folder / _FILE
    try:
        values: dict[str, Any] = json.loads(read_file(disk, path).decode("utf-8"))
        acls = [_acl(*one) for one in values["acls"]]
        credentials = {
            UserMechanism(one["user"], ScramMechanism(one["mechanism"])): _credential(one)
            for one in values["credentials"]
        }
    except FileNotFoundError:
        return SavedSecurity([], {})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{path} can't be read as a cluster's security: {error!r}") from error
    return SavedSecurity(acls, credentials)


_ENUMS = (ResourceType, PatternType, Operation, Permission)


def _acl(
    resource: str, name: str, pattern: str, principal: str, host: str, does: str, permission: str
) -> Acl:
    return Acl(
        ResourceType[resource],
        name,
        PatternType[pattern],
        principal,
        host,
        Operation[does],
        Permission[permission],
    )


def _written(credential: ScramCredential | None) -> dict[str, Any]:
    if credential is None:
        return {}
    return {
        "salt": credential.salt.hex(),
        "iterations": credential.iterations,
        "stored_key": credential.stored_key.hex(),
        "server_key": credential.server_key.hex(),
    }


def _credential(values: Mapping[str, Any]) -> ScramCredential | None:
    if "salt" not in values:
        return None
    return ScramCredential(
        bytes.fromhex(values["salt"]),
        int(values["iterations"]),
        bytes.fromhex(values["stored_key"]),
        bytes.fromhex(values["server_key"]),
    )
