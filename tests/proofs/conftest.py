"""Fixtures of the proofs: the thousands of events that are logged are dropped."""

from __future__ import annotations

from typing import NoReturn

import pytest
import structlog
from structlog.typing import EventDict, WrappedLogger


@pytest.fixture(autouse=True)
def _unrendered_logs(_unconfigured_logs: None) -> None:
    structlog.configure(processors=[_drop])


def _drop(logger: WrappedLogger, name: str, event: EventDict) -> NoReturn:
    raise structlog.DropEvent
