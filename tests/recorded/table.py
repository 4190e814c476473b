"""The table of differences: those that are meant, and those that are not yet mended.

The table is strict both ways: a difference without an entry fails a program's test, and so does an
entry that no longer occurs. An entry names its steps; `v4..9` in a step's name stands for these
versions, and `*` for anything, in meant entries.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from tests.recorded.comparison import Difference

MEANT_FILE = Path(__file__).parent / "meant.toml"
UNMENDED_FILE = Path(__file__).parent / "unmended.toml"
UNKNOWN = "?"
"""The subject of an entry that `python -m tests.recorded.judge --update` has added."""

_VERSIONED = re.compile(r"^(\S+) v([\d.,]+)( .*)$")


class Entry:
    """A difference of some programs, in some of their steps.

    Args:
        programs: their names.
        steps: the names of the steps, folded or with stars.
        paths: the paths of the fields, in which stars may stand for anything.
        theirs: the value of a real Kafka, likewise.
        ours: ours.
        reason: why it is meant, or the subject of the defect.
    """

    def __init__(
        self,
        programs: Sequence[str],
        steps: Sequence[str],
        paths: Sequence[str],
        theirs: str,
        ours: str,
        reason: str,
    ) -> None:
        self.programs = programs
        self.steps = steps
        self.paths = paths
        self.theirs = theirs
        self.ours = ours
        self.reason = reason

    def __str__(self) -> str:
        return f"{', '.join(self.paths)}: theirs {self.theirs}, ours {self.ours}"

    @cached_property
    def _names(self) -> Collection[str]:
        return {name for step in self.steps for name in unfold(step) if "*" not in name}

    @cached_property
    def _patterns(self) -> Sequence[re.Pattern[str]]:
        return [_pattern(name) for step in self.steps for name in unfold(step) if "*" in name]

    @cached_property
    def _fields(self) -> Sequence[re.Pattern[str]]:
        return [_pattern(path) for path in self.paths]

    @cached_property
    def _values(self) -> Sequence[re.Pattern[str]]:
        return [_pattern(text) for text in (self.theirs, self.ours)]

    def explains(self, difference: Difference) -> bool:
        """Whether it is an entry for this difference."""
        step = difference.step
        if step not in self._names and not any(one.match(step) for one in self._patterns):
            return False
        return self._has_fields(difference)

    def explains_elsewhere(self, difference: Difference) -> bool:
        """Whether it would be an entry for this difference in another step of the same API."""
        return self._has_api(difference.step) and self._has_fields(difference)

    def _has_api(self, step: str) -> bool:
        apis = {name.split(" ")[0] for name in self.steps}
        return "*" in apis or step.split(" ", maxsplit=1)[0] in apis

    def _has_fields(self, difference: Difference) -> bool:
        pairs = zip(self._values, (difference.theirs, difference.ours), strict=True)
        is_at = any(one.match(difference.path) for one in self._fields)
        return is_at and all(one.match(text) for one, text in pairs)

    def unused(self, differences: Iterable[Difference]) -> Sequence[str]:
        """Return its steps and paths that are none of the differences that it explains."""
        explained = [one for one in differences if self.explains(one)]
        steps = {one.step for one in explained}
        paths = {one.path for one in explained}
        unused = [name for name in self._names if name not in steps]
        unused += [one.pattern for one in self._patterns if not any(map(one.match, steps))]
        for text, pattern in zip(self.paths, self._fields, strict=True):
            if not any(map(pattern.match, paths)):
                unused.append(text)
        return sorted(unused)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))) + r"\Z", re.DOTALL)


class Verdict(NamedTuple):
    """A program's differences beside the table's entries.

    Args:
        unexplained: differences without an entry.
        unused: entries, with the steps and paths in which they don't occur.
    """

    unexplained: Sequence[Difference]
    unused: Sequence[tuple[Entry, Sequence[str]]]

    def __str__(self) -> str:
        lines = [
            f"differs: {name} {path}: theirs {theirs}, ours {ours}"
            for name, path, theirs, ours in self.unexplained
        ]
        for entry, places in self.unused:
            lines.append(f"no longer so: {entry} at {', '.join(places)} ({entry.reason})")
        return "\n".join(lines)


def judge(differences: Sequence[Difference], entries: Sequence[Entry]) -> Verdict:
    """Compare a program's differences with its entries."""
    unexplained = [
        difference
        for difference in differences
        if not any(entry.explains(difference) for entry in entries)
    ]
    unused = [(entry, entry.unused(differences)) for entry in entries]
    return Verdict(unexplained, [(entry, places) for entry, places in unused if places])


# The files.


@cache
def read_entries(file: Path) -> Sequence[Entry]:
    """Return the entries of a file."""
    if not file.exists():
        return []
    rows = tomllib.loads(file.read_text()).get("difference", [])
    return [Entry(**row) for row in rows]


def entries_of(program: str) -> Sequence[Entry]:
    """Return a program's entries, meant or not yet mended."""
    both = (*read_entries(MEANT_FILE), *read_entries(UNMENDED_FILE))
    return [entry for entry in both if program in entry.programs]


def entries_of_all(start: str) -> Sequence[Entry]:
    """Return the entries of all programs whose names begin so."""
    both = (*read_entries(MEANT_FILE), *read_entries(UNMENDED_FILE))
    return [entry for entry in both if any(one.startswith(start) for one in entry.programs)]


def write_unmended(differences: Iterable[tuple[str, Difference]]) -> None:
    """Write the entries of all programs' differences that aren't meant.

    Entries keep their reasons; one of a new field has `UNKNOWN`, which a test refuses.
    """
    reasons: dict[tuple[str, ...], str] = {}
    for entry in read_entries(UNMENDED_FILE):
        for path in entry.paths:
            key = (entry.programs[0], path, entry.theirs, entry.ours)
            reasons |= {key[:length]: entry.reason for length in _ALIKE}
    steps: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for program, difference in differences:
        names = steps[program, *difference[1:]]
        if difference.step not in names:
            names.append(difference.step)
    paths: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for key, names in steps.items():
        program, path, theirs, ours = key
        reason = next((reasons[key[:n]] for n in _ALIKE if key[:n] in reasons), UNKNOWN)
        paths[program, theirs, ours, reason, *fold(names)].append(path)
    entries = (
        _toml(program, names, of, theirs, ours, reason)
        for (program, theirs, ours, reason, *names), of in paths.items()
    )
    UNMENDED_FILE.write_text("\n".join([_HEAD, *entries]))
    read_entries.cache_clear()


def _toml(
    program: str, steps: Sequence[str], paths: Sequence[str], theirs: str, ours: str, reason: str
) -> str:
    return "\n".join(
        [
            "[[difference]]",
            f"programs = [{json.dumps(program)}]",
            f"steps = {_toml_list(steps)}",
            f"paths = {_toml_list(paths)}",
            f"theirs = {json.dumps(theirs)}",
            f"ours = {json.dumps(ours)}",
            f"reason = {json.dumps(reason)}",
            "",
        ]
    )


def _toml_list(texts: Sequence[str]) -> str:
    """Return a list of TOML, filled to lines of a hundred characters."""
    whole = f"[{', '.join(map(json.dumps, texts))}]"
    if len(whole) <= _LINE:
        return whole
    lines = ["    "]
    for text in texts:
        item = f"{json.dumps(text)},"
        if len(lines[-1]) + len(item) > _LINE and lines[-1].strip():
            lines.append("    ")
        lines[-1] += item if lines[-1].endswith("    ") else f" {item}"
    return "\n".join(["[", *lines, "]"])


_LINE = 96

_HEAD = """\
# Differences from a real Kafka that are defects, and not yet mended. This file is written anew by
# `python -m tests.recorded.judge --update`; the reasons, which it keeps, name the defects.
"""


_ALIKE = (4, 3, 2)
"""A new entry has the reason of one that is equal in program, path, theirs and ours, or in less."""


# Names of steps.


def fold(names: Iterable[str]) -> list[str]:
    """Write the versions of equal steps as one name: ``Fetch v4..9,12 beyond the end``."""
    versions: dict[tuple[str, str], list[int]] = defaultdict(list)
    folded: dict[str, None] = {}
    for name in names:
        parts = _VERSIONED.match(name)
        if parts is None or not parts[2].isdigit():
            folded[name] = None
        else:
            versions[parts[1], parts[3]].append(int(parts[2]))
    for (api, rest), numbers in versions.items():
        folded[f"{api} v{','.join(_ranges(sorted(set(numbers))))}{rest}"] = None
    return list(folded)


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    first = numbers[0]
    for number, after in zip(numbers, [*numbers[1:], None], strict=True):
        if after != number + 1:
            yield f"{first}" if first == number else f"{first}..{number}"
            first = after or 0


def unfold(name: str) -> Iterator[str]:
    """Yield the names for which a folded one stands."""
    parts = _VERSIONED.match(name)
    if parts is None:
        yield name
        return
    for part in parts[2].split(","):
        first, _, last = part.partition("..")
        for version in range(int(first), int(last or first) + 1):
            yield f"{parts[1]} v{version}{parts[3]}"


# The document.


def render_meant() -> str:
    """Return the meant differences as a table of Markdown, a row for each reason."""
    groups: dict[str, list[Entry]] = defaultdict(list)
    for entry in read_entries(MEANT_FILE):
        groups[entry.reason].append(entry)
    rows = []
    for reason, entries in groups.items():
        fields = _codes(path for entry in entries for path in entry.paths)
        theirs = _codes(entry.theirs for entry in entries)
        ours = _codes(entry.ours for entry in entries)
        rows.append(f"| {_programs(entries)} | {fields} | {theirs} | {ours} | {reason} |")
    head = ["| programs | field | Kafka | ours | why |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def _programs(entries: Iterable[Entry]) -> str:
    programs = dict.fromkeys(name for entry in entries for name in entry.programs)
    return ", ".join(programs) if len(programs) <= _FEW else f"{len(programs)} programs"


_FEW = 5


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(map(_code, texts)))


def _code(text: str) -> str:
    return "any" if text == "*" else f"`{text}`".replace("|", r"\|")


if __name__ == "__main__":
    print(render_meant())
