"""Which runs of an analysis stand against which: two folders, two scenarios, or two runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from purgatory.analysis.result_rows import Row, grouped

Groups = Mapping[str, Sequence[Row]]
"""Rows of the table `runs` by the name of their group."""


def two_groups(runs: Sequence[Row], roots: Sequence[str] = ()) -> Groups:
    """The runs in two groups, or none where nothing tells which two.

    Two folders that were given are a group each, the first of them first. Of any other number, the
    runs of each scenario are a group if there are two scenarios; of one scenario, two runs are.

    Args:
        runs: rows of the table of that name.
        roots: the folders that were given.
    """
    for groups in (_by_root(runs, roots), grouped(runs, "scenario"), grouped(runs, "run_id")):
        if len(groups) == 2:
            return _named(groups)
    return {}


def _by_root(runs: Sequence[Row], roots: Sequence[str]) -> Groups:
    if len(roots) != 2:
        return {}
    found = {root: [run for run in runs if _is_in(run["folder"], root)] for root in roots}
    parted = sum(map(len, found.values())) == len(runs)
    return found if parted and all(found.values()) else {}


def _is_in(folder: str, root: str) -> bool:
    inner = PurePath(folder)
    outer = {PurePath(root), Path(root).resolve()}
    return not outer.isdisjoint((inner, *inner.parents))


def _named(groups: Groups) -> Groups:
    """The groups under the plainest names that tell them apart."""
    for names in _names(groups):
        if len(set(names)) == 2:
            return dict(zip(names, groups.values(), strict=True))
    return groups


def _names(groups: Groups) -> Iterator[Sequence[str]]:
    for column in ("scenario", "run_id"):
        values = [{run[column] for run in runs} for runs in groups.values()]
        if all(len(one) == 1 for one in values):
            yield [next(iter(one)) for one in values]
