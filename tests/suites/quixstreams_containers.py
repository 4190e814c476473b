"""A plugin of quixstreams' pytest: a running broker stands where its tests start a container.

The environment of its tests has neither Docker nor this project. Of the tests, those that ask for
no broker are left out.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class ContainerHelper:
    """Takes the place of the tests' helper of this name."""

    @staticmethod
    def create_kafka_container(network: Any) -> tuple[Any, str, str]:
        """Return a container, and its address from inside and outside."""
        servers = os.environ["BOOTSTRAP_SERVERS"]
        return SimpleNamespace(stop=lambda: None), servers, servers

    @staticmethod
    def start_kafka_container(container: Any) -> None:
        """Start nothing: the broker runs."""

    @staticmethod
    def create_schema_registry_container(network: Any, servers: str) -> None:
        """Skip the test."""
        pytest.skip("a schema registry is not there")


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave the tests out that have no broker among their fixtures."""
    others = [one for one in items if "kafka_container" not in one.fixturenames]
    config.hook.pytest_deselected(items=others)
    items[:] = [one for one in items if "kafka_container" in one.fixturenames]


def _put_in_place() -> None:
    modules: dict[str, dict[str, Any]] = {
        "testcontainers": {},
        "testcontainers.core": {},
        "testcontainers.core.network": {"Network": nullcontext},
        "testcontainers.postgres": {"PostgresContainer": None},
        "tests.containerhelper": {"ContainerHelper": ContainerHelper},
    }
    for name, attributes in modules.items():
        module = ModuleType(name)
        module.__dict__.update(attributes)
        sys.modules[name] = module


_put_in_place()
