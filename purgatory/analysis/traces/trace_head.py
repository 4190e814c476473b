"""The head of a trace, `run.json`: what it says, checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from purgatory.analysis.errors import TraceError
from purgatory.analysis.uris.listed_path import TracePath
from purgatory.trace.trace_schema import RUN_FILE, SCHEMA_VERSIONS

T = TypeVar("T")

_SETTINGS: Mapping[str, type] = {
    "group": str,
    "acks": int,
    "idempotence": bool,
    "max_in_flight": int,
    "retries": int,
    "single_writer": bool,
    "assignment": str,
    "isolation": str,
}


@dataclass(frozen=True)
class Fault:
    """Something that was made to go wrong in a run; the fields may be None where they don't apply.

    Units are milliseconds since the start of the run; without `duration_ms`, it lasted to the end.
    """

    kind: str
    at_ms: int
    duration_ms: int | None
    broker: int | None


@dataclass(frozen=True)
class TraceHead:
    """What `run.json` says; without the file, what is taken for granted then.

    `tables` has the numbers of parts and rows, or is None where the head does not say. `producers`
    and `consumers` are the settings of the groups, or None where they are not known.
    """

    run_id: str
    scenario: str
    seed: int | None
    complete: bool
    duration_ms: int
    faults: Sequence[Fault]
    producers: Sequence[Mapping[str, Any]] | None
    consumers: Sequence[Mapping[str, Any]] | None
    tables: Mapping[str, Any] | None


class FutureVersionError(TraceError):
    """A head of a schema version that is not read."""


def read_head(folder: TracePath, *, written_elsewhere: bool) -> TraceHead:
    """The head of the trace in a folder.

    Args:
        folder: the trace's folder.
        written_elsewhere: another program wrote it, in JSON lines: there may be no head, and a
            head need not have a scenario, a seed, a length or numbers of rows.

    Raises:
        TraceError: it can't be read, or a field is not of the type that it must be of.
        FutureVersionError: its schema version is not known.
    """
    path = folder / RUN_FILE
    if written_elsewhere and not path.exists():
        return head_of({}, folder.name, path, written_elsewhere=True)
    return head_of(_load(path), folder.name, path, written_elsewhere=written_elsewhere)


def head_of(
    head: Mapping[str, Any], name: str, path: TracePath, *, written_elsewhere: bool
) -> TraceHead:
    """A head from its fields.

    Args:
        head: the fields.
        name: the run's id where they have none.
        path: where they are from.
        written_elsewhere: as `read_head` has it.

    Raises:
        TraceError: a field is not of the type that it must be of.
    """
    if written_elsewhere:
        run_id = head.get("run_id", name)
        head = {"scenario": run_id, "seed": None, "complete": True, "duration_ms": 0, **head}
        head["run_id"] = run_id
    complete = field(head, "complete", bool, path)
    says_tables = "tables" in head or (complete and not written_elsewhere)
    return TraceHead(
        run_id=field(head, "run_id", str, path),
        scenario=field(head, "scenario", str, path),
        seed=None if written_elsewhere and head["seed"] is None else field(head, "seed", int, path),
        complete=complete,
        duration_ms=field(head, "duration_ms", int, path),
        faults=_faults(head, path),
        producers=_settings(head, "producers", path),
        consumers=_settings(head, "consumers", path),
        tables=field(head, "tables", dict, path) if says_tables else None,
    )


def _load(path: TracePath) -> dict[str, Any]:
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(f"{path}: can't be read as JSON: {error}") from error
    if not isinstance(head, dict):
        raise TraceError(f"{path}: must be an object, and is a {type(head).__name__}")
    version = head.get("schema_version")
    if version not in SCHEMA_VERSIONS or type(version) is not int:
        raise FutureVersionError(
            f"{path}: schema_version is {version!r}, and this version of purgatory reads "
            f"{', '.join(map(str, SCHEMA_VERSIONS[:-1]))} and {SCHEMA_VERSIONS[-1]}"
        )
    return head


def field(head: Mapping[str, Any], name: str, kind: type[T], path: TracePath) -> T:
    """A field of an object in `run.json`, which must be of a type; whole numbers fit 64 bits.

    Raises:
        TraceError: it is missing, or another type.
    """
    value = head.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TraceError(f"{path}: {name} must be of type {kind.__name__}, and is {value!r}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise TraceError(f"{path}: {name} must fit 64 bits, and is {value}")
    return value


def _faults(head: Mapping[str, Any], path: TracePath) -> list[Fault]:
    """The faults that `run.json` names; a trace need not say any."""
    if "faults" not in head:
        return []
    faults = []
    for fault in field(head, "faults", list, path):
        if not isinstance(fault, dict):
            raise TraceError(f"{path}: a fault must be an object, and is {fault!r}")
        optional = {
            name: None if fault.get(name) is None else field(fault, name, int, path)
            for name in ("duration_ms", "broker")
        }
        kind, at_ms = field(fault, "kind", str, path), field(fault, "at_ms", int, path)
        faults.append(Fault(kind=kind, at_ms=at_ms, **optional))
    return faults


def _settings(
    head: Mapping[str, Any], kind: str, path: TracePath
) -> Sequence[Mapping[str, Any]] | None:
    """How the groups of clients are configured; a trace need not say, and a group need not all."""
    if head.get(kind) is None:
        return None
    groups = field(head, kind, list, path)
    for group in groups:
        if not isinstance(group, dict):
            raise TraceError(f"{path}: {kind} must be objects, and one is {group!r}")
        field(group, "group", str, path)
        for name in group.keys() & _SETTINGS.keys():
            if group[name] is not None:
                field(group, name, _SETTINGS[name], path)
    return groups
