"""Client quotas: limits of rates by users, clients and addresses, and the waits they ask for.

The quotas of an entity are stored by the controller. Each broker measures for itself, as in Kafka:
the rate of a user or client over the last eleven seconds, of which the last one is under way. The
controller measures changes of topics, in tokens, each for a partition.

Ground rules: everything happens on the cluster's loop, and nothing waits.
"""

from __future__ import annotations

import ipaddress
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from purgatory.kafka.errors import ErrorCode, KafkaError

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE = "producer_byte_rate", "consumer_byte_rate"
MUTATION_RATE, CONNECTION_RATE = "controller_mutation_rate", "connection_creation_rate"

_WHOLE_NUMBER_MOST = 2**63 - 1
_CLIENT_QUOTAS: Mapping[str, bool] = {
    PRODUCER_BYTE_RATE: True,
    CONSUMER_BYTE_RATE: True,
    "request_percentage": False,
    MUTATION_RATE: False,
}
"""The quotas of users and clients: whether they are whole numbers."""
_IP_QUOTAS: Mapping[str, bool] = {CONNECTION_RATE: True}

QuotaEntity = tuple[tuple[str, str | None], ...]
"""The types of an entity with its names, sorted; None: the default of all without own quotas."""


class QuotaChange(NamedTuple):
    """One change: of the quota ``key`` to ``value``; None removes it."""

    key: str
    value: float | None


class QuotaMatch(NamedTuple):
    """A condition for one type of an entity: this name, or any (``is_any``)."""

    entity_type: str
    name: str | None
    is_any: bool = False


class ClientQuotas:
    """The quotas of all entities."""

    def __init__(self) -> None:
        self.entities: dict[QuotaEntity, dict[str, float]] = {}

    def alter(self, entity: QuotaEntity, changes: Sequence[QuotaChange]) -> None:
        """Change some quotas of an entity; see `checked_quotas`."""
        quotas = dict(self.entities.get(entity, {}))
        for key, value in changes:
            if value is None:
                quotas.pop(key, None)
            else:
                quotas[key] = value
        if quotas:
            self.entities[entity] = quotas
        else:
            self.entities.pop(entity, None)

    def matching(
        self, matches: Sequence[QuotaMatch], strict: bool
    ) -> Iterator[tuple[QuotaEntity, Mapping[str, float]]]:
        """Yield entities that meet all conditions; ``strict``: and have no other type. O(all)."""
        for entity, quotas in self.entities.items():
            names = dict(entity)
            if strict and len(names) != len(matches):
                continue
            if all(
                match.entity_type in names
                and (match.is_any or names[match.entity_type] == match.name)
                for match in matches
            ):
                yield entity, quotas

    def limit(self, user: str, client_id: str, key: str) -> tuple[QuotaEntity, float] | None:
        """Return whose rate counts for a client, and its limit; None: there is no limit. O(1).

        The most specific quota applies, by Kafka's order: user and client, user, client; a name
        before the default.
        """
        if not self.entities:
            return None
        for entity, of_user, of_client in (
            (((CLIENT_ID, client_id), (USER, user)), True, True),
            (((CLIENT_ID, None), (USER, user)), True, True),
            (((USER, user),), True, False),
            (((CLIENT_ID, client_id), (USER, None)), True, True),
            (((CLIENT_ID, None), (USER, None)), True, True),
            (((USER, None),), True, False),
            (((CLIENT_ID, client_id),), False, True),
            (((CLIENT_ID, None),), False, True),
        ):
            limit = self.entities.get(entity, {}).get(key)
            if limit is not None:
                counted: QuotaEntity = (
                    *([(CLIENT_ID, client_id)] if of_client else []),
                    *([(USER, user)] if of_user else []),
                )
                return counted, limit
        return None

    def limit_of_address(self, address: str) -> float | None:
        """Return the limit of new connections from an address; None: there is none. O(1)."""
        for name in (address, None):
            limit = self.entities.get(((IP, name),), {}).get(CONNECTION_RATE)
            if limit is not None:
                return limit
        return None


def checked_quotas(
    entity: Sequence[tuple[str, str | None]], changes: Sequence[QuotaChange]
) -> None:
    """Check an entity and the changes of its quotas, by Kafka's rules.

    Raises:
        KafkaError: INVALID_REQUEST.
    """
    types = [entity_type for entity_type, _ in entity]
    if not types:
        raise _bad_request("an entity has a user, a client-id or an ip")
    for entity_type, name in entity:
        if entity_type not in (USER, CLIENT_ID, IP):
            raise _bad_request(f"there is no type {entity_type!r} of entities")
        if types.count(entity_type) > 1:
            raise _bad_request(f"the type {entity_type} is there twice")
        if name == "":
            raise _bad_request(f"the {entity_type} has an empty name")
    if IP in types and len(types) > 1:
        raise _bad_request("an ip stands alone, without a user and a client-id")
    known = _IP_QUOTAS if IP in types else _CLIENT_QUOTAS
    address = dict(entity).get(IP)
    if address is not None and not _is_address(address):
        raise _bad_request(f"{address!r} is no address")
    keys = [change.key for change in changes]
    for key, value in changes:
        if keys.count(key) > 1:
            raise _bad_request(f"the quota {key} is there twice")
        if value is None:
            continue
        if key not in known:
            raise _bad_request(f"there is no quota {key!r}; there are {', '.join(known)}")
        if not value > 0:
            raise _bad_request(f"{key}={value}: it is more than 0")
        if known[key] and (value > _WHOLE_NUMBER_MOST or value % 1 > 1e-6):
            raise _bad_request(f"{key}={value}: it is a whole number")


def _is_address(text: str) -> bool:
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return text == "localhost"


def _bad_request(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


_SAMPLE_MS = 1_000
_SAMPLES = 11
_LONGEST_MS = 2**31 - 1
_LONGEST_OF_CONNECTIONS_MS = 1_000


class _Rate:
    """An amount per second over the last samples."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, float]] = deque()  # since when, and how much

    def add(self, amount: float, now_ms: int) -> None:
        if not self._samples or now_ms - self._samples[-1][0] >= _SAMPLE_MS:
            self._samples.append((now_ms, 0.0))
        since_ms, total = self._samples[-1]
        self._samples[-1] = since_ms, total + amount

    def wait_ms(self, limit: float, now_ms: int) -> int:
        """Return how long to wait until the rate is down to ``limit`` a second."""
        while self._samples and now_ms - self._samples[0][0] >= _SAMPLES * _SAMPLE_MS:
            self._samples.popleft()
        if not self._samples:
            return 0
        window_ms = now_ms - self._samples[0][0]
        # As in Kafka: samples that are not there yet count as full ones, but the one under way.
        window_ms += max(0, _SAMPLES - 1 - window_ms // _SAMPLE_MS) * _SAMPLE_MS
        rate = sum(total for _, total in self._samples) * 1_000 / window_ms
        return round(min(_LONGEST_MS, (rate - limit) / limit * window_ms)) if rate > limit else 0


class _Tokens:
    """The rest of a rate: it grows up to that of eleven seconds, and may become a debt."""

    __slots__ = ("_left", "_since_ms")

    def __init__(self) -> None:
        self._left = math.inf
        self._since_ms = 0

    def wait_ms(self, limit: float, now_ms: int) -> int:
        """Return how long to wait until there is no debt."""
        grown = self._left + limit * (now_ms - self._since_ms) / 1_000
        self._left = min(limit * _SAMPLES * _SAMPLE_MS / 1_000, grown)
        self._since_ms = now_ms
        return round(min(_LONGEST_MS, -self._left / limit * 1_000)) if self._left < 0 else 0

    def take(self, amount: float) -> None:
        """Take tokens that `wait_ms` has brought up to date."""
        self._left -= amount


class QuotaMeter:
    """The use that the clients of one broker, or of the controller, have made of their quotas.

    Args:
        quotas: the limits.
    """

    def __init__(self, quotas: ClientQuotas) -> None:
        self._quotas = quotas
        self._rates: dict[tuple[QuotaEntity, str], _Rate] = {}
        self._tokens: dict[QuotaEntity, _Tokens] = {}

    @property
    def is_needed(self) -> bool:
        """Whether there is any quota."""
        return bool(self._quotas.entities)

    def window(self, principal: str, client_id: str, key: str) -> float:
        """Return the most that a client may use at once without a wait."""
        found = self._quotas.limit(principal.partition(":")[2], client_id, key)
        return math.inf if found is None else found[1] * (_SAMPLES - 1)

    def record(self, principal: str, client_id: str, key: str, amount: float, now_ms: int) -> int:
        """Count an amount; return the throttle time, in milliseconds.

        Args:
            principal: the client's, such as "User:ann".
            client_id: the client's.
            key: the quota.
            amount: of bytes.
            now_ms: the present time, of any clock.
        """
        found = self._quotas.limit(principal.partition(":")[2], client_id, key)
        if found is None:
            return 0
        entity, limit = found
        rate = self._rates.setdefault((entity, key), _Rate())
        rate.add(amount, now_ms)
        return rate.wait_ms(limit, now_ms)

    def connection_wait_ms(self, address: str, now_ms: int) -> int:
        """Count a new connection; return after how long it is to be closed, 0: it is welcome.

        Args:
            address: the client's.
            now_ms: the present time, of any clock.
        """
        limit = self._quotas.limit_of_address(address)
        if limit is None:
            return 0
        rate = self._rates.setdefault((((IP, address),), CONNECTION_RATE), _Rate())
        rate.add(1, now_ms)
        wait_ms = min(_LONGEST_OF_CONNECTIONS_MS, rate.wait_ms(limit, now_ms))
        if wait_ms:
            rate.add(-1, now_ms)
        return wait_ms

    def mutate(
        self, principal: str, client_id: str, partitions: int, now_ms: int, strict: bool
    ) -> tuple[bool, int]:
        """Count changed partitions; return whether they may be changed, and the throttle time.

        Args:
            principal: the client's, such as "User:ann".
            client_id: the client's.
            partitions: how many are created or deleted.
            now_ms: the present time, of any clock.
            strict: refuse them while there is a debt; a client of an older version only waits.
        """
        found = self._quotas.limit(principal.partition(":")[2], client_id, MUTATION_RATE)
        if found is None:
            return True, 0
        entity, limit = found
        tokens = self._tokens.setdefault(entity, _Tokens())
        wait_ms = tokens.wait_ms(limit, now_ms)
        if strict and wait_ms:
            return False, wait_ms
        tokens.take(partitions)
        return True, 0 if strict else tokens.wait_ms(limit, now_ms)
