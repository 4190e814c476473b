"""The data model of a sweep file, and the paths of settings in its base scenario.

A sweep file is a TOML document: a base scenario, the settings to vary, the number of repetitions,
and questions. `docs/sweep.md` describes it. Errors name the file, the key, the value and what would
be right, in one line for each problem.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from purgatory.pipeline.errors import PipelineError
from purgatory.settings.problems import did_you_mean
from purgatory.sweeps.measures import MEASURES

MOST_REPETITIONS = 1_000
"""The maximum number of repetitions of a point."""

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9._-]+$")]

KeyPath = tuple[str | int, ...]
"""The path of a value in a document: keys of tables and numbers in arrays."""

_STEP = re.compile(r"([A-Za-z0-9_-]+)(?:\[([^\[\]]+)\])?")
_DOT = re.compile(r"\.(?![^\[]*\])")  # a dot in brackets belongs to a group's name
_MAX_DIGITS = 10
_NOT_SWEPT = {
    "seed": "seeds come from `repetitions` and `first_seed`",
    "name": "a run's name says nothing about what happens in it",
    "description": "a description changes nothing",
}


class SweepError(PipelineError):
    """An invalid sweep; the message has a line for each problem."""


class _Table(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


class DrawnSetting(_Table):
    """The distribution of a setting of a random sample: a range, or choices."""

    low: int | float | None = Field(default=None, alias="from")
    """The least value; whole numbers are drawn if it and `to` are whole."""
    high: int | float | None = Field(default=None, alias="to")
    """The greatest value."""
    scale: Literal["linear", "log"] = "linear"
    """`log` draws each power of ten with the same chance."""
    choices: tuple[Any, ...] | None = Field(default=None, strict=False)
    """Values that are drawn with the same chance each."""

    @model_validator(mode="after")
    def _consistent(self) -> DrawnSetting:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.scale != "linear":
                raise ValueError("give either from and to, or choices")
            if not self.choices:
                raise ValueError("choices must have at least one value")
            return self
        if self.low is None or self.high is None:
            raise ValueError("give from and to, or choices")
        if self.low >= self.high:
            raise ValueError(f"from must be below to, which is {self.high:g}")
        if self.scale == "log" and self.low <= 0:
            raise ValueError('from must be above 0 when scale is "log"')
        return self


class SampleTable(_Table):
    """A random sample instead of a grid."""

    count: int = Field(ge=1, le=1_000_000)
    """The number of points."""
    seed: int = Field(default=1, ge=0, le=2**63 - 1)
    """The number from which they are drawn: the same seed draws the same points."""
    settings: dict[str, Any] = Field(min_length=1)
    """The settings to vary, by their paths."""


class HeatmapTable(_Table):
    """A measure over two settings, averaged over seeds and over all other settings."""

    x: str
    """The path of a swept setting."""
    y: str | None = None
    """The path of another; without it, the heat map is a line."""
    measure: str = "produce_expiry_ratio"
    """A column of the table `points`."""


class Question(_Table):
    """The smallest (largest) value of a setting that keeps a measure below (above) x, asked for."""

    find: str
    """The path of the swept setting that is asked for."""
    want: Literal["smallest", "largest"] = "smallest"
    """The choice among the values that are good enough."""
    measure: str = "produce_expiry_ratio"
    """A column of the table `points`."""
    below: float | None = None
    """The bound that the measure must stay under."""
    above: float | None = None
    """The bound that the measure must stay over."""
    per: tuple[str, ...] = Field(default=(), strict=False)
    """Paths of swept settings: an answer for each of their values. Of all other settings, the
    worst value counts."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """The confidence level from which an answer counts as confirmed."""

    @model_validator(mode="after")
    def _one_bound(self) -> Question:
        if (self.below is None) == (self.above is None):
            raise ValueError("give exactly one of below and above")
        if self.find in self.per:
            raise ValueError("per must name other settings than find")
        return self

    @property
    def bound(self) -> float:
        """The number that the measure is compared with."""
        return self.above if self.below is None else self.below  # type: ignore[return-value]


class SweepFile(_Table):
    """A whole sweep."""

    name: Name
    """The sweep's name."""
    description: str = ""
    """The purpose in a sentence."""
    scenario: str = Field(min_length=1)
    """The base scenario: a shipped one's name, or a TOML file; a relative path starts at the sweep
    file's folder."""
    repetitions: int = Field(default=3, ge=1, le=MOST_REPETITIONS)
    """The number of seeds of each point."""
    first_seed: int = Field(default=1, ge=0, le=2**62)
    """The first of these seeds; they follow one another, and are the same for all points."""
    most_seconds: float = Field(default=600.0, gt=0)
    """The limit of a scenario's processor time in seconds, beyond which it counts as failed."""
    grid: dict[str, Any] | None = Field(default=None, min_length=1)
    """The settings to vary, by their paths, each with its values: all combinations are run."""
    sample: SampleTable | None = None
    heatmaps: tuple[HeatmapTable, ...] = Field(default=(), strict=False)
    questions: tuple[Question, ...] = Field(default=(), strict=False)


def read_sweep_file(path: Path) -> SweepFile:
    """Read a sweep file.

    Raises:
        SweepError: it can't be read, is not TOML, or something in it is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise SweepError(f"{path}: cannot be read: {reason}") from error
    return parse_sweep_file(text, str(path))


def parse_sweep_file(text: str, source: str) -> SweepFile:
    """Read a sweep from the text of a TOML document; errors call it `source`.

    Raises:
        SweepError: it is not TOML, or something in it is wrong.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SweepError(f"{source}: not a TOML document: {error}") from error
    try:
        sweep = SweepFile.model_validate(document)
    except ValidationError as error:
        raise SweepError("\n".join(_lines(error, source))) from error
    problems = list(_cross_check(sweep))
    if problems:
        raise SweepError("\n".join(f"{source}: {problem}" for problem in problems))
    return sweep


def settings_by_path(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a grid or a sample, by path: keys with and without quotes mean the same.

    `followers.lag_ms = [1]` is a table in a table for TOML, `"followers.lag_ms" = [1]` is a key.
    """
    for key, value in settings.items():
        path = f"{before}.{key}" if before else key
        if isinstance(value, Mapping) and not {"from", "to", "choices", "scale"} & value.keys():
            yield from settings_by_path(value, path)
        else:
            yield path, value


def problem_text(key: str, value: Any, right: str) -> str:
    """One line about one mistake."""
    return f"{key} = {_value_text(value)}: {right}"


def wording(item: Mapping[str, Any]) -> str:
    """The valid values, from one of pydantic's errors."""
    message = str(item["msg"])
    if item["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "must be a table of keys"
    if item["type"] == "tuple_type":
        return "must be an array"
    if message.startswith("Value error, "):
        return message.removeprefix("Value error, ")
    return message.replace("Input should be ", "must be ")


def _lines(error: ValidationError, source: str) -> Iterator[str]:
    for item in error.errors(include_url=False):
        key = ""
        for part in item["loc"]:
            key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else str(part)
        if item["type"] == "missing":
            yield f"{source}: {key}: this key is missing and must be given"
        elif item["type"] == "extra_forbidden":
            keys = _keys_beside(item["loc"])
            hint = did_you_mean(item["loc"][-1], keys)
            right = f"there is no such key; {hint}the keys here are {', '.join(keys)}"
            yield f"{source}: {problem_text(key, item['input'], right)}"
        else:
            line = problem_text(key or "the sweep", item["input"], wording(dict(item)))
            yield f"{source}: {line}"


def _keys_beside(location: Sequence[int | str]) -> list[str]:
    tables: dict[int | str, type[BaseModel]] = {
        "sample": SampleTable,
        "heatmaps": HeatmapTable,
        "questions": Question,
    }
    table = SweepFile if len(location) == 1 else tables[location[0]]
    return [field.alias or name for name, field in table.model_fields.items()]


def _cross_check(sweep: SweepFile) -> Iterator[str]:
    """Errors that concern several keys."""
    if (sweep.grid is None) == (sweep.sample is None):
        yield "give exactly one of [grid] (lists of values) and [sample] (ranges and choices)"
    for table in ("heatmaps", "questions"):
        for number, item in enumerate(getattr(sweep, table)):
            if item.measure not in MEASURES:
                hint = did_you_mean(item.measure, MEASURES)
                right = f"is no measure; {hint}measures are {', '.join(MEASURES)}"
                yield problem_text(f"{table}[{number}].measure", item.measure, right)


def _value_text(value: Any) -> str:
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    if isinstance(value, bool):
        text = str(value).lower()
    return text if len(text) <= 80 else text[:77] + "..."


# Paths of settings
#
# A path has the keys of the scenario file, joined by dots, such as `producers[orders].timeout_ms`.
# After `producers`, `consumers` and `faults`, brackets select one: by its number from 0, by the
# name of the group, or `*` for all of them.


class PathError(ValueError):
    """An invalid path of a setting; the message names valid ones."""


def resolve_path(path: str, document: Mapping[str, Any]) -> tuple[KeyPath, ...]:
    """The key paths of a setting in a scenario's document; several with `[*]`.

    Args:
        path: as written in the sweep file.
        document: a scenario with all its keys, the default ones too.

    Raises:
        PathError: there is no such setting in this scenario.
    """
    if path in _NOT_SWEPT:
        raise PathError(f"can't be swept: {_NOT_SWEPT[path]}")
    steps = [_STEP.fullmatch(part) for part in _DOT.split(path)]
    matches: list[tuple[KeyPath, Any]] = [((), document)]
    for step in steps:
        if step is None:
            raise PathError(
                "is no path of a setting: give keys joined by dots, as followers.lag_ms or "
                "producers[0].timeout_ms"
            )
        matches = [
            further
            for key_path, value in matches
            for further in _follow(key_path, value, step[1], step[2])
        ]
    return tuple(key_path for key_path, _ in matches)


def value_at(document: Any, key_path: KeyPath) -> Any:
    """The value at an existing key path."""
    for part in key_path:
        document = document[part]
    return document


def with_value(document: Any, key_path: KeyPath, value: Any) -> Any:
    """A copy of a document with another value at a key path, sharing the rest. O(keys in it)."""
    if not key_path:
        return value
    copy = list(document) if isinstance(document, list) else dict(document)
    copy[key_path[0]] = with_value(document[key_path[0]], key_path[1:], value)  # type: ignore[index]
    return copy


def column_name(path: str) -> str:
    """The name of the setting's column: the path with `_` for everything but letters and digits."""
    return re.sub(r"[^A-Za-z0-9]+", "_", path.replace("[*]", "")).strip("_")


def _follow(
    key_path: KeyPath, value: Any, key: str, which: str | None
) -> Iterator[tuple[KeyPath, Any]]:
    if not isinstance(value, Mapping):
        path = _text(key_path)
        if value is None:
            raise PathError(f"the base scenario has no {path}; give it there first")
        if isinstance(value, Sequence) and not isinstance(value, str):
            raise PathError(f"say which of {path}: {path}[0], {_names(value)}or {path}[*]")
        raise PathError(f"{path} is no table: there is nothing in it to sweep")
    if key not in value:
        hint = did_you_mean(key, value)
        raise PathError(f"there is no key {key!r}; {hint}the keys here are {', '.join(value)}")
    if which is None:
        yield (*key_path, key), value[key]
        return
    items = value[key]
    if not isinstance(items, list):
        raise PathError(f"{_text((*key_path, key))} is not an array: leave out [{which}]")
    for number in _select(items, which, key):
        yield (*key_path, key, number), items[number]


def _select(items: Sequence[Any], which: str, key: str) -> Sequence[int]:
    if not items:
        raise PathError(f"the base scenario has no {key}; give them there first")
    if which == "*":
        return range(len(items))
    if which.isdecimal() and len(which) < _MAX_DIGITS:
        if int(which) < len(items):
            return [int(which)]
        raise PathError(f"there is no {key}[{which}]; they are numbered 0 to {len(items) - 1}")
    numbers = [number for number, item in enumerate(items) if _group(item) == which]
    if not numbers:
        raise PathError(
            f"there is no {key}[{which}]; there are {_names(items)}0 to {len(items) - 1}"
        )
    return numbers


def _group(item: Any) -> str | None:
    return item.get("group") if isinstance(item, Mapping) else None


def _names(items: Sequence[Any]) -> str:
    return "".join(f"[{name}], " for name in map(_group, items) if name is not None)


def _text(key_path: KeyPath) -> str:
    text = ""
    for part in key_path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
