"""The addresses of relays in their texts, which logs and errors show: without passwords."""

from __future__ import annotations

import pytest

from purgatory.shared import PostgresRelay, RedisRelay


def test_relay_of_redis_shows_its_address_without_the_password() -> None:
    assert repr(RedisRelay("redis://me:secret@cache:6399/2")) == (
        "RedisRelay('redis://cache:6399/2', prefix='purgatory:')"
    )
    assert "secret" not in repr(RedisRelay("redis://:secret@cache"))


def test_relay_of_postgresql_shows_its_address_without_the_password() -> None:
    shown = repr(PostgresRelay("postgresql://me:secret@db:5433/orders"))
    assert shown == "PostgresRelay('db:5433/orders', channel='purgatory')"
    assert repr(PostgresRelay("host=db password=secret")) == "PostgresRelay(channel='purgatory')"


def test_relay_of_redis_refuses_an_address_that_is_no_url() -> None:
    with pytest.raises(ValueError, match="must specify one of the following schemes"):
        RedisRelay("localhost:6399")
