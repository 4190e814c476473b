"""A cluster's config from a TOML document: what `ClusterConfig` takes, under the same names; and
what goes with a cluster that is a process.

    brokers = 3
    auto_create_topics = false

    [[topics]]
    name = "orders"
    partitions = 6

Ground rules: relative paths in a file start at its folder.
"""

from __future__ import annotations

import json
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purgatory.cluster.cluster_config import ClusterConfig
from purgatory.cluster.config_checks import config_problems
from purgatory.kafka.errors import ClusterError
from purgatory.settings.problems import ABSENT, Problem, key_text, no_such_key, right_value

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(frozen=True)
class ControlConfig:
    """Where a cluster is controlled.

    Args:
        port: for faults, state and /metrics. 0 lets the system choose.
        host: where.
        token: what the control asks for; None: beyond this machine, one that is printed.
    """

    port: int = 9990
    host: str = "127.0.0.1"
    token: str | None = None


@dataclass(frozen=True)
class ProcessConfig(ClusterConfig):
    """What a cluster that is a process is to be.

    Args:
        control: where it is controlled.
        metrics_port: where /metrics is served besides, on the brokers' host.
        trace: a folder for the trace.
        publish: what the topics begin with into which the trace's rows go.
        faults: a plan of faults.
    """

    control: ControlConfig = field(default_factory=ControlConfig)
    metrics_port: int | None = None
    trace: Path | None = None
    publish: str | None = None
    faults: Path | None = None


def load_config(path: Path) -> ProcessConfig:
    """Read a config.

    Raises:
        ClusterError: it can't be read, or something in it is wrong: a line for each such thing.
    """
    return checked_config(read_document(path), str(path))


def read_document(path: Path) -> dict[str, Any]:
    """Read a TOML document; relative paths in it are made to start at its folder.

    Raises:
        ClusterError: it can't be read.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"{path}: can't be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ClusterError(f"{path}: not a TOML document: {error}") from error
    anchored: dict[str, Any] = _anchored(ProcessConfig, document, path.parent)
    return anchored


def checked_config(document: Mapping[str, Any], source: str) -> ProcessConfig:
    """Make a config of a document.

    Args:
        document: what was said.
        source: what errors call it.

    Raises:
        ClusterError: something in it is wrong: a line for each such thing.
    """
    from pydantic import ValidationError

    problems = list(_unknown_keys(ProcessConfig, document, ()))
    try:
        text = json.dumps(document, default=str)  # TOML has times, too
        config = _adapter().validate_json(text, strict=True)
    except ValidationError as error:
        found = [_problem(item) for item in error.errors(include_url=False)]
        known = {problem.key for problem in problems}
        problems += [problem for problem in found if problem and problem.key not in known]
        raise ClusterError(_lines(problems, source)) from error
    problems += config_problems(config)
    if problems:
        raise ClusterError(_lines(problems, source))
    return config


def _lines(problems: Sequence[Problem], source: str) -> str:
    return "\n".join(problem.text(source) for problem in problems)


def _problem(item: Any) -> Problem | None:
    if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return None  # it is told already, with the keys that there are
    key = key_text(item["loc"])
    if item["type"] == "missing":
        return Problem(key, ABSENT, right_value(item))
    if item["type"] in ("dataclass_type", "named_tuple_type", "dict_type"):
        return Problem(key, item["input"], "must be a table of keys")
    return Problem(key, item["input"], right_value(item))


def _unknown_keys(hint: Any, value: Any, location: tuple[int | str, ...]) -> Iterator[Problem]:
    table = _table(hint)
    if table is None:
        return
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from _unknown_keys(hint, one, (*location, number))
    elif isinstance(value, Mapping):
        hints = typing.get_type_hints(table)
        for key, one in value.items():
            if key in hints:
                yield from _unknown_keys(hints[key], one, (*location, key))
            else:
                yield Problem(key_text((*location, key)), one, no_such_key(key, hints))


def _anchored(hint: Any, value: Any, folder: Path) -> Any:
    """Make the paths in a value start at a folder."""
    if isinstance(value, str) and Path in (hint, *typing.get_args(hint)):
        return str(folder / value)
    table = _table(hint)
    if table is None:
        return value
    if isinstance(value, list):
        return [_anchored(hint, one, folder) for one in value]
    if isinstance(value, Mapping):
        hints = typing.get_type_hints(table)
        return {key: _anchored(hints.get(key), one, folder) for key, one in value.items()}
    return value


def _table(hint: Any) -> Any:
    """Return the class of a table, or of the tables in a list; None for all else."""
    if isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_fields")):
        return hint
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is not None:
        found = (_table(one) for one in typing.get_args(hint))
        return next((one for one in found if one is not None), None)
    return None


@cache
def _adapter() -> TypeAdapter[ProcessConfig]:
    """Return what validates; made when first asked for, since it takes a while."""
    from pydantic import TypeAdapter

    return TypeAdapter(ProcessConfig)
