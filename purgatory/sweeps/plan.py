"""The plan of a sweep: every scenario to be run, with its settings, its seed and its key.

A scenario's key is a hash of everything that its outcome depends on: all its settings, the seed,
the request logs that it plays, and the code that runs it. Results are stored by key, so that a
sweep that is run again, or extended, runs only new scenarios.

Ground rules
------------
* A plan is plain data, small, and the same for the same file. The whole plan is sent to every task,
  and each task derives its scenarios from their numbers.
* The value of a parameter at a point of a sample depends on the seed of the sample, the number of
  the point and the path of the parameter alone. A larger sample therefore begins with the same
  points, and another parameter leaves the others as they were.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import pairwise
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from purgatory.pipeline.result_rows import text
from purgatory.simulation import LoadedScenario, Scenario, ScenarioError, load_scenario
from purgatory.sweeps.measures import RESULTS
from purgatory.sweeps.sweep_file import (
    DrawnSetting,
    KeyPath,
    PathError,
    SweepError,
    SweepFile,
    column_name,
    parse_sweep_file,
    problem_text,
    read_sweep_file,
    resolve_path,
    settings_by_path,
    value_at,
    with_value,
    wording,
)

MOST_SCENARIOS = 1_000_000
"""The number of scenarios of a sweep: the driver has all of them in memory."""

_NOT_IN_KEY = ("name", "description", "seed")
_FIXED_COLUMNS = ("point", "seed", *RESULTS.names)

MOST_LEVELS = 30
"""The number of values of a parameter in heat maps and answers; more of them are put in bins."""

_BINS = 10
_DIGITS = 6


# Parameters


@dataclass(frozen=True)
class Range:
    """The range from which a number is drawn."""

    low: float
    high: float
    log: bool
    whole: bool

    def draw(self, chance: Random) -> float | int:
        """A number of the range: whole, or of six digits, the same on every machine."""
        share = chance.random()
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            value = math.exp(low + share * (high - low))
        elif self.whole:
            return int(self.low) + int(share * (int(self.high) - int(self.low) + 1))
        else:
            value = self.low + share * (self.high - self.low)
        value = float(f"{min(max(value, self.low), self.high):.{_DIGITS}g}")
        return round(value) if self.whole else value

    def edges(self) -> list[float]:
        """The bounds of the bins that stand for the range in tables."""
        if self.log:
            factor = self.high / self.low
            return [self.low * factor ** (number / _BINS) for number in range(_BINS + 1)]
        width = self.high - self.low
        return [self.low + width * number / _BINS for number in range(_BINS + 1)]


@dataclass(frozen=True)
class Parameter:
    """A swept setting.

    Args:
        path: from the sweep file.
        key_paths: of the setting in the scenario's document.
        values: from the file; empty for a range.
        normal: the values after validation by the scenario, which are in keys.
        span: the range, if it has no list of values.
        wraps: whether a plain number stands for a distribution with a spread of 0.
        floats: whether an integer stands for a float.
    """

    path: str
    key_paths: tuple[KeyPath, ...]
    values: tuple[Any, ...]
    normal: tuple[Any, ...]
    span: Range | None = None
    wraps: bool = False
    floats: bool = False

    @property
    def column(self) -> str:
        """The name of its column."""
        return column_name(self.path)

    @property
    def type(self) -> pa.DataType:
        """The type of its column: text, unless all values are numbers or all are truth values."""
        if self.span is not None:
            return pa.int64() if self.span.whole else pa.float64()
        kinds = {type(value) for value in self.values}
        if kinds == {bool}:
            return pa.bool_()
        if kinds == {int}:
            return pa.int64()
        return pa.float64() if kinds <= {int, float} else pa.string()

    def shown(self, value: Any) -> Any:
        """A value as its column has it."""
        kind = self.type
        if kind == pa.string():
            return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        return float(value) if kind == pa.float64() else value

    def normalize(self, value: Any) -> Any:
        """A drawn value as the scenario takes it."""
        if self.wraps:
            return {"p50": float(value), "p75": float(value)}
        return float(value) if self.floats else value

    def draw(self, seed: int, point: int) -> tuple[Any, Any]:
        """The value of a point of a sample: as it is shown, and as the scenario takes it."""
        chance = Random(f"{seed}:{point}:{self.path}")
        if self.span is not None:
            value = self.span.draw(chance)
            return value, self.normalize(value)
        number = int(chance.random() * len(self.values))
        return self.values[number], self.normal[number]

    def levels(self) -> list[Level]:
        """Its values, or bins of them, in heat maps and answers, in ascending order."""
        shown = list(dict.fromkeys(self.shown(value) for value in self.values))
        if self.type in (pa.int64(), pa.float64()):
            shown.sort()
        if self.span is None and (len(shown) <= MOST_LEVELS or self.type == pa.string()):
            return [Level(label, value, value) for label, value in _labeled(shown)]
        chosen = self.span or Range(shown[0], shown[-1], log=False, whole=False)
        return [
            Level(f"{low_label} to {high_label}", low, high)
            for (low_label, low), (high_label, high) in pairwise(_labeled(chosen.edges()))
        ]

    @property
    def binned(self) -> bool:
        """Whether its levels are bins."""
        return any(level.low != level.high for level in self.levels())


def _labeled(values: Sequence[Any]) -> list[tuple[str, Any]]:
    """Values with labels, which have all digits if two would have the same."""
    labels = [text(value) for value in values]
    if len(set(labels)) < len(labels):
        labels = list(map(repr, values))
    return list(zip(labels, values, strict=True))


@dataclass(frozen=True)
class Level:
    """One value of a setting, or a bin of values from `low` up to `high`."""

    label: str
    low: Any
    high: Any

    @property
    def middle(self) -> float | None:
        """The middle of a bin, for a numeric scale; None if it is no number."""
        if isinstance(self.low, bool) or not isinstance(self.low, int | float):
            return None
        return float(self.low + self.high) / 2


# Plans


@dataclass(frozen=True)
class Plan:
    """All scenarios of a sweep, numbered: all seeds of point 0, then of point 1, and so on.

    Args:
        sweep: the file.
        source: its name in errors.
        folder: where the base scenario's relative paths start.
        base: the base scenario with all its keys, as plain data.
        parameters: the swept settings.
    """

    sweep: SweepFile
    source: str
    folder: Path
    base: Mapping[str, Any]
    parameters: tuple[Parameter, ...]

    @property
    def points(self) -> int:
        """The number of combinations of settings."""
        if self.sweep.sample is not None:
            return self.sweep.sample.count
        return prod(len(parameter.values) for parameter in self.parameters)

    @property
    def scenarios(self) -> int:
        """The number of simulations: each point with each seed."""
        return self.points * self.sweep.repetitions

    def seed(self, number: int) -> int:
        """The seed of a scenario."""
        return self.sweep.first_seed + number % self.sweep.repetitions

    def point(self, number: int) -> int:
        """The number of a scenario's point."""
        return number // self.sweep.repetitions

    def values(self, point: int) -> list[tuple[Any, Any]]:
        """A point's value on each parameter: as it is shown, and as the scenario takes it."""
        sample = self.sweep.sample
        if sample is not None:
            return [parameter.draw(sample.seed, point) for parameter in self.parameters]
        chosen = []
        for parameter in reversed(self.parameters):
            point, index = divmod(point, len(parameter.values))
            chosen.append((parameter.values[index], parameter.normal[index]))
        return chosen[::-1]

    def document(self, point: int) -> dict[str, Any]:
        """A point's whole scenario, not validated; its seed is the base scenario's."""
        document = self.base
        for parameter, (_, normal) in zip(self.parameters, self.values(point), strict=True):
            for key_path in parameter.key_paths:
                document = with_value(document, key_path, normal)
        return dict(document)

    def table(self) -> pa.Table:
        """A row per scenario, in order: point, the swept settings, seed, key. O(scenarios)."""
        points = [self.point(number) for number in range(self.scenarios)]
        cells = [
            [
                parameter.shown(value)
                for parameter, (value, _) in zip(self.parameters, values, strict=True)
            ]
            for values in map(self.values, range(self.points))
        ]
        keys = list(self.keys())
        columns: list[tuple[str, pa.DataType, list[Any]]] = [("point", pa.int64(), points)]
        for column, parameter in enumerate(self.parameters):
            columns.append(
                (parameter.column, parameter.type, [cells[point][column] for point in points])
            )
        columns.append(("seed", pa.int64(), [self.seed(n) for n in range(self.scenarios)]))
        columns.append(("key", pa.string(), keys))
        return pa.table(
            [pa.array(values, kind) for _, kind, values in columns],
            schema=pa.schema([pa.field(name, kind, nullable=False) for name, kind, _ in columns]),
        )

    def keys(self) -> Iterator[str]:
        """The key of each scenario, in order. O(scenarios)."""
        log_digest = cache(_file_digest)
        for point in range(self.points):
            document = self.document(point)
            head = {name: item for name, item in document.items() if name not in _NOT_IN_KEY}
            of_point = hashlib.sha256(
                json.dumps(
                    [code_digest(), head, _logs(document, self.folder, log_digest)],
                    sort_keys=True,
                    default=str,
                ).encode()
            )
            for repetition in range(self.sweep.repetitions):
                of_scenario = of_point.copy()
                of_scenario.update(f":{self.sweep.first_seed + repetition}".encode())
                yield of_scenario.hexdigest()[:32]

    def parameter(self, path: str) -> Parameter:
        """The parameter of a swept setting that exists."""
        return next(parameter for parameter in self.parameters if parameter.path == path)


def load_plan(path: str | Path) -> Plan:
    """Read a sweep file and its base scenario, and plan all scenarios.

    Raises:
        SweepError: something in the file or the base scenario is wrong; a line for each thing.
    """
    file = Path(path)
    return _plan(read_sweep_file(file), str(path), file.resolve().parent)


def parse_plan(text: str, source: str = "sweep", folder: Path | None = None) -> Plan:
    """Plan the sweep in the text of a TOML document.

    Args:
        text: the document.
        source: its name in errors.
        folder: where a relative path of the base scenario starts; the current one by default.

    Raises:
        SweepError: something in it is wrong.
    """
    return _plan(parse_sweep_file(text, source), source, (folder or Path()).resolve())


def _plan(sweep: SweepFile, source: str, folder: Path) -> Plan:
    base = _base(sweep, source, folder)
    document = base.scenario.model_dump(mode="json")
    table = "grid" if sweep.sample is None else "sample.settings"
    settings = (sweep.grid if sweep.sample is None else sweep.sample.settings) or {}
    problems: list[str] = []
    parameters = []
    for path, value in settings_by_path(settings):
        try:
            parameters.append(_parameter(path, value, document, drawn=sweep.sample is not None))
        except _ProblemError as error:
            problems += [f'{source}: {table}."{path}"{line}' for line in error.lines]
    plan = Plan(sweep, source, base.folder.resolve(), document, tuple(parameters))
    if not problems:
        problems = [f"{source}: {problem}" for problem in _cross_check(plan)]
    if problems:
        raise SweepError("\n".join(problems))
    return plan


def _base(sweep: SweepFile, source: str, folder: Path) -> LoadedScenario:
    name = sweep.scenario
    is_path = name.endswith(".toml") or Path(name).name != name
    try:
        return load_scenario(folder / name if is_path else name)
    except ScenarioError as error:
        line = problem_text("scenario", name, "the base scenario can't be used:")
        raise SweepError(f"{source}: {line}\n{error}") from error


class _ProblemError(Exception):
    """The defects of a setting, in lines that follow its path."""

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)
        self.lines = lines


def _parameter(path: str, value: Any, document: Mapping[str, Any], *, drawn: bool) -> Parameter:
    try:
        key_paths = resolve_path(path, document)
    except PathError as error:
        raise _ProblemError(f": {error}") from error
    setting = _drawn_setting(value) if drawn else None
    if setting is not None and setting.choices is None:
        assert setting.low is not None and setting.high is not None
        whole = isinstance(setting.low, int) and isinstance(setting.high, int)
        span = Range(setting.low, setting.high, setting.scale == "log", whole)
        ends = [_normal(key_paths, end, document, "") for end in (setting.low, setting.high)]
        wraps = isinstance(ends[0], Mapping)
        floats = isinstance(ends[0], float)
        return Parameter(path, key_paths, (), (), span, wraps, floats)
    values = list(setting.choices or ()) if setting is not None else value
    if not isinstance(values, list) or not values:
        raise _ProblemError(f" = {values!r}: must be a list of at least one value")
    normal: list[Any] = []
    lines: list[str] = []
    for number, item in enumerate(values):
        try:
            normal.append(_normal(key_paths, item, document, f"[{number}]"))
        except _ProblemError as error:
            lines += error.lines
    if lines:
        raise _ProblemError(*lines)
    return Parameter(path, key_paths, tuple(values), tuple(normal))


def _drawn_setting(value: Any) -> DrawnSetting:
    right = "must be { from = ..., to = ... }, with scale if you like, or { choices = [...] }"
    if not isinstance(value, Mapping):
        raise _ProblemError(f" = {value!r}: {right}")
    try:
        return DrawnSetting.model_validate(value)
    except ValidationError as error:
        raise _ProblemError(
            *(
                "".join(f".{part}" for part in item["loc"]) + f": {wording(dict(item))}"
                for item in error.errors(include_url=False)
            )
        ) from error


def _normal(
    key_paths: tuple[KeyPath, ...], value: Any, document: Mapping[str, Any], which: str
) -> Any:
    """A value as the scenario takes it.

    A value that is invalid by itself is an error. A value that is invalid only beside other
    settings is left: another setting of the same point may make it right.
    """
    changed: Any = document
    for key_path in key_paths:
        changed = with_value(changed, key_path, value)
    try:
        valid = Scenario.model_validate(changed)
    except ValidationError as error:
        lines = [
            f"{which} = {value!r}: {wording(dict(item))}"
            for item in error.errors(include_url=False)
            if any(_is_at(dict(item), key_path) for key_path in key_paths)
        ]
        if lines:
            raise _ProblemError(*dict.fromkeys(lines)) from error
        return value
    return value_at(valid.model_dump(mode="json"), key_paths[0])


def _is_at(item: Mapping[str, Any], key_path: KeyPath) -> bool:
    """Whether one of pydantic's errors is about a place, or what is in it."""
    location = tuple(item["loc"])
    if key_path[-1] == "kind" and item["type"] == "union_tag_invalid":
        return location == key_path[:-1]
    # The kind of a fault stands in the location of its errors.
    if len(key_path) > 1 and key_path[0] == "faults" and len(location) > 2:
        location = (*location[:2], *location[3:])
    return location[: len(key_path)] == key_path


def _cross_check(plan: Plan) -> Iterator[str]:
    if plan.scenarios > MOST_SCENARIOS:
        yield (
            f"the sweep has {plan.scenarios:,} scenarios ({plan.points:,} points x "
            f"{plan.sweep.repetitions} seeds); at most {MOST_SCENARIOS:,} are possible: leave out "
            "values, or draw a [sample]"
        )
    columns: dict[str, str] = dict.fromkeys(_FIXED_COLUMNS, "a column of every sweep")
    for parameter in plan.parameters:
        if parameter.column in columns:
            taken = f"its column {parameter.column!r} is taken: {columns[parameter.column]}"
            yield f'"{parameter.path}": {taken}'
        columns[parameter.column] = f'that of "{parameter.path}"'
    swept = {parameter.path for parameter in plan.parameters}
    paths = [
        (f"heatmaps[{number}].{key}", path)
        for number, heatmap in enumerate(plan.sweep.heatmaps)
        for key, path in (("x", heatmap.x), ("y", heatmap.y))
        if path is not None
    ]
    for number, question in enumerate(plan.sweep.questions):
        paths.append((f"questions[{number}].find", question.find))
        paths += [(f"questions[{number}].per", path) for path in question.per]
    for key, path in paths:
        if path not in swept:
            right = f"is not swept; swept are {', '.join(sorted(swept))}"
            yield problem_text(key, path, right)


def _logs(
    document: Mapping[str, Any], folder: Path, digest: Callable[[Path], str]
) -> dict[str, str]:
    """The request logs that a scenario plays, and what is in them."""
    files = [
        group["arrivals"]["file"]
        for group in document["producers"]
        if isinstance(group, Mapping) and isinstance(group.get("arrivals"), Mapping)
    ]
    return {str(file): digest(folder / Path(str(file)).expanduser()) for file in files}


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "missing"


# The code that runs a scenario, as a hash.


PACKAGES = (
    "timer",
    "purgatory.core",
    "purgatory.kafka",
    "purgatory.settings",
    "purgatory.trace",
    "purgatory.simulation",
)
MEASURES = "measures.py"
"""The one file of this package that turns the outcome of a run into columns."""


@cache
def code_digest() -> str:
    """Return the hash of all code that runs a scenario. O(bytes of the code), once a process.

    A version number would have to be raised with each change. Comments count as well: a sweep is
    run again once too often rather than once too rarely.
    """
    files = [file for package in PACKAGES for file in _files(resources.files(package), package)]
    files.append((MEASURES, resources.files("purgatory.sweeps") / MEASURES))
    return digest_of(files)


def digest_of(files: Iterable[tuple[str, Traversable]]) -> str:
    """Return the hash of files by name, independent of their order."""
    found = sorted((name, file.read_bytes()) for name, file in files)
    digest = hashlib.sha256()
    for name, content in found:
        digest.update(f"{name}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()


def _files(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        inner = f"{name}/{entry.name}"
        if entry.is_dir():
            yield from _files(entry, inner)
        elif entry.name.endswith(".py"):
            yield inner, entry
