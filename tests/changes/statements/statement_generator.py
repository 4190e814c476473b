"""Random statements for the tables that a source has just now."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.changes.statements.column_kinds import BYTE_KINDS, KINDS, TEXT_KINDS, any_kind
from tests.changes.statements.sessions import Session, Writing, any_session

DATABASE = "@db@"
"""What stands in statements for the name of the program's database."""
_MOST_TABLES = 4


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
    def is_text_key(self) -> bool:
        """Whether an index of it needs a length."""
        return "text" in self.data_type or "blob" in self.data_type or self.data_type == "json"


Catalog = Mapping[str, Sequence[SourceColumn]]
"""The tables of a database."""


@dataclass(frozen=True)
class Step:
    """Statements that one session runs in a row: one, or a transaction."""

    session: int
    statements: Sequence[str]


@dataclass(frozen=True)
class Program:
    """A short life of tables. Generated as it runs, or replayed from its steps."""

    name: str
    sessions: Sequence[Session]
    steps: Sequence[Step]


@dataclass
class StatementGenerator:
    """Writes the steps of one program. The same seed and the same source give the same steps.

    Args:
        careful: leave out what stops by its nature, as types that lose values.
        folds_tables: whether the source takes names of tables without regard to case.
    """

    chance: random.Random
    careful: bool
    folds_tables: bool = False
    sessions: list[Session] = field(init=False)
    _temporary: dict[int, dict[str, str]] = field(init=False, default_factory=dict)
    _made: int = 0

    def __post_init__(self) -> None:
        self.sessions = [any_session(self.chance) for _ in range(self.chance.choice([1, 1, 2, 3]))]

    def next(self, catalog: Catalog) -> Step:
        """Write the next step.

        Args:
            catalog: what the source has now.
        """
        number = self.chance.randrange(len(self.sessions))
        statement = _Statement(
            self, number, Writing(self.chance, self.sessions[number], self.folds_tables), catalog
        )
        return Step(
            number, [sql for sql in statement.some() if self.sessions[number].can_write(sql)]
        )

    def first(self) -> list[Step]:
        """Write a table and its rows, by which each program begins."""
        statement = _Statement(
            self, 0, Writing(self.chance, self.sessions[0], self.folds_tables), {}
        )
        return [Step(0, [sql]) for sql in statement.made_table() if self.sessions[0].can_write(sql)]

    def number(self) -> int:
        """A number that nothing has yet."""
        self._made += 1
        return self._made

    def hidden(self, session: int) -> dict[str, str]:
        """The temporary tables of a session, with a column of each."""
        return self._temporary.setdefault(session, {})


class _Statement:
    """Writes statements of one session for one state of the source."""

    def __init__(
        self, of: StatementGenerator, session: int, writing: Writing, catalog: Catalog
    ) -> None:
        self._of = of
        self._w = writing
        self._chance = writing.chance
        self._catalog = catalog
        self._hidden = of.hidden(session)

    def some(self) -> Sequence[str]:
        tables = [name for name in self._catalog if self._w.session.can_write(name)]
        visible = [name for name in tables if not self._is_hidden(name)]
        if not visible:
            return self.made_table()
        ways: list[tuple[float, Callable[[], Sequence[str]]]] = [
            (5, self._insert), (2, self._update), (1, self._delete), (1, self._transaction),
            (11, self._alter), (1.5, self._index), (1.2, self._rename), (0.8, self._rename_chain),
            (0.9, self._like), (0.9, self._select), (0.7, self._replaced), (1, self.made_table),
            (0.9, self._drop), (0.7, self._truncate), (1.2, self._temporary), (0.6, self._partition),
            (1.2, self._passed), (0.6, self._indirect), (0.3, self._exotic_alter),
        ]  # fmt: skip
        if not self._of.careful:
            ways += [
                (0.8, self._ignore),
                (0.8, self._key_changed),
                (0.6, self._converted),
                (0.5, self._keyless),
            ]
        return self._choose(ways)()

    def _choose(
        self, ways: Sequence[tuple[float, Callable[[], Sequence[str]]]]
    ) -> Callable[[], Sequence[str]]:
        return self._chance.choices([way for _, way in ways], [weight for weight, _ in ways])[0]

    def _is_hidden(self, name: str) -> bool:
        return name in self._hidden

    def _table(self) -> str:
        visible = [
            name for name in sorted(self._catalog)
            if self._w.session.can_write(name) and not self._is_hidden(name)
        ]  # fmt: skip
        return self._chance.choice(visible)

    def _new_table(self) -> str:
        taken = {name.lower() for name in self._catalog}
        if self._chance.random() < 0.03 and self._catalog:
            return self._chance.choice(sorted(self._catalog)).swapcase()
        return f"{self._w.new_name(lambda name: name.lower() in taken)}"

    def _writable(self, table: str) -> list[SourceColumn]:
        return [column for column in self._catalog[table] if self._w.session.can_write(column.name)]

    def _column(self, table: str, *, key: bool = False) -> SourceColumn | None:
        found = [column for column in self._writable(table) if key or column.key != "PRI"]
        return self._chance.choice(found) if found else None

    # Columns -----------------------------------------------------------------------------------

    def literal(self, kind: str) -> str:
        w, chance = self._w, self._chance
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
        w, chance = self._w, self._chance
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
            case 7 if not adds or not self._of.careful:
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
        declared = self._chance.choice(KINDS[kind].declared) if kind in KINDS else kind
        oracle = "ORACLE" in self._w.session.sql_mode
        if not oracle and declared.startswith(("NUMBER", "VARCHAR2", "CLOB", "RAW")):
            declared = KINDS[kind].declared[0]
        if self._chance.random() < 0.2:
            declared = declared.lower() if "'" not in declared else declared
        return declared

    def _computed(self, kind: str) -> str:
        expression = {"int": "1 + 1", "bigint": "2 * 3", "varchar": "'x'"}.get(kind, "NULL")
        way = self._chance.choice(["VIRTUAL", "STORED", "PERSISTENT", ""])
        words = self._chance.choice(["GENERATED ALWAYS AS", "AS"])
        return f"{words} ({expression}) {way}".strip()

    def made_table(self, verb: str = "CREATE TABLE", name: str | None = None) -> Sequence[str]:
        w, chance = self._w, self._chance
        if len(self._catalog) >= _MOST_TABLES and name is None:
            return self._drop()
        table = self._new_table() if name is None else name
        columns: dict[str, str] = {}
        items = []
        key, key_item = self._key()
        columns[key] = "int"
        items.append(key_item)
        taken = {key.lower()}
        for _ in range(chance.randrange(1, 6)):
            column = w.new_name(lambda one: one.lower() in taken)
            taken.add(column.lower())
            kind = any_kind(chance)
            columns[column] = kind
            items.append(w.join(w.quoted(column), self.definition(kind, adds=False)))
        if "PRIMARY" not in key_item and "KEY" not in key_item and "SERIAL" not in key_item:
            items.append(self._key_item(key, columns))
        chance.shuffle(items)
        options = chance.choice(
            ["", "", "", "ENGINE=InnoDB", "DEFAULT CHARSET=latin1", "CHARACTER SET utf8mb4", "COMMENT='PRIMARY KEY'",
             "CHARSET=gbk", "COLLATE=utf8mb4_bin", "ENGINE=Aria", "ENGINE=MyISAM", "ROW_FORMAT=DYNAMIC",
             "/*!50100 PARTITION BY HASH (`" + key + "`) PARTITIONS 2 */"]
        )  # fmt: skip
        if "PARTITION" in options and "INT" not in key_item:
            options = ""
        inner = ",".join(f"{w.maybe(' ')}{item}" for item in items)
        exists = w.maybe("IF NOT EXISTS", 0.2) if "REPLACE" not in verb else ""
        made = w.join(*verb.split(), exists, w.table(table), f"({inner})", options)
        rows = [
            w.join("INSERT IGNORE INTO", w.table(table), f"({w.column(key)})", f"VALUES ({number})")
            for number in range(1, chance.randrange(2, 4))
        ]
        return [made, *rows]

    def _key(self) -> tuple[str, str]:
        w, chance = self._w, self._chance
        name = chance.choice(["id", "id", "ID", "Id", "k", w.new_name(lambda _: False)])
        shown = w.quoted(name)
        kinds = ["INT", "INT", "BIGINT UNSIGNED", "INT NOT NULL", "SMALLINT", "DECIMAL(9,2)", "VARCHAR(20)", "YEAR",
                 "BINARY(4)", "VARCHAR(9) COLLATE utf8mb4_bin"]  # fmt: skip
        kind = chance.choice(kinds)
        match chance.randrange(6):
            case 0:
                return name, w.join(shown, "INT AUTO_INCREMENT PRIMARY KEY")
            case 1:
                return name, w.join(shown, kind, "PRIMARY KEY")
            case 2:
                return name, w.join(shown, "INT", "KEY")
            case _:
                return name, w.join(shown, kind)

    def _key_item(self, key: str, columns: Mapping[str, str]) -> str:
        w, chance = self._w, self._chance
        others = [
            name
            for name, kind in columns.items()
            if kind in ("int", "date", "tinyint", "decimal", "bigint")
        ]
        also = (
            f", {w.column(chance.choice(others))}"
            if len(others) > 1 and chance.random() < 0.2
            else ""
        )
        if also.strip(', `"').lower() == key.lower():
            also = ""
        named = chance.choice(["", "", "CONSTRAINT", "CONSTRAINT c1"])
        return w.join(named, "PRIMARY KEY", f"({w.column(key)}{also})")

    # Rows ---------------------------------------------------------------------------------------

    def _insert(self) -> Sequence[str]:
        return [self._insert_one(self._table()) for _ in range(self._chance.choice([1, 1, 2]))]

    def _insert_one(self, table: str) -> str:
        w, chance = self._w, self._chance
        columns = [column for column in self._writable(table) if not column.is_generated]
        chosen = [column for column in columns if column.key == "PRI" or chance.random() < 0.7]
        rows = []
        for _ in range(chance.randrange(1, 4)):
            values = [
                str(chance.randrange(1, 30))
                if column.key == "PRI" and column.data_type in ("int", "bigint", "smallint", "varchar", "decimal")
                else "DEFAULT" if chance.random() < 0.1
                else "NULL" if column.nullable and chance.random() < 0.1
                else self.literal(column.data_type)
                for column in chosen
            ]  # fmt: skip
            rows.append(f"({', '.join(values)})")
        verb = chance.choice(["INSERT IGNORE INTO", "INSERT IGNORE", "REPLACE INTO"])
        if not chosen:
            return w.join(verb, w.table(table), "() VALUES ()")
        names = ", ".join(w.column(column.name) for column in chosen)
        return w.join(verb, w.table(table), f"({names})", "VALUES", ", ".join(rows))

    def _update(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        table = self._table()
        column = self._column(table, key=chance.random() < 0.15)
        if column is None or column.is_generated:
            return self._insert()
        value = (
            str(chance.randrange(100)) if column.key == "PRI" else self.literal(column.data_type)
        )
        limit = chance.choice(["LIMIT 1", "LIMIT 2", ""]) if column.key != "PRI" else "LIMIT 1"
        return [
            w.join(
                "UPDATE IGNORE", w.table(table), "SET", f"{w.column(column.name)} = {value}", limit
            )
        ]

    def _delete(self) -> Sequence[str]:
        return [self._w.join("DELETE FROM", self._w.table(self._table()), "LIMIT 1")]

    def _transaction(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        begin = chance.choice(["BEGIN", "START TRANSACTION", "BEGIN WORK", "SET autocommit = 0"])
        statements = [
            one
            for _ in range(2)
            for one in chance.choice([self._insert, self._update, self._delete])()
        ]
        if chance.random() < 0.3:
            name = w.quoted("s1")
            statements[1:1] = [f"SAVEPOINT {name}"]
            statements += [f"ROLLBACK TO {w.maybe('SAVEPOINT')} {name}"]
        if chance.random() < 0.2:
            # It commits what is before it.
            statements += self._alter()
        end = chance.choice(["COMMIT", "COMMIT", "ROLLBACK", "COMMIT WORK"])
        return [begin, *statements, end, *(["SET autocommit = 1"] if "autocommit" in begin else [])]

    # Tables -------------------------------------------------------------------------------------

    def _alter(self) -> Sequence[str]:
        table = self._table()
        parts: list[str] = []
        for _ in range(self._chance.choice([1, 1, 1, 2, 3])):
            part = self._alter_part(table)
            if part:
                parts.append(part)
        if not parts:
            return self._insert()
        return [self._alter_with(table, *parts)]

    def _alter_with(self, table: str, *parts: str, ignore: bool = False) -> str:
        w, chance = self._w, self._chance
        sign = chance.choice([", ", ",", " , "])
        first = (
            chance.choice(["ALTER", "ALTER", "alter", "ALTER ONLINE"])
            if not ignore
            else "ALTER IGNORE"
        )
        prefix = "SET STATEMENT max_statement_time = 60 FOR" if chance.random() < 0.04 else ""
        wait = chance.choice(["WAIT 5", "NOWAIT"]) if chance.random() < 0.03 else ""
        exists = w.maybe("IF EXISTS", 0.08)
        return w.join(prefix, first, "TABLE", exists, w.table(table), wait, sign.join(parts))

    def _alter_part(self, table: str) -> str:
        ways: list[tuple[float, Callable[[str], str]]] = [
            (7, self._add), (2, self._drop_column), (2, self._rename_column), (1, self._swap_columns),
            (2, self._change), (2, self._widen), (1, self._nothing), (1, self._default), (0.6, self._add_index),
            (0.8, self._conditional),
        ]  # fmt: skip
        if not self._of.careful:
            ways += [(1.5, self._modify)]
        return self._chance.choices([way for _, way in ways], [weight for weight, _ in ways])[0](
            table
        )

    def _place(self, table: str) -> str:
        column = self._column(table, key=True)
        match self._chance.randrange(5):
            case 0:
                return "FIRST"
            case 1 if column is not None:
                return f"AFTER {self._w.column(column.name)}"
        return ""

    def _new_column(self, table: str) -> str:
        taken = {column.name.lower() for column in self._catalog[table]}
        return self._w.new_name(lambda name: name.lower() in taken)

    def _add(self, table: str) -> str:
        w, chance = self._w, self._chance
        name, kind = self._new_column(table), any_kind(chance)
        definition = self.definition(kind, adds=True)
        match chance.randrange(8):
            case 0:
                return w.join("ADD", f"({w.quoted(name)} {definition})")
            case 1:
                return w.join(
                    "ADD COLUMN", "IF NOT EXISTS", w.quoted(name), definition, self._place(table)
                )
            case _:
                return w.join(
                    "ADD", w.maybe("COLUMN"), w.quoted(name), definition, self._place(table)
                )

    def _conditional(self, table: str) -> str:
        """What does nothing, for a name that is there already or is not."""
        w, chance = self._w, self._chance
        there, kind = self._column(table), any_kind(chance)
        missing = w.quoted(f"missing{chance.randrange(9)}")
        ways = [
            w.join("DROP", w.maybe("COLUMN"), "IF EXISTS", missing),
            w.join("MODIFY", "COLUMN IF EXISTS", missing, "INT"),
            w.join("CHANGE", "COLUMN IF EXISTS", missing, w.quoted("other"), "INT"),
            w.join("RENAME COLUMN IF EXISTS", missing, "TO", w.quoted("other")),
            w.join("DROP INDEX IF EXISTS", missing),
            w.join("DROP CONSTRAINT IF EXISTS", missing),
            w.join("DROP FOREIGN KEY IF EXISTS", missing),
        ]
        if there is not None:
            shown = w.column(there.name)
            ways += 4 * [
                w.join("ADD COLUMN IF NOT EXISTS", shown, self.definition(kind, adds=True))
            ]
        return chance.choice(ways)

    def _drop_column(self, table: str) -> str:
        column = self._column(table)
        if column is None or len(self._catalog[table]) < 3:
            return self._add(table)
        exists = self._w.maybe("IF EXISTS", 0.15)
        return self._w.join("DROP", self._w.maybe("COLUMN"), exists, self._w.column(column.name))

    def _rename_column(self, table: str) -> str:
        w = self._w
        column = self._column(table, key=self._chance.random() < 0.3)
        if column is None:
            return ""
        new = self._new_column(table) if self._chance.random() < 0.8 else column.name.swapcase()
        exists = w.maybe("IF EXISTS", 0.1)
        return w.join("RENAME COLUMN", exists, w.column(column.name), "TO", w.quoted(new))

    def _swap_columns(self, table: str) -> str:
        w = self._w
        columns = self._writable(table)
        if len(columns) < 2:
            return ""
        names = [
            column.name
            for column in self._chance.sample(
                columns, min(len(columns), self._chance.choice([2, 2, 3]))
            )
        ]
        if self._chance.random() < 0.4:
            ends = [*names[1:], self._new_column(table)]
        else:
            ends = [*names[1:], names[0]]
        return ", ".join(
            w.join("RENAME COLUMN", w.column(old), "TO", w.quoted(new))
            for old, new in zip(names, ends, strict=True)
        )

    def _change(self, table: str) -> str:
        w, chance = self._w, self._chance
        column = self._column(table)
        if column is None or column.is_generated:
            return ""
        new = chance.choice([self._new_column(table), column.name, column.name.swapcase()])
        if not w.session.can_write(new):
            new = column.name
        definition = self._wider(column)
        exists = w.maybe("IF EXISTS", 0.1)
        return w.join(
            "CHANGE", w.maybe("COLUMN"), exists, w.column(column.name), w.quoted(new), definition,
            self._place(table),
        )  # fmt: skip

    def _wider(self, column: SourceColumn) -> str:
        """A definition that keeps the column's values, if this kind has one."""
        kind = KINDS.get(column.data_type)
        same = column.column_type
        if "unsigned" in same or "zerofill" in same or kind is None or not kind.widened:
            return same if self._w.session.can_write(same) else column.data_type
        return self._chance.choice(
            [*kind.widened, same if self._w.session.can_write(same) else kind.widened[0]]
        )

    def _widen(self, table: str) -> str:
        column = self._column(table)
        if column is None or column.is_generated:
            return ""
        w, chance = self._w, self._chance
        null = "" if column.nullable or chance.random() < 0.5 else "NOT NULL"
        default = f"DEFAULT {self.literal(column.data_type)}" if chance.random() < 0.2 else ""
        exists = w.maybe("IF EXISTS", 0.1)
        definition = self._wider(column)
        return w.join(
            "MODIFY",
            w.maybe("COLUMN"),
            exists,
            w.column(column.name),
            definition,
            null,
            default,
            self._place(table),
        )

    def _modify(self, table: str) -> str:
        """Any other type."""
        column = self._column(table, key=self._chance.random() < 0.2)
        if column is None:
            return ""
        kind = any_kind(self._chance) if self._chance.random() < 0.5 else column.data_type
        definition = self.definition(kind if kind in KINDS else "int", adds=True)
        return self._w.join("MODIFY", self._w.column(column.name), definition)

    def _nothing(self, table: str) -> str:
        return self._chance.choice(
            ["COMMENT = 'DROP COLUMN id'", "ENGINE=InnoDB", "FORCE", "AUTO_INCREMENT = 50", "ALGORITHM=COPY",
             "ROW_FORMAT=COMPACT", "DEFAULT CHARACTER SET latin1", "CONVERT TO CHARACTER SET utf8mb4",
             "DISABLE KEYS", "STATS_PERSISTENT=1", "CHECKSUM=1", "COLLATE utf8mb4_bin",
             "ADD CONSTRAINT `chk` CHECK (1 = 1)", "ADD CHECK (2 > 1)", "ADD CONSTRAINT CHECK (1)"]
        )  # fmt: skip

    def _default(self, table: str) -> str:
        column = self._column(table)
        if column is None or column.is_generated:
            return ""
        w = self._w
        shown = w.column(column.name)
        if self._chance.random() < 0.3:
            return w.join("ALTER", w.maybe("COLUMN"), shown, "DROP DEFAULT")
        return w.join(
            "ALTER", w.maybe("COLUMN"), shown, "SET DEFAULT", self.literal(column.data_type)
        )

    def _index_columns(self, table: str) -> str:
        w = self._w
        column = self._column(table, key=True)
        if column is None or column.data_type in ("point", "json"):
            return f"({w.column(self._catalog[table][0].name)})"
        return f"({w.column(column.name)}{'(5)' if column.is_text_key else ''})"

    def _add_index(self, table: str) -> str:
        w, chance = self._w, self._chance
        name = chance.choice(
            ["", f"i{chance.randrange(99)}", w.quoted(f"i {chance.randrange(99)}")]
        )
        kind = chance.choice(["INDEX", "KEY", "INDEX", "UNIQUE", "UNIQUE KEY"])
        return w.join(
            "ADD",
            kind,
            w.maybe("IF NOT EXISTS", 0.1) if name else "",
            name,
            self._index_columns(table),
        )

    def _index(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        table, name = self._table(), f"i{chance.randrange(5)}"
        if chance.random() < 0.3:
            return [w.join("DROP INDEX IF EXISTS", name, "ON", w.table(table))]
        kind = chance.choice(["INDEX", "INDEX", "UNIQUE INDEX", "OR REPLACE INDEX"])
        exists = "" if "REPLACE" in kind else "IF NOT EXISTS"
        return [
            w.join("CREATE", kind, exists, name, "ON", w.table(table), self._index_columns(table))
        ]

    def _rename(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        table, new = self._table(), self._new_table()
        match chance.randrange(4):
            case 0:
                word = chance.choice(["TO", "AS", "=", ""])
                return [self._alter_with(table, w.join("RENAME", word, w.table(new)))]
            case 1:
                word = w.join("RENAME TO", w.table(new))
                return [self._alter_with(table, self._add(table), word)]
            case 2:
                return [w.join("RENAME TABLE IF EXISTS", w.table(table), "TO", w.table(new))]
        return [
            w.join("RENAME", chance.choice(["TABLE", "TABLES"]), w.table(table), "TO", w.table(new))
        ]

    def _rename_chain(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        tables = [
            name
            for name in sorted(self._catalog)
            if w.session.can_write(name) and name not in self._hidden
        ]
        new = self._new_table()
        if len(tables) < 2:
            # Through another name, and back with a new table under the old one.
            one = tables[0]
            like = w.join("CREATE TABLE", w.table(new), "LIKE", w.table(one))
            old = f"old{self._of.number()}"
            pairs = [(one, old), (new, one)]
            return [like, self._renames(pairs)]
        one, other = chance.sample(tables, 2)
        match chance.randrange(3):
            case 0:
                return [self._renames([(one, new), (other, one), (new, other)])]
            case 1:
                return [self._renames([(one, new), (other, one)])]
        return [self._renames([(one, new), (new, f"end{self._of.number()}"), (other, new)])]

    def _renames(self, pairs: Sequence[tuple[str, str]]) -> str:
        w = self._w
        return w.join(
            "RENAME TABLE", ", ".join(f"{w.table(old)} TO {w.table(new)}" for old, new in pairs)
        )

    def _like(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        table, new = self._table(), self._new_table()
        like = f"LIKE {w.table(table)}"
        made = w.join(
            "CREATE TABLE",
            w.maybe("IF NOT EXISTS", 0.2),
            w.table(new),
            chance.choice([like, f"({like})"]),
        )
        return [made, w.join("INSERT IGNORE INTO", w.table(new), f"SELECT * FROM {w.table(table)}")]

    def _select(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        table, new = self._table(), self._new_table()
        keys = [column.name for column in self._writable(table) if column.key == "PRI"]
        if not keys:
            return self._insert()
        key = f"(PRIMARY KEY ({', '.join(w.column(name) for name in keys)}))"
        verb = chance.choice(
            [
                "CREATE TABLE",
                "CREATE TABLE",
                "CREATE OR REPLACE TABLE",
                "CREATE TABLE IF NOT EXISTS",
            ]
        )
        if "REPLACE" in verb and chance.random() < 0.5 and len(self._catalog) > 1:
            new = chance.choice([name for name in sorted(self._catalog) if name != table])
        return [
            w.join(
                verb,
                w.table(new),
                key,
                w.maybe("AS"),
                w.maybe("IGNORE", 0.2),
                f"SELECT * FROM {w.table(table)}",
            )
        ]

    def _replaced(self) -> Sequence[str]:
        return self.made_table("CREATE OR REPLACE TABLE", self._table())

    def _drop(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        table = self._table()
        tables = [w.table(table)]
        if chance.random() < 0.3:
            tables.append(w.table(self._table()))
        if chance.random() < 0.3:
            tables.append(w.quoted(f"missing{chance.randrange(9)}"))
        chance.shuffle(tables)
        exists = "IF EXISTS" if len(tables) > 1 or chance.random() < 0.3 else ""
        end = chance.choice(["", "", "", "CASCADE", "RESTRICT", "WAIT 1"])
        return [
            w.join(
                "DROP", chance.choice(["TABLE", "TABLE", "TABLES"]), exists, ", ".join(tables), end
            )
        ]

    def _truncate(self) -> Sequence[str]:
        return [self._w.join("TRUNCATE", self._w.maybe("TABLE"), self._w.table(self._table()))]

    def _partition(self) -> Sequence[str]:
        w = self._w
        table = self._table()
        keys = [column for column in self._writable(table) if column.key == "PRI"]
        if not keys or "int" not in keys[0].data_type:
            return self._insert()
        ways = [
            f"PARTITION BY HASH ({w.column(keys[0].name)}) PARTITIONS 3",
            f"PARTITION BY KEY ({w.column(keys[0].name)}) PARTITIONS 2",
            "REMOVE PARTITIONING",
            "ADD PARTITION PARTITIONS 1",
            "TRUNCATE PARTITION ALL",
            "COALESCE PARTITION 1",
        ]
        return [w.join("ALTER TABLE", w.table(table), self._chance.choice(ways))]

    # What must not reach the copies ----------------------------------------------------------------

    def _temporary(self) -> Sequence[str]:
        """A temporary table that hides one, or a new one; then something with it."""
        w, chance = self._w, self._chance
        if not self._hidden or chance.random() < 0.4:
            name = self._table() if chance.random() < 0.8 else f"tmp{chance.randrange(3)}"
            column = chance.choice(
                ["id", "a", *[one.name for one in self._writable(name)]]
                if name in self._catalog
                else ["id"]
            )
            self._hidden[name] = column
            form = chance.choice(["(LIKE)", "", ""])
            if form and name in self._catalog:
                return [
                    w.join(
                        "CREATE TEMPORARY TABLE", w.table(name), f"LIKE {DATABASE}.{w.quoted(name)}"
                    )
                ]
            return [
                w.join(
                    "CREATE TEMPORARY TABLE", w.table(name), f"({w.quoted(column)} INT, filler INT)"
                )
            ]
        name = chance.choice(sorted(self._hidden))
        shown, column = w.table(name), w.column(self._hidden[name])
        new = f"tmp{chance.randrange(9)}"
        ways = [
            [
                w.join(
                    "ALTER TABLE", shown, "ADD COLUMN", f"z{chance.randrange(99)}", "INT DEFAULT 5"
                )
            ],
            [w.join("ALTER TABLE", shown, "DROP COLUMN filler")],
            [
                w.join(
                    "ALTER TABLE", shown, "RENAME COLUMN", column, "TO", f"z{chance.randrange(99)}"
                )
            ],
            [w.join("TRUNCATE TABLE", shown)],
            [w.join("INSERT INTO", shown, "() VALUES ()")],
            [w.join("CREATE INDEX", f"i{chance.randrange(99)}", "ON", shown, f"({column})")],
        ]
        ends = [
            [w.join("ALTER TABLE", shown, "RENAME TO", new)],
            [w.join("RENAME TABLE", shown, "TO", new)],
            [w.join("DROP TABLE", shown)],
            [w.join("DROP TEMPORARY TABLE", w.maybe("IF EXISTS"), shown)],
            [w.join("DROP TABLE IF EXISTS", shown)],
            [
                w.join("CREATE OR REPLACE TEMPORARY TABLE", shown, "(a INT)"),
                w.join("DROP TEMPORARY TABLE", shown),
            ],
        ]
        if chance.random() < 0.5:
            return chance.choice(ways)
        del self._hidden[name]
        return chance.choice(ends)

    def _passed(self) -> Sequence[str]:
        """Statements that change no row of a table."""
        w, chance = self._w, self._chance
        table, name = self._table(), f"v{self._of.number()}"
        shown = w.table(table)
        ways = [
            [w.join("CREATE VIEW", name, "AS SELECT 1 AS a FROM", shown), f"DROP VIEW {name}"],
            [f"CREATE SEQUENCE {name}", f"DROP SEQUENCE {name}"],
            [w.join("ANALYZE TABLE", shown)],
            [w.join("OPTIMIZE TABLE", shown)],
            [w.join("FLUSH TABLES", shown)],
            [f"CREATE FUNCTION {name}() RETURNS INT RETURN 1", f"DROP FUNCTION IF EXISTS {name}"],
            [
                w.join(
                    "CREATE TRIGGER", name, "BEFORE INSERT ON", shown, "FOR EACH ROW SET @a = 1"
                ),
                f"DROP TRIGGER {name}",
            ],
            [f"CREATE DATABASE IF NOT EXISTS {DATABASE}"],
            [f"ALTER DATABASE {DATABASE} CHARACTER SET {chance.choice(['latin1', 'utf8mb4'])}"],
            [
                f"CREATE EVENT {name} ON SCHEDULE AT '2030-01-01' DO DROP TABLE x",
                f"DROP EVENT {name}",
            ],
        ]
        if "ORACLE" in w.session.sql_mode:
            del ways[5]
        return chance.choice(ways)

    def _indirect(self) -> Sequence[str]:
        """A statement that another one runs."""
        w, chance = self._w, self._chance
        inner = self._alter()[-1]
        if not w.session.can_write(inner):
            return self._insert()
        name = f"p{self._of.number()}"
        match chance.randrange(3):
            case 0:
                return [f"EXECUTE IMMEDIATE {w.text(inner)}"]
            case 1:
                return [
                    f"PREPARE {name} FROM {w.text(inner)}",
                    f"EXECUTE {name}",
                    f"DEALLOCATE PREPARE {name}",
                ]
        body = (
            f"AS BEGIN {inner}\n; END"
            if "ORACLE" in w.session.sql_mode
            else f"BEGIN {inner}\n; END"
        )
        call = "" if "ORACLE" in w.session.sql_mode else "()"
        return [f"CREATE PROCEDURE {name}{call} {body}", f"CALL {name}()", f"DROP PROCEDURE {name}"]

    # What stops by its nature, or what only some sources take ----------------------------------------

    def _ignore(self) -> Sequence[str]:
        w = self._w
        table = self._table()
        part = self._chance.choice([
            w.join("ADD UNIQUE", self._index_columns(table)),
            self._change(table) or self._add(table),
            w.join("ADD PRIMARY KEY", self._index_columns(table)),
            self._modify(table) or self._add(table),
            self._add(table),
        ])  # fmt: skip
        return [self._alter_with(table, part, ignore=True)]

    def _key_changed(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        table = self._table()
        has_key = any(column.key == "PRI" for column in self._catalog[table])
        new = w.join(
            "ADD",
            w.maybe("CONSTRAINT", 0.2),
            "PRIMARY KEY",
            w.maybe("IF NOT EXISTS", 0.1),
            self._index_columns(table),
        )
        if not has_key:
            return [self._alter_with(table, new)]
        match chance.randrange(3):
            case 0:
                return [self._alter_with(table, "DROP PRIMARY KEY")]
            case 1:
                return [self._alter_with(table, "DROP PRIMARY KEY", new)]
        name = self._new_column(table)
        return [
            self._alter_with(
                table,
                "DROP PRIMARY KEY",
                w.join("ADD", w.quoted(name), "INT AUTO_INCREMENT PRIMARY KEY"),
            )
        ]

    def _converted(self) -> Sequence[str]:
        charset = self._chance.choice(
            ["latin1", "utf8mb4", "cp1251", "ascii", "DEFAULT", "utf8mb4 COLLATE utf8mb4_bin"]
        )
        return [self._alter_with(self._table(), f"CONVERT TO CHARACTER SET {charset}")]

    def _keyless(self) -> Sequence[str]:
        """A table as phpMyAdmin dumps it: its key comes later, or never."""
        w, chance = self._w, self._chance
        if len(self._catalog) >= _MOST_TABLES:
            return self._drop()
        table = self._new_table()
        kind = any_kind(chance)
        made = w.join(
            "CREATE TABLE",
            w.table(table),
            f"(id INT NOT NULL, a {self.definition(kind, adds=False)})",
        )
        rows = f"INSERT IGNORE INTO {w.table(table)} (id) VALUES (1), (2)"
        key = self._alter_with(table, w.join("ADD PRIMARY KEY", f"({w.column('id')})"))
        return [made, rows, *([key] if chance.random() < 0.7 else [])]

    def _exotic_alter(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        table = self._table()
        column = self._column(table, key=True)
        if column is None:
            return self._insert()
        shown = w.column(column.name)
        return [
            self._alter_with(
                table,
                chance.choice(
                    [f"ORDER BY {shown}", f"ADD FOREIGN KEY ({shown}) REFERENCES {w.table(table)} ({shown})",
                     f"RENAME INDEX i1 TO {w.quoted('i9')}", "ALTER INDEX i1 IGNORED", "DROP CONSTRAINT chk",
                     "ENABLE KEYS", "MAX_ROWS=5", "DROP KEY IF EXISTS i2"]
                ),
            )
        ]  # fmt: skip
