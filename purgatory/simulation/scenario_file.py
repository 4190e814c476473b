"""Reading a scenario: a shipped one by name, or a TOML file.

An error names file, key, value and valid values, on one line for each problem; all are reported at
once. `python -m purgatory.simulation.scenario_file` prints the reference of all keys, which is in
`docs/simulation.md`; a test compares the two.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from purgatory.settings.problems import (
    ABSENT,
    Problem,
    did_you_mean,
    key_text,
    no_such_key,
    right_value,
)
from purgatory.simulation.scenario import (
    CLIENT_APIS,
    FAULT_KINDS,
    FAULT_SECTIONS,
    MAX_IDEMPOTENT_IN_FLIGHT,
    ArrivalsSection,
    ClusterSection,
    ConsumersSection,
    FaultSection,
    FollowersSection,
    NetworkSection,
    ProducersSection,
    Scenario,
    Spread,
    TopicSection,
)

_REAL_CLIENTS = (
    "gone from simulations: groups and transactions are those of real clients, in a virtual world "
    "(docs/virtual.md)"
)
_FORMER_KEYS: Mapping[tuple[type[BaseModel], str], str] = {
    (ClusterSection, "initial_rebalance_delay_ms"): _REAL_CLIENTS,
    (ProducersSection, "transactions"): _REAL_CLIENTS,
    **{
        (ConsumersSection, key): _REAL_CLIENTS
        for key in (
            "away_ms",
            "commit_interval_ms",
            "heartbeat_interval_ms",
            "isolation",
            "max_poll_interval_ms",
            "membership",
            "session_timeout_ms",
            "stay_ms",
            "topic",
        )
    },
    (Scenario, "delete_records"): (
        "gone from simulations: delete records with a real client's admin, in a virtual world "
        "(docs/virtual.md)"
    ),
}
"""The keys of earlier releases by their section, and what to use instead."""

_FORMER_SCENARIOS = ("rebalance-storm", "transactions")


class ScenarioError(ValueError):
    """An invalid scenario. The message has the file, the key, the value and the valid values."""


@dataclass(frozen=True)
class LoadedScenario:
    """A scenario and the folder that its relative paths start from."""

    scenario: Scenario
    folder: Path
    source: str


def shipped_scenarios() -> dict[str, str]:
    """The shipped scenarios' names and descriptions, sorted by name."""
    found = {}
    for entry in sorted(_shipped_folder().iterdir(), key=lambda item: item.name):
        if entry.name.endswith(".toml"):
            document = tomllib.loads(entry.read_text(encoding="utf-8"))
            found[entry.name.removesuffix(".toml")] = str(document.get("description", ""))
    return found


def load_scenario(name_or_path: str | Path) -> LoadedScenario:
    """Read a scenario.

    Args:
        name_or_path: the name of a shipped scenario, or the path of a TOML file. A name with a
            folder or the ending `.toml` is a path; any other is searched among the shipped
            scenarios first.

    Raises:
        ScenarioError: there is no such scenario, or it is not a valid one.
    """
    name = str(name_or_path)
    path = Path(name_or_path)
    is_name = path.suffix != ".toml" and path.name == name
    if is_name:
        entry = _shipped_folder() / f"{name}.toml"
        if entry.is_file():
            return parse_scenario(entry.read_text(encoding="utf-8"), f"{name}.toml", Path())
    if path.is_file():
        return parse_scenario(_read(path), name, path.parent)
    if path.is_dir():
        raise ScenarioError(f"{name}: is a folder; name the TOML file in it")
    raise ScenarioError(_unknown_scenario_message(name))


def parse_scenario(text: str, source: str, folder: Path) -> LoadedScenario:
    """Read a scenario from the text of a TOML document.

    Args:
        text: the document.
        source: its name in errors, normally the file's path.
        folder: the start of relative paths in it.

    Raises:
        ScenarioError: the document is not TOML, or not a valid scenario.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{source}: not a TOML document: {error}") from error
    try:
        scenario = Scenario.model_validate(document)
    except ValidationError as error:
        problems = [_problem(item, document) for item in error.errors(include_url=False)]
        raise ScenarioError(_join(problems, source)) from error
    return LoadedScenario(_checked(scenario, source), folder, source)


def apply_overrides(
    loaded: LoadedScenario, *, seed: int | None = None, duration_ms: int | timedelta | None = None
) -> LoadedScenario:
    """The same scenario with another seed or duration, validated again.

    Raises:
        ScenarioError: a value is out of its bounds.
    """
    changes = {"seed": seed, "duration_ms": duration_ms}
    values = {key: value for key, value in changes.items() if value is not None}
    if not values:
        return loaded
    document = {**loaded.scenario.model_dump(), **values}
    try:
        scenario = Scenario.model_validate(document)
    except ValidationError as error:
        problems = [_problem(item, document) for item in error.errors(include_url=False)]
        raise ScenarioError(_join(problems, loaded.source)) from error
    return LoadedScenario(_checked(scenario, loaded.source), loaded.folder, loaded.source)


def _checked(scenario: Scenario, source: str) -> Scenario:
    problems = list(_cross_check(scenario))
    if problems:
        raise ScenarioError(_join(problems, source))
    return scenario


def _shipped_folder() -> Traversable:
    return resources.files("purgatory.simulation") / "scenarios"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read as UTF-8 text: {error}") from error


def _unknown_scenario_message(name: str) -> str:
    if name in _FORMER_SCENARIOS:
        return f"{name}: {_REAL_CLIENTS}"
    names = list(shipped_scenarios())
    hint = did_you_mean(name, names)
    return f"{name}: no such file, and no shipped scenario; {hint}shipped are {', '.join(names)}"


def _join(problems: Sequence[Problem], source: str) -> str:
    return "\n".join(problem.text(source) for problem in problems)


def _problem(item: Mapping[str, Any], document: Mapping[str, Any]) -> Problem:
    """One of the validator's errors, in terms of the scenario."""
    location = [part for part in item["loc"] if part not in FAULT_SECTIONS]
    key = key_text(location)
    kind = str(item["type"])
    if kind == "extra_forbidden":
        model, name = _table_model(location[:-1], document), str(location[-1])
        former = _FORMER_KEYS.get((model, name))
        return Problem(key, item["input"], former or no_such_key(name, model.model_fields))
    if kind == "missing":
        return Problem(key, ABSENT, right_value(item))
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        values = item["input"].get("kind", ABSENT) if isinstance(item["input"], dict) else ABSENT
        kinds = ", ".join(f'"{name}"' for name in FAULT_SECTIONS)
        return Problem(f"{key}.kind", values, f"must be one of {kinds}{_suggestion(values)}")
    if kind == "tuple_type":
        return Problem(key, item["input"], f"must be an array of tables: begin each with [[{key}]]")
    if kind == "model_type" or kind == "model_attributes_type":
        return Problem(key, item["input"], "must be a table of keys")
    return Problem(key, item["input"], right_value(item))


def _suggestion(values: Any) -> str:
    close = did_you_mean(values, FAULT_SECTIONS).strip()
    return f"; {close}" if close else ""


def _table_model(location: Sequence[int | str], document: Mapping[str, Any]) -> type[BaseModel]:
    """The model of the table at `location`."""
    model: type[BaseModel] = Scenario
    value: Any = document
    for part in location:
        value = value[part]
        if isinstance(part, int):
            continue
        if part == "faults":
            model = FaultSection
        else:
            model = _section_model(model, part)
    if model is FaultSection and isinstance(value, Mapping):
        model = FAULT_SECTIONS[value["kind"]]
    return model


def _section_model(model: type[BaseModel], key: str) -> type[BaseModel]:
    """The model of the table under `key`, found in the field's annotation."""
    found: list[Any] = [model.model_fields[key].annotation]
    while found:
        annotation = found.pop(0)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return annotation
        found.extend(getattr(annotation, "__args__", ()))
    raise AssertionError(f"{model.__name__}.{key} is not a table")


def _cross_check(scenario: Scenario) -> Iterator[Problem]:
    """Check bounds that depend on another key."""
    brokers, topic = scenario.cluster.brokers, scenario.topic
    if topic.replication_factor > brokers:
        expected = f"must be at most cluster.brokers, which is {brokers}"
        yield Problem("topic.replication_factor", topic.replication_factor, expected)
    if topic.min_insync_replicas > topic.replication_factor:
        expected = f"must be at most topic.replication_factor, which is {topic.replication_factor}"
        yield Problem("topic.min_insync_replicas", topic.min_insync_replicas, expected)
    for index, producers in enumerate(scenario.producers):
        yield from _check_producers(f"producers[{index}]", producers)
    for index, consumers in enumerate(scenario.consumers):
        if consumers.request_timeout_ms <= consumers.max_wait_ms:
            expected = f"must be above max_wait_ms, which is {consumers.max_wait_ms}"
            key = f"consumers[{index}].request_timeout_ms"
            yield Problem(key, consumers.request_timeout_ms, expected)
    if not scenario.producers and not scenario.consumers:
        expected = "there are no clients; give at least one [[producers]] or [[consumers]]"
        yield Problem("producers", ABSENT, expected)
    is_recorded = all(group.arrivals is not None for group in scenario.producers)
    if scenario.duration_ms is None and not (scenario.producers and is_recorded):
        expected = "this key is missing: only a run whose arrivals are all recorded ends by itself"
        yield Problem("duration_ms", ABSENT, expected)
    yield from _check_names(scenario)
    yield from _check_faults(scenario)


def _check_producers(key: str, group: ProducersSection) -> Iterator[Problem]:
    if (group.rate is None) == (group.arrivals is None):
        expected = "give exactly one of rate (records per second) and arrivals (a recorded log)"
        yield Problem(f"{key}.rate", ABSENT if group.rate is None else group.rate, expected)
    if group.record_bytes.p50 < 1:
        yield Problem(f"{key}.record_bytes", group.record_bytes.p50, "must be at least 1")
    if not group.idempotence:
        return
    if group.acks != "all":
        yield Problem(f"{key}.acks", group.acks, 'must be "all" when idempotence is on')
    if group.max_in_flight > MAX_IDEMPOTENT_IN_FLIGHT:
        expected = f"must be at most {MAX_IDEMPOTENT_IN_FLIGHT} when idempotence is on"
        yield Problem(f"{key}.max_in_flight", group.max_in_flight, expected)
    if group.retries == 0:
        yield Problem(f"{key}.retries", 0, "must be at least 1 when idempotence is on")


def _check_names(scenario: Scenario) -> Iterator[Problem]:
    if scenario.topic.name.startswith("__"):
        expected = "topics whose names begin with __ are the cluster's own"
        yield Problem("topic.name", scenario.topic.name, expected)
    names = {
        "producers": [group.group for group in scenario.producers],
        "consumers": [group.group for group in scenario.consumers],
    }
    for section, groups in names.items():
        for index, name in enumerate(groups):
            if name in groups[:index]:
                expected = f"another group of {section} has this name; give each its own"
                yield Problem(f"{section}[{index}].group", name, expected)


def _check_faults(scenario: Scenario) -> Iterator[Problem]:
    producers = [group.group for group in scenario.producers]
    clients = [*producers, *(group.group for group in scenario.consumers)]
    topic = scenario.topic
    expected_values = {
        "broker": range(scenario.cluster.brokers),
        "a": range(scenario.cluster.brokers),
        "b": range(scenario.cluster.brokers),
        "topic": (topic.name,),
        "partition": range(topic.partitions),
        "client_id": clients,
        "api": CLIENT_APIS,
    }
    for index, fault in enumerate(scenario.faults):
        for key, expected in expected_values.items():
            value = getattr(fault, key, None)
            if value is not None and value not in expected:
                words = ", ".join(map(str, expected))
                if isinstance(expected, range):
                    words = f"they are numbered 0 to {expected[-1]}"
                yield Problem(f"faults[{index}].{key}", value, f"there is no such one; {words}")
        if scenario.duration_ms is not None and fault.at_ms >= scenario.duration_ms:
            expected_ms = f"must be below duration_ms, which is {scenario.duration_ms}"
            yield Problem(f"faults[{index}].at_ms", fault.at_ms, expected_ms)


_SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("the top of the file", Scenario),
    ("[cluster]", ClusterSection),
    ("[topic]", TopicSection),
    ("[followers]", FollowersSection),
    ("[network]", NetworkSection),
    ("[[producers]]", ProducersSection),
    ("arrivals, in [[producers]]", ArrivalsSection),
    ("[[consumers]]", ConsumersSection),
)


def describe_scenario() -> str:
    """All sections and keys, as Markdown."""
    sections = [line for title, model in _SECTIONS for line in _section(title, model)]
    return "\n".join([*sections, *_faults()])


def _section(title: str, model: type[BaseModel]) -> Iterator[str]:
    code = f"`{title}`" if title.startswith("[") else title
    yield f"### {code[0].upper()}{code[1:]}"
    yield ""
    for key, field in model.model_fields.items():
        if not _is_table(field):
            yield _item(key, field)
    yield ""


def _faults() -> Iterator[str]:
    """The keys of all kinds of faults, by the kinds that have them: most are the same."""
    kinds_by_item: dict[str, list[str]] = {}
    for kind, model in FAULT_SECTIONS.items():
        for key, field in model.model_fields.items():
            if key != "kind":
                kinds_by_item.setdefault(_item(key, field), []).append(kind)
    items_by_kinds: dict[str, list[str]] = {}
    for item, kinds in kinds_by_item.items():
        missing = [f"`{kind}`" for kind in FAULT_KINDS if kind not in kinds]
        of = ", ".join(f"`{kind}`" for kind in kinds)
        if not missing:
            of = "All kinds"
        elif len(missing) == 1:
            of = f"All but {missing[0]}"
        items_by_kinds.setdefault(of, []).append(item)
    yield "### `[[faults]]`"
    yield ""
    yield "Faults and their times. `kind` is required: [Faults](#faults) lists them."
    yield ""
    for of, items in items_by_kinds.items():
        yield f"{of}:"
        yield ""
        yield from items
        yield ""


def _item(key: str, field: FieldInfo) -> str:
    """A key, in parentheses its default, other values and bounds, and its description."""
    details = ", ".join(filter(None, (_default(field), *_values(field))))
    text = " ".join((field.description or "").split())
    return f"- `{key}` ({details}): {text}" if details else f"- `{key}`: {text}"


def _is_table(field: FieldInfo) -> bool:
    """Whether the key is a table with a section of its own."""
    models = [part for part in _annotation_parts(field.annotation) if isinstance(part, type)]
    return any(issubclass(part, BaseModel) and part is not Spread for part in models) and not any(
        part is Spread for part in models
    )


def _annotation_parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _annotation_parts(part)


def _values(field: FieldInfo) -> Iterator[str]:
    """The values besides the default, and an upper bound that is small enough to matter."""
    parts = list(_annotation_parts(field.annotation))
    for part in parts:
        if get_origin(part) is Literal:
            values = (value for value in get_args(part) if value != field.default)
            yield from (f"`{json.dumps(value)}`" for value in values)
    if Spread in parts:
        yield "spread"
    nested = [part for part in parts if isinstance(part, FieldInfo)]
    bounds = [*field.metadata, *(bound for part in nested for bound in part.metadata)]
    for bound in bounds:
        if isinstance(bound, annotated_types.Le) and float(str(bound.le)) < 10**9:
            yield f"at most {bound.le:,}"


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return ""
    if isinstance(value, Spread):
        if value.p50 == value.p75:
            return f"`{value.p50:g}`"
        return f"`{{ p50 = {value.p50:g}, p75 = {value.p75:g} }}`"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"`{value:_}`"
    return f"`{json.dumps(value)}`"


if __name__ == "__main__":
    print(describe_scenario())
