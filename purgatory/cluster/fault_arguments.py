"""What faults may be asked for: each check says what would be right."""

from __future__ import annotations

import math
from typing import TypeGuard

from kio.schema.index import api_key_map

from purgatory.cluster.errors import ClusterError
from purgatory.cluster.protocol.wire import SUPPORTED

APIS = tuple(api_key_map[api_key] for api_key in SUPPORTED)
"""The APIs whose answers can be lost, delayed and duplicated, by name."""


def check_duration(for_s: object) -> None:
    """Refuse what is no time that a fault may last, in seconds, or None for no end."""
    if for_s is not None and not (_is_finite(for_s) and for_s > 0):
        raise ClusterError(f"for_s={for_s!r}: a number of seconds above 0, or left out for no end")


def check_milliseconds(name: str, value: object) -> None:
    """Refuse what is no time in milliseconds."""
    if not (_is_finite(value) and value >= 0):
        raise ClusterError(f"{name}={value!r}: a number of milliseconds, 0 or more")


def check_count(count: object) -> None:
    """Refuse what is no number of answers, or None for all."""
    if count is None:
        return
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ClusterError(f"count={count!r}: a whole number from 1 on, or left out for all")


def check_api(api: object) -> None:
    """Refuse the name of an API that isn't served; None stands for all."""
    if api is not None and api not in APIS:
        raise ClusterError(f"api={api!r}: one of {', '.join(APIS)}, or left out for all")


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
