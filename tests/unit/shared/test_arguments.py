"""Every argument that can't work is refused where it is given, not later in silence."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import close_on_signals, metrics
from purgatory.shared import PostgresRelay, RedisRelay, RelayError, SharedPurgatory, UnixRelay
from purgatory.shared.shared_purgatory import ThreadedSharedPurgatory
from tests.world.shared.misbehaving_relay import Hub, MisbehavingRelay

DSN = "postgresql://user@localhost/service"
URL = "redis://localhost"


def postgres(**wrong: Any) -> object:
    return PostgresRelay(**{"dsn": DSN, **wrong})


def redis(**wrong: Any) -> object:
    return RedisRelay(**{"url": URL, **wrong})


def unix(**wrong: Any) -> object:
    return UnixRelay(**wrong)


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        *((postgres, {"dsn": wrong}) for wrong in ("http://x", "hsot=a", "postgresql://%zz", "\0")),
        *((postgres, {"dsn": f"host=a {wrong}"}) for wrong in ("port=x", "port=1,2", "port=70000")),
        *((postgres, {"dsn": f"host=a {wrong}"}) for wrong in ("sslmode=x", "connect_timeout=x")),
        *((postgres, {"channel": wrong}) for wrong in ("", "c" * 64, "é" * 32, "a\0b", "\ud800")),
        *((redis, {"url": wrong}) for wrong in ("", "http://x", "localhost:6379", "unix://", "\0")),
        *((redis, {"url": f"{URL}{wrong}"}) for wrong in (":x", ":70000", "/x", "/1/2", "?db=x")),
        *((redis, {"url": f"{URL}{wrong}"}) for wrong in ("?db=-1", "?unknown=1", "/-1")),
        (redis, {"url": "rediss://localhost?ssl_cert_reqs=maybe"}),
        *((redis, {"prefix": wrong}) for wrong in ("a\0b", "\ud800")),
        *((redis, {"url": wrong, "cluster": True}) for wrong in (f"{URL}/1", "unix:///run/redis")),
        *((unix, {"folder": wrong}) for wrong in ("a\0b", "\ud800", "/run/" + "x" * 80)),
        *((make, {"heartbeat": 1e-9}) for make in (postgres, redis)),
        *((make, {"heartbeat": 0}) for make in (postgres, redis)),
        *((make, {"heartbeat": float("nan")}) for make in (postgres, redis)),
    ],
)
def test_relay_refuses_values_that_can_not_work(
    make: Callable[..., object], wrong: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"."):
        make(**wrong)


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        *((make, {name: 7}) for make, name in ((postgres, "dsn"), (redis, "url"))),
        *((make, {name: b"x"}) for make, name in ((postgres, "channel"), (redis, "prefix"))),
        *((unix, {"folder": wrong}) for wrong in (7, None, b"/run/x")),
        *((make, {"heartbeat": "5"}) for make in (postgres, redis)),
    ],
)
def test_relay_refuses_what_is_of_another_type(
    make: Callable[..., object], wrong: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        make(**wrong)


@pytest.mark.parametrize(
    ("make", "right"),
    [
        *((postgres, {"dsn": dsn}) for dsn in ("", "host=a,b port=1,2", "hostaddr=127.0.0.1")),
        (postgres, {"dsn": "postgresql:///x?host=/run/postgresql", "channel": "c" * 63}),
        *((redis, {"url": url}) for url in ("redis://", "unix:///run/redis?db=3", f"{URL}/15")),
        (redis, {"url": "rediss://user:a%40b@localhost:1/2", "prefix": ""}),
        *((redis, {"url": url, "cluster": True}) for url in (URL, f"{URL}/0")),
        (unix, {"folder": "/run/x\udcff"}),
        *((make, {"heartbeat": timedelta(seconds=1)}) for make in (postgres, redis)),
    ],
)
def test_relay_takes_values_that_may_work(
    make: Callable[..., object], right: dict[str, Any]
) -> None:
    make(**right)


@pytest.mark.parametrize(("make", "client"), [(postgres, "psycopg"), (redis, "redis.asyncio")])
def test_relay_names_the_package_that_is_missing(
    make: Callable[..., object], client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, client, None)
    with pytest.raises(RelayError, match="pip install 'kafka-purgatory"):
        make()


def test_url_options_change_no_encoding_and_no_limit() -> None:
    """Or processes with other URLs would name a channel otherwise, or could not send."""
    options = "encoding=latin-1&decode_responses=1&protocol=3&max_connections=1&socket_timeout=1"
    pool = RedisRelay(f"{URL}?{options}")._pool(RedisRelay(f"{URL}?{options}")._place)
    made = pool.connection_kwargs
    assert (made["encoding"], made["decode_responses"], made["protocol"]) == ("utf-8", False, 2)
    assert made["socket_timeout"] is None
    assert pool.max_connections > 1


_PLACES = st.tuples(st.text(alphabet="a1@:%", max_size=4), st.integers(0, 12))


@given(_PLACES, _PLACES)
def test_prefixes_and_databases_make_channels_of_their_own(
    one: tuple[str, int], other: tuple[str, int]
) -> None:
    first, second = (RedisRelay(f"{URL}/{database}", prefix) for prefix, database in (one, other))
    assert (first.channels == second.channels) == (one == other)
    if one != other:
        assert not first.channels.startswith(second.channels)


def test_transaction_is_spared_what_nobody_could_hear() -> None:
    class Transaction:
        async def execute(self, *_: object) -> None:
            raise AssertionError("executed")

    relay = PostgresRelay(DSN)
    wrong: Any
    for wrong in (7, None, b"k"):
        with pytest.raises(TypeError, match="a key that processes share is a str"):
            asyncio.run(relay.notify_in(Transaction(), "Fetch", wrong, 1))
        with pytest.raises(TypeError, match="name must be a str"):
            relay.notify_args(wrong, "k", 1)
    for wrong in (1.5, "1", True):
        with pytest.raises(TypeError, match="must be an int"):
            asyncio.run(relay.notify_in(Transaction(), "Fetch", "k", wrong))
    with pytest.raises(ValueError, match="must fit 64 bits"):
        asyncio.run(relay.notify_in(Transaction(), "Fetch", "k", 1 << 63))


def read(keys: list[str]) -> dict[str, int]:
    return {}


def no_keys() -> dict[str, int]:
    return {}


async def read_later(keys: list[str]) -> dict[str, int]:
    return {}


_WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"name": 7}, TypeError, "name must be a str"),
    ({"relay": URL}, TypeError, "relay must be a relay"),
    ({"relay": UnixRelay}, TypeError, "relay must be a relay"),
    ({"read": {"k": 1}}, TypeError, "read must be a function"),
    ({"read": no_keys}, TypeError, "read must take a list of keys"),
    ({"read": lambda keys, connection: {}}, TypeError, "read must take a list of keys"),
    ({"resync": "5"}, TypeError, "resync"),
    ({"resync": 0}, ValueError, "resync"),
    ({"read_timeout": 0}, ValueError, "read_timeout"),
    ({"read_timeout": None}, TypeError, "read_timeout"),
    ({"batch": 0}, ValueError, "batch"),
    ({"batch": 1.5}, TypeError, "batch"),
    ({"batch": True}, TypeError, "batch"),
    ({"max_pending": 0}, ValueError, "max_pending"),
    ({"max_pending": "5"}, TypeError, "."),
]


@pytest.mark.parametrize(("wrong", "error", "text"), _WRONG)
@pytest.mark.parametrize("made", [SharedPurgatory, ThreadedSharedPurgatory])
def test_shared_purgatory_refuses_what_can_not_work(
    made: Any, wrong: dict[str, Any], error: type[Exception], text: str
) -> None:
    relay = MisbehavingRelay(Hub(Random(0)), "relay")

    async def main() -> None:
        with pytest.raises(error, match=text):
            made(**{"name": "Fetch", "relay": relay, "read": read, **wrong})

    asyncio.run(main())
    assert relay.state.name == "closed"


def test_threaded_purgatory_refuses_a_coroutine_function() -> None:
    relay = MisbehavingRelay(Hub(Random(0)), "relay")
    with pytest.raises(TypeError, match="read must be a plain function here"):
        ThreadedSharedPurgatory("Fetch", relay, read_later)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [close_on_signals, metrics.register, metrics.unregister])
def test_shared_purgatory_is_refused_where_its_local_is_due(
    function: Callable[[Any], object],
) -> None:
    async def main() -> None:
        relay = MisbehavingRelay(Hub(Random(0)), "relay")
        async with SharedPurgatory("Jobs", relay, lambda keys: {}) as shared:
            with pytest.raises(TypeError, match=r"no SharedPurgatory: give its \.local"):
                function(shared)

    asyncio.run(main())
