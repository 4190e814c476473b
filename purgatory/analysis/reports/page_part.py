"""Where a part of a page stands: of which run it tells, and what it may refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PagePart:
    """The part of one run.

    Attributes:
        number: the run's, for identifiers, which a page has once.
        plotted: whether the run gets plots.
        parquet: where the page finds the Parquet of tables, by their names: links, relative to it.
    """

    number: int
    plotted: bool = True
    parquet: Mapping[str, str] = field(default_factory=dict)

    def anchor(self, section: str) -> str:
        """The identifier of a section."""
        return f"{section}-of-{self.number}"

    def rows(self, table: str) -> str:
        """The identifier of the place where the rows of a table are."""
        return f"rows-of-{table}-{self.number}"
