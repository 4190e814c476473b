"""Configs of plain values are those that pydantic makes; others are left to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.cluster.config import ProcessConfig, _adapter
from purgatory.settings.plain_values import NotPlainError, plain_value

_NAME = st.text("ab:/é ", max_size=3)
_ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 1.5, 5, "", "never", "x\ny", "\ud800", [], ["a"], {}]
)


def _one_of(*plain: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly a plain value, sometimes any other."""
    return st.one_of(*plain, *plain, *plain, _ODD)


_TLS = st.fixed_dictionaries(
    {"certificate": _one_of(_NAME)},
    optional={"key": _NAME, "client_auth": _one_of(st.sampled_from(["required", "requested"]))},
)
_DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "brokers": _one_of(st.integers(0, 5)),
        "host": _one_of(_NAME),
        "auto_create_topics": _one_of(st.booleans()),
        "follower_lag_ms": _one_of(st.integers(0, 5), st.floats(0, 5)),
        "retention_ms": _one_of(st.none(), st.integers(0, 5)),
        "data_dir": _one_of(_NAME, _NAME.map(Path)),
        "fsync": _one_of(st.sampled_from(["never", "always"])),
        "racks": _one_of(st.lists(_NAME)),
        "users": _one_of(st.dictionaries(_NAME, _NAME)),
        "topics": _one_of(
            st.lists(
                st.fixed_dictionaries(
                    {"name": _one_of(_NAME)},
                    optional={"partitions": st.integers(0, 3), "settings": _one_of()},
                )
            )
        ),
        "tls": _one_of(_TLS),
        "listeners": _one_of(
            st.lists(
                st.fixed_dictionaries(
                    {"name": _NAME}, optional={"tls": _TLS, "sasl": _one_of(st.lists(_NAME))}
                )
            )
        ),
        "groups": _one_of(
            st.fixed_dictionaries(
                {},
                optional={
                    "initial_rebalance_delay_ms": _one_of(st.integers(0, 5)),
                    "consumer_migration_policy": _one_of(st.sampled_from(["upgrade", "disabled"])),
                },
            )
        ),
        "control": _one_of(st.fixed_dictionaries({}, optional={"port": _one_of()})),
        "unknown": _ODD,
    },
)


@given(_DOCUMENTS)
def test_plain_configs_equal_those_of_pydantic(document: dict[str, Any]) -> None:
    try:
        plain = plain_value(ProcessConfig, document)
    except NotPlainError:
        return
    text = json.dumps(document, default=str)
    assert repr(plain) == repr(_adapter().validate_json(text, strict=True))


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"brokers": 2, "data_dir": "data", "fsync": "always", "follower_lag_ms": 1},
        {"topics": [{"name": "a", "settings": {"cleanup.policy": "compact"}}]},
        {"listeners": [{"name": "A", "tls": {"certificate": "both.pem"}, "sasl": ["PLAIN"]}]},
        {"control": {"port": 0, "host": "::1", "token": None}, "users": {"ann": "secret"}},
    ],
    ids=str,
)
def test_plain_configs_need_no_pydantic(document: dict[str, Any]) -> None:
    config = plain_value(ProcessConfig, document)
    assert repr(config) == repr(_adapter().validate_python(document))


@pytest.mark.parametrize(
    "document",
    [{"brokers": "2"}, {"brokers": True}, {"brokres": 2}, {"topics": [{}]}, {"fsync": "often"}],
    ids=str,
)
def test_wrong_configs_are_left_to_pydantic(document: dict[str, Any]) -> None:
    with pytest.raises(NotPlainError):
        plain_value(ProcessConfig, document)
