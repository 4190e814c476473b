"""Where a part of a page stands: of which run it tells, and what it may refer to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PagePart:
    """The part of one run.

    Attributes:
        number: the run's, for identifiers, which a page has once.
        plotted: whether the run gets plots.
        has_tables: whether the tables of results are in folders beside the page.
    """

    number: int
    plotted: bool = True
    has_tables: bool = False

    def anchor(self, section: str) -> str:
        """The identifier of a section."""
        return f"{section}-of-{self.number}"

    def rows(self, table: str) -> str:
        """The identifier of the place where the rows of a table are."""
        return f"rows-of-{table}-{self.number}"
