"""The reference of all scenario keys as Markdown, made from the models.

    python -m purgatory.simulation.scenario_reference

prints what stands in `docs/simulation.md` between two markers; a test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from purgatory.simulation import scenario, scenario_faults

_SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("the top of the file", scenario.Scenario),
    ("[cluster]", scenario.ClusterSection),
    ("[topic]", scenario.TopicSection),
    ("[followers]", scenario.FollowersSection),
    ("[network]", scenario.NetworkSection),
    ("[[producers]]", scenario.ProducersSection),
    ("arrivals, in [[producers]]", scenario.ArrivalsSection),
    ("transactions, in [[producers]]", scenario.TransactionsSection),
    ("[[consumers]]", scenario.ConsumersSection),
    ("[delete_records]", scenario.DeleteRecordsSection),
    *(
        (f"[[faults]] with kind = {kind}", section)
        for kind, section in scenario_faults.FAULT_SECTIONS.items()
    ),
)


def reference() -> str:
    """All sections and keys, as Markdown."""
    return "\n".join(line for title, model in _SECTIONS for line in _section(title, model))


def _section(title: str, model: type[BaseModel]) -> Iterator[str]:
    code = f"`{title}`" if title.startswith("[") else title
    yield f"### {code[0].upper()}{code[1:]}"
    yield ""
    if model.__doc__:
        yield model.__doc__.strip().splitlines()[0]
        yield ""
    yield "| key | value | default | what it is |"
    yield "|---|---|---|---|"
    for key, field in model.model_fields.items():
        if not _is_table(field):
            text = " ".join((field.description or "").split())
            yield f"| `{key}` | {_values(field)} | {_default(field)} | {text} |"
    yield ""


def _is_table(field: FieldInfo) -> bool:
    """Whether the key is a table with a section of its own."""
    models = [part for part in _parts(field.annotation) if isinstance(part, type)]
    return any(
        issubclass(part, BaseModel) and part is not scenario.Spread for part in models
    ) and not any(part is scenario.Spread for part in models)


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def _values(field: FieldInfo) -> str:
    parts = list(_parts(field.annotation))
    for part in parts:
        if get_origin(part) is Literal:
            return " or ".join(f"`{json.dumps(value)}`" for value in get_args(part))
    if scenario.Spread in parts:
        return "number, or `{ p50, p75 }`"
    kind = next(
        name
        for type_, name in (
            (bool, "true or false"),
            (int, "integer"),
            (float, "number"),
            (str, "text"),
        )
        if type_ in parts
    )
    bounds = " ".join(_bounds(field, parts))
    return f"{kind} {bounds}".strip()


def _bounds(field: FieldInfo, parts: list[Any]) -> Iterator[str]:
    nested = [part for part in parts if isinstance(part, FieldInfo)]
    for metadata in [*field.metadata, *(one for part in nested for one in part.metadata)]:
        if isinstance(metadata, annotated_types.Ge):
            yield f">= {metadata.ge}"
        elif isinstance(metadata, annotated_types.Gt):
            yield f"> {metadata.gt}"
        elif isinstance(metadata, annotated_types.Le) and float(str(metadata.le)) < 10**9:
            yield f"<= {metadata.le:,}"


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "must be given"
    if value is None:
        return ""
    if isinstance(value, scenario.Spread):
        if value.p50 == value.p75:
            return f"`{value.p50:g}`"
        return f"`{{ p50 = {value.p50:g}, p75 = {value.p75:g} }}`"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"`{value:_}`"
    return f"`{json.dumps(value)}`"


if __name__ == "__main__":
    print(reference())
