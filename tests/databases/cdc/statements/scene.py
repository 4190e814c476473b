"""The state in which a statement is written: a session, and the tables that the source has now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.databases.cdc.statements.column_kinds import BYTE_KINDS, KINDS, TEXT_KINDS
from tests.databases.cdc.statements.sessions import Writing


@dataclass(frozen=True)
class SourceColumn:
    """A column as ``information_schema`` has it now."""

    name: str
    data_type: str
    column_type: str
    nullable: bool
    key: str
    extra: str

    @property
    def is_generated(self) -> bool:
        """Whether the source computes it."""
        return "GENERATED" in self.extra

    @property
    def needs_prefix(self) -> bool:
        """Whether an index of it needs a length."""
        return "text" in self.data_type or "blob" in self.data_type or self.data_type == "json"


Catalog = Mapping[str, Sequence[SourceColumn]]
"""The tables of a database."""


class Scene:
    """Chooses tables, columns and definitions.

    Args:
        hidden: the session's temporary tables, each with a column of it.
        careful: leave out what stops by its nature, and types that lose values.
    """

    def __init__(
        self, writing: Writing, catalog: Catalog, hidden: dict[str, str], *, careful: bool
    ) -> None:
        self.writing = writing
        self.chance = writing.chance
        self.catalog = catalog
        self.hidden = hidden
        self.careful = careful

    def tables(self) -> list[str]:
        """The tables that the session can name and that none of its temporary ones hides."""
        return [
            name
            for name in sorted(self.catalog)
            if self.writing.session.can_write(name) and name not in self.hidden
        ]

    def table(self) -> str:
        """One of them."""
        return self.chance.choice(self.tables())

    def new_table(self) -> str:
        taken = {name.lower() for name in self.catalog}
        if self.chance.random() < 0.03 and self.catalog:
            return self.chance.choice(sorted(self.catalog)).swapcase()
        return f"{self.writing.new_name(lambda name: name.lower() in taken)}"

    def writable(self, table: str) -> list[SourceColumn]:
        return [
            column for column in self.catalog[table] if self.writing.session.can_write(column.name)
        ]

    def column(self, table: str, *, key: bool = False) -> SourceColumn | None:
        found = [column for column in self.writable(table) if key or column.key != "PRI"]
        return self.chance.choice(found) if found else None

    def literal(self, kind: str) -> str:
        w, chance = self.writing, self.chance
        if kind in TEXT_KINDS and chance.random() < 0.35:
            return w.text(w.letters())
        if kind in BYTE_KINDS and chance.random() < 0.1:
            return w.text(w.letters())
        found = chance.choice(KINDS[kind].literals) if kind in KINDS else "NULL"
        if "\\" in found and not w.session.backslash_escapes and found.count("'") > 2:
            return "'c:\\dir\\'"
        if found.startswith('"') and w.session.double_quotes_names:
            return "'x'"
        return found

    def definition(self, kind: str, *, adds: bool) -> str:
        """A column's type with attributes.

        Args:
            adds: whether the table may have rows already.
        """
        w, chance = self.writing, self.chance
        declared = self._declared(kind)
        parts = [declared]
        if (
            chance.random() < 0.05
            and kind in ("varchar", "text", "blob", "varbinary")
            and "CHAR" not in declared[4:]
        ):
            parts.append("COMPRESSED")
        match chance.randrange(10):
            case 0:
                parts.append("NULL")
            case 1:
                parts.append("NOT NULL")
            case 2:
                parts.append(w.maybe("NULL") and "NULL")
                parts.append("DEFAULT NULL")
            case 3 | 4 | 5 | 6:
                attributes = [w.maybe("NOT NULL", 0.3), f"DEFAULT {self.literal(kind)}"]
                chance.shuffle(attributes)
                parts += attributes
            case 7 if not adds or not self.careful:
                parts.append(self._computed(kind))
        if chance.random() < 0.08:
            parts.append(f"COMMENT {w.text(w.letters())}")
        if chance.random() < 0.04:
            parts.append("INVISIBLE")
        if chance.random() < 0.04 and kind != "json":
            parts.append("CHECK (1 = 1)")
        if chance.random() < 0.03 and not adds:
            parts.append("UNIQUE")
        return w.join(*parts)

    def _declared(self, kind: str) -> str:
        declared = self.chance.choice(KINDS[kind].declared) if kind in KINDS else kind
        oracle = "ORACLE" in self.writing.session.sql_mode
        if not oracle and declared.startswith(("NUMBER", "VARCHAR2", "CLOB", "RAW")):
            declared = KINDS[kind].declared[0]
        if self.chance.random() < 0.2:
            declared = declared.lower() if "'" not in declared else declared
        return declared

    def _computed(self, kind: str) -> str:
        expression = {"int": "1 + 1", "bigint": "2 * 3", "varchar": "'x'"}.get(kind, "NULL")
        way = self.chance.choice(["VIRTUAL", "STORED", "PERSISTENT", ""])
        words = self.chance.choice(["GENERATED ALWAYS AS", "AS"])
        return f"{words} ({expression}) {way}".strip()

    def place(self, table: str) -> str:
        column = self.column(table, key=True)
        match self.chance.randrange(5):
            case 0:
                return "FIRST"
            case 1 if column is not None:
                return f"AFTER {self.writing.column(column.name)}"
        return ""

    def new_column(self, table: str) -> str:
        taken = {column.name.lower() for column in self.catalog[table]}
        return self.writing.new_name(lambda name: name.lower() in taken)

    def index_columns(self, table: str) -> str:
        w = self.writing
        column = self.column(table, key=True)
        if column is None or column.data_type in ("point", "json"):
            return f"({w.column(self.catalog[table][0].name)})"
        return f"({w.column(column.name)}{'(5)' if column.needs_prefix else ''})"
