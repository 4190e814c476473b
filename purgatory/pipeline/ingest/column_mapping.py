"""The mapping file: where a trace's columns are in files that other programs wrote.

TOML, one section for each table, one key for each column of the schema:

    [operations]
    broker = "node"                                # the column of another name
    purgatory = { value = "Produce" }              # the same in all rows

    [sends]
    outcome = { from = "type", values = { info = "unknown" } }    # other words
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from purgatory.pipeline.errors import TraceError
from purgatory.settings.problems import known_names
from purgatory.trace.trace_schema import IDS, TABLES

_KEYS = ("from", "values", "value")


@dataclass(frozen=True)
class Source:
    """The source of a column's values.

    Either the column `name`, whose values are translated as `values` has their texts, if it is
    given; or, with `name` None, the constant `value`, which is null if it is None. An id may be a
    text, a time a timestamp.
    """

    name: str | None
    value: str | int | bool | None = None
    values: Mapping[str, str | int | bool] | None = None
    is_id: bool = False
    is_time: bool = False

    @property
    def takes_texts(self) -> bool:
        """Whether values of any type are read as text."""
        return self.values is not None or self.is_id


ColumnMapping = Mapping[str, Mapping[str, Source]]
"""The sources of each table's columns that don't stand under their own names."""


GivenMapping = ColumnMapping | Mapping[str, Any] | str | PathLike[str] | None
"""A mapping, the data of one, or its file; None: no column has another name."""


def mapping_of(given: GivenMapping) -> ColumnMapping:
    """The mapping that a user gave.

    Raises:
        TraceError: as `read_mapping` and `parse_mapping` have it.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return read_mapping(Path(given))
    sources = [
        source
        for columns in given.values()
        for source in (columns.values() if isinstance(columns, Mapping) else [columns])
    ]
    if sources and all(isinstance(source, Source) for source in sources):
        return given
    return parse_mapping(given)


def read_mapping(path: Path) -> ColumnMapping:
    """The mapping in a file.

    Raises:
        TraceError: the file can't be read, or is invalid; the text names the line or the key.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: is not UTF-8, at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: is not TOML: {error}") from error
    return parse_mapping(document, str(path))


def parse_mapping(document: Mapping[str, Any], where: str = "mapping") -> ColumnMapping:
    """A mapping given as data, as the TOML file would have it.

    Raises:
        TraceError: the mapping is invalid; the text begins with `where` and names the key.
    """
    mapping: dict[str, dict[str, Source]] = {}
    for table, columns in document.items():
        if table not in TABLES:
            raise TraceError(
                f"{where}: [{table}]: there is no such table; {known_names(table, TABLES)}"
            )
        if not isinstance(columns, Mapping):
            raise TraceError(
                f"{where}: {table} must be a section [{table}] with a key for each column, and is "
                f"{columns!r}"
            )
        mapping[table] = {
            column: _source(f"{where}: {table}.{column}", table, column, entry)
            for column, entry in columns.items()
        }
        _check_names(f"{where}: [{table}]", table, mapping[table])
    return mapping


def sources_of(table: str, mapping: ColumnMapping | None) -> dict[str, Source]:
    """The source of each column of a table, in the order of the schema."""
    columns = {} if mapping is None else mapping.get(table, {})
    return {
        name: replace(
            columns.get(name, Source(name)), is_id=name in IDS, is_time=name.endswith("_us")
        )
        for name in TABLES[table]
    }


def _source(key: str, table: str, column: str, entry: Any) -> Source:
    kinds = TABLES[table]
    if column not in kinds:
        raise TraceError(f"{key}: there is no such column; {known_names(column, kinds)}")
    if isinstance(entry, str):
        entry = {"from": entry}
    if not isinstance(entry, Mapping):
        raise TraceError(f'{key} must be a name or {{ from = "name" }}, and is {entry!r}')
    unknown = sorted(entry.keys() - set(_KEYS))
    if unknown:
        raise TraceError(f"{key}.{unknown[0]}: is not known; {known_names(unknown[0], _KEYS)}")
    if ("from" in entry) == ("value" in entry):
        names = " and ".join(name for name in _KEYS if name in entry) or "neither"
        raise TraceError(f"{key}: must have either from or value, and has {names}")
    if "value" in entry:
        if "values" in entry:
            raise TraceError(f"{key}.values: goes with from, and value is the same in all rows")
        return Source(None, value=_constant(f"{key}.value", column, kinds[column], entry["value"]))
    if not isinstance(entry["from"], str) or not entry["from"]:
        raise TraceError(f"{key}.from must be the name of a column, and is {entry['from']!r}")
    values = None
    if "values" in entry:
        values = _translations(f"{key}.values", column, kinds[column], entry["values"])
    return Source(entry["from"], values=values)


def _translations(key: str, column: str, kind: str, entry: Any) -> Mapping[str, str | int | bool]:
    if not isinstance(entry, Mapping) or not entry:
        raise TraceError(f'{key} must be {{ "file value" = value }}, and is {entry!r}')
    return {text: _constant(f"{key}.{text}", column, kind, value) for text, value in entry.items()}


def _constant(key: str, column: str, kind: str, value: Any) -> Any:
    if column in IDS and isinstance(value, str):
        return value
    expected: type | None = {"string": str, "boolean": bool, "int": int, "bigint": int}.get(kind)
    if expected is None:
        raise TraceError(f"{key}: a column of type {kind} can't be a constant")
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        raise TraceError(f"{key} must be of type {kind}, and is {value!r}")
    bits = {"int": 31, "bigint": 63}.get(kind)
    if bits is not None and not -(2**bits) <= value < 2**bits:
        raise TraceError(f"{key} must fit {bits + 1} bits, and is {value}")
    return value


def _check_names(where: str, table: str, columns: Mapping[str, Source]) -> None:
    """Reject names that differ only in case, which Spark ignores."""
    names: dict[str, str] = {}
    for source in sources_of(table, {table: columns}).values():
        if source.name is not None:
            other = names.setdefault(source.name.lower(), source.name)
            if other != source.name:
                raise TraceError(
                    f"{where}: {other!r} and {source.name!r} differ in upper and lower case only"
                )
