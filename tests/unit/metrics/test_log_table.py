"""The document's table of log events is what the code logs."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
BOUND_BY = {"log_safely": set[str](), "_op_log": {"purgatory", "operation"}}
"""The functions that log, and what each binds by itself."""


class Event(NamedTuple):
    """A row of the table, or a call."""

    name: str
    level: str
    bound: frozenset[str]


def logged_in(path: Path) -> Iterator[Event]:
    """Yield the events that a file logs."""
    text = path.read_text()
    if not any(name in text for name in BOUND_BY):
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        function = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
        texts = [one.value for one in node.args if isinstance(one, ast.Constant)]
        if function in BOUND_BY and len(texts) >= 2:
            *_logger, level, name = map(str, texts)
            given = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
            yield Event(name, level, frozenset(given | BOUND_BY[function]))


@cache
def logged() -> list[Event]:
    files = [path for folder in ("timer", "purgatory") for path in (ROOT / folder).rglob("*.py")]
    return sorted(event for path in files for event in logged_in(path))


def documented() -> list[Event]:
    text = (ROOT / "docs" / "metrics.md").read_text().split("## Logs")[1]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]+) \|", text, re.MULTILINE)
    return sorted(Event(name, level, frozenset(bound.split(", "))) for name, level, bound in rows)


def test_the_table_has_every_event_that_is_logged_and_no_other() -> None:
    # As sets: two events of one name may differ in what they bind, which has no order.
    assert set(documented()) == set(logged())
    assert len(set(documented())) == len(documented())


def test_no_value_has_the_name_of_a_field_that_each_log_record_has() -> None:
    """The standard library refuses such a record; the event would be lost."""
    record = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}
    for event in logged():
        assert not (event.bound - {"exc_info"}) & record, event.name


def test_every_logging_call_is_by_one_of_these_functions() -> None:
    """Else the table would miss what it logs, and what it raises would stop an operation."""
    for path in [*(ROOT / "timer").glob("*.py"), *(ROOT / "purgatory" / "core").glob("*.py")]:
        if path != ROOT / "timer" / "log.py":
            assert not re.search(r"get_?[lL]ogger|\blogging\b|\bstructlog\b", path.read_text()), (
                path
            )
