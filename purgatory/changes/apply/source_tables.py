"""Which table of the target stands for which of the source's, and what the source calls its types.

The target's own tables `purgatory_tables` and `purgatory_columns` have it. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

from purgatory.changes.apply.apply_options import ApplyOptions, TableSpec
from purgatory.changes.apply.set_aside import UNKNOWN_TABLE
from purgatory.changes.errors import BadChangeError
from purgatory.changes.targets.target import PREFIX, Table, Target

_NOTHING_SAID = TableSpec()


class SourceTables:
    """The source's tables, by their names with the database, in one target."""

    def __init__(self, target: Target, options: ApplyOptions) -> None:
        self._target = target
        self._options = options

    def said(self, source: str) -> TableSpec:
        """What `--tables` says of a table."""
        return self._options.tables.get(source, _NOTHING_SAID)

    def target_name(self, source: str) -> str:
        """What the target's table is called, or would be."""
        return self.said(source).name or source.partition(".")[2]

    def there(self, source: str) -> Table | None:
        """The table of the target that stands for a source's; None if there is none yet."""
        name = self.target_name(source)
        if self.owner(name) not in (None, source):
            return None
        return self._target.table(name)

    def sources(self) -> list[str]:
        """All for which the target has a table."""
        return [row[1] for row in self._target.select_own("purgatory_tables")]

    def owner(self, name: str) -> str | None:
        """The source's table that a table of the target stands for."""
        folded = self._target.folded(name)
        rows = self._target.select_own("purgatory_tables")
        return next((row[1] for row in rows if self._target.folded(row[0]) == folded), None)

    def claim(self, name: str, source: str) -> None:
        """Note that a table of the target stands for a source's: two never go into one.

        Raises:
            BadChangeError: it stands for another.
        """
        owner = self.owner(name)
        if owner is None:
            self._target.insert_own("purgatory_tables", [(name, source)])
        elif owner != source:
            raise BadChangeError(
                UNKNOWN_TABLE,
                f"the target's table {name} is {owner}'s: give {source} another name (--tables)",
            )

    def disown(self, source: str) -> None:
        """Forget the table that stands for a source's."""
        self._target.delete_own("purgatory_tables", source=source)
        self._target.delete_own("purgatory_columns", source=source)

    def words(self, source: str) -> dict[str, str]:
        """What the source calls the types of a table's columns, as far as it is known."""
        rows = self._target.select_own("purgatory_columns", source=source)
        return {row[1]: row[2] for row in rows}

    def note_words(self, source: str, words: Mapping[str, str]) -> None:
        """Note what the source calls the types of all columns of a table."""
        self._target.delete_own("purgatory_columns", source=source)
        self._target.insert_own(
            "purgatory_columns", [(source, name, kind) for name, kind in words.items()]
        )

    def check_table_name(self, name: str) -> None:
        """Raise BadChangeError if no table of the target can be called so."""
        if name.lower().startswith(PREFIX) or not self._target.name_fits(name):
            raise BadChangeError(UNKNOWN_TABLE, f"no table of the target can be named {name!r}")
