"""Parts of ALTER TABLE, in their many forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.databases.cdc.statements.column_kinds import KINDS, any_kind
from tests.databases.cdc.statements.scene import Scene, SourceColumn


class AlterStatements:
    """Writes statements that alter one table."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._w = scene.writing
        self._chance = scene.chance

    def some(self) -> Sequence[str]:
        table = self._scene.table()
        parts: list[str] = []
        for _ in range(self._chance.choice([1, 1, 1, 2, 3])):
            part = self._alter_part(table)
            if part:
                parts.append(part)
        if not parts:
            return []
        return [self.alter_with(table, *parts)]

    def alter_with(self, table: str, *parts: str, ignore: bool = False) -> str:
        w, chance = self._w, self._chance
        sign = chance.choice([", ", ",", " , "])
        first = (
            chance.choice(["ALTER", "ALTER", "alter", "ALTER ONLINE"])
            if not ignore
            else "ALTER IGNORE"
        )
        prefix = ""
        if chance.random() < 0.05:
            variable = chance.choice(
                ["max_statement_time = 60", "time_zone = '+03:00'", "sql_mode = ''",
                 "sql_mode = 'ANSI_QUOTES'", "sql_mode = 'NO_BACKSLASH_ESCAPES'"]
            )  # fmt: skip
            prefix = f"SET STATEMENT {variable} FOR"
        wait = chance.choice(["WAIT 5", "NOWAIT"]) if chance.random() < 0.03 else ""
        exists = w.maybe("IF EXISTS", 0.08)
        return w.join(prefix, first, "TABLE", exists, w.table(table), wait, sign.join(parts))

    def _alter_part(self, table: str) -> str:
        ways: list[tuple[float, Callable[[str], str]]] = [
            (7, self.add), (2, self._drop_column), (2, self._rename_column),
            (1, self._swap_columns),
            (2, self._change), (2, self._widen), (1, self._nothing), (1, self._default),
            (0.6, self._add_index),
            (0.8, self._conditional),
        ]  # fmt: skip
        if not self._scene.careful:
            ways += [(1.5, self._modify)]
        return self._chance.choices([way for _, way in ways], [weight for weight, _ in ways])[0](
            table
        )

    def add(self, table: str) -> str:
        w, chance = self._w, self._chance
        name, kind = self._scene.new_column(table), any_kind(chance)
        definition = self._scene.definition(kind, adds=True)
        match chance.randrange(8):
            case 0 if chance.random() < 0.2:
                column = "INT AUTO_INCREMENT UNIQUE"
                return w.join("ADD", w.quoted(name), chance.choice([column, "INT UNIQUE"]))
            case 0:
                return w.join("ADD", f"({w.quoted(name)} {definition})")
            case 1:
                return w.join(
                    "ADD COLUMN",
                    "IF NOT EXISTS",
                    w.quoted(name),
                    definition,
                    self._scene.place(table),
                )
            case _:
                return w.join(
                    "ADD", w.maybe("COLUMN"), w.quoted(name), definition, self._scene.place(table)
                )

    def _conditional(self, table: str) -> str:
        """A clause without effect, for an existing or a missing name."""
        w, chance = self._w, self._chance
        there, kind = self._scene.column(table), any_kind(chance)
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
                w.join("ADD COLUMN IF NOT EXISTS", shown, self._scene.definition(kind, adds=True))
            ]
        return chance.choice(ways)

    def _drop_column(self, table: str) -> str:
        column = self._scene.column(table)
        if column is None or len(self._scene.catalog[table]) < 3:
            return self.add(table)
        exists = self._w.maybe("IF EXISTS", 0.15)
        return self._w.join("DROP", self._w.maybe("COLUMN"), exists, self._w.column(column.name))

    def _rename_column(self, table: str) -> str:
        w = self._w
        column = self._scene.column(table, key=self._chance.random() < 0.3)
        if column is None:
            return ""
        new = (
            self._scene.new_column(table) if self._chance.random() < 0.8 else column.name.swapcase()
        )
        exists = w.maybe("IF EXISTS", 0.1)
        return w.join("RENAME COLUMN", exists, w.column(column.name), "TO", w.quoted(new))

    def _swap_columns(self, table: str) -> str:
        w = self._w
        columns = self._scene.writable(table)
        if len(columns) < 2:
            return ""
        names = [
            column.name
            for column in self._chance.sample(
                columns, min(len(columns), self._chance.choice([2, 2, 3]))
            )
        ]
        if self._chance.random() < 0.4:
            ends = [*names[1:], self._scene.new_column(table)]
        else:
            ends = [*names[1:], names[0]]
        return ", ".join(
            w.join("RENAME COLUMN", w.column(old), "TO", w.quoted(new))
            for old, new in zip(names, ends, strict=True)
        )

    def _change(self, table: str) -> str:
        w, chance = self._w, self._chance
        column = self._scene.column(table)
        if column is None or column.is_generated:
            return ""
        new = chance.choice([self._scene.new_column(table), column.name, column.name.swapcase()])
        if not w.session.can_write(new):
            new = column.name
        definition = self._wider(column)
        exists = w.maybe("IF EXISTS", 0.1)
        return w.join(
            "CHANGE", w.maybe("COLUMN"), exists, w.column(column.name), w.quoted(new), definition,
            self._scene.place(table),
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
        column = self._scene.column(table)
        if column is None or column.is_generated:
            return ""
        w, chance = self._w, self._chance
        null = "" if column.nullable or chance.random() < 0.5 else "NOT NULL"
        default = (
            f"DEFAULT {self._scene.literal(column.data_type)}" if chance.random() < 0.2 else ""
        )
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
            self._scene.place(table),
        )

    def _modify(self, table: str) -> str:
        """Any other type."""
        column = self._scene.column(table, key=self._chance.random() < 0.2)
        if column is None:
            return ""
        kind = any_kind(self._chance) if self._chance.random() < 0.5 else column.data_type
        definition = self._scene.definition(kind if kind in KINDS else "int", adds=True)
        return self._w.join("MODIFY", self._w.column(column.name), definition)

    def _nothing(self, table: str) -> str:
        return self._chance.choice(
            ["COMMENT = 'DROP COLUMN id'", "ENGINE=InnoDB", "FORCE", "AUTO_INCREMENT = 50",
            "ALGORITHM=COPY",
             "ROW_FORMAT=COMPACT", "DEFAULT CHARACTER SET latin1",
             "CONVERT TO CHARACTER SET utf8mb4",
             "DISABLE KEYS", "STATS_PERSISTENT=1", "CHECKSUM=1", "COLLATE utf8mb4_bin",
             "ADD CONSTRAINT `chk` CHECK (1 = 1)", "ADD CHECK (2 > 1)", "ADD CONSTRAINT CHECK (1)"]
        )  # fmt: skip

    def _default(self, table: str) -> str:
        column = self._scene.column(table)
        if column is None or column.is_generated:
            return ""
        w = self._w
        shown = w.column(column.name)
        if self._chance.random() < 0.3:
            return w.join("ALTER", w.maybe("COLUMN"), shown, "DROP DEFAULT")
        return w.join(
            "ALTER", w.maybe("COLUMN"), shown, "SET DEFAULT", self._scene.literal(column.data_type)
        )

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
            self._scene.index_columns(table),
        )

    def partition(self) -> Sequence[str]:
        w = self._w
        table = self._scene.table()
        keys = [column for column in self._scene.writable(table) if column.key == "PRI"]
        if not keys or "int" not in keys[0].data_type:
            return []
        ways = [
            f"PARTITION BY HASH ({w.column(keys[0].name)}) PARTITIONS 3",
            f"PARTITION BY KEY ({w.column(keys[0].name)}) PARTITIONS 2",
            "REMOVE PARTITIONING",
            "ADD PARTITION PARTITIONS 1",
            "TRUNCATE PARTITION ALL",
            "COALESCE PARTITION 1",
        ]
        return [w.join("ALTER TABLE", w.table(table), self._chance.choice(ways))]

    def ignore(self) -> Sequence[str]:
        w = self._w
        table = self._scene.table()
        part = self._chance.choice([
            w.join("ADD UNIQUE", self._scene.index_columns(table)),
            self._change(table) or self.add(table),
            w.join("ADD PRIMARY KEY", self._scene.index_columns(table)),
            self._modify(table) or self.add(table),
            self.add(table),
        ])  # fmt: skip
        return [self.alter_with(table, part, ignore=True)]

    def key_changed(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        table = self._scene.table()
        has_key = any(column.key == "PRI" for column in self._scene.catalog[table])
        new = w.join(
            "ADD",
            w.maybe("CONSTRAINT", 0.2),
            "PRIMARY KEY",
            w.maybe("IF NOT EXISTS", 0.1),
            self._scene.index_columns(table),
        )
        if not has_key:
            return [self.alter_with(table, new)]
        match chance.randrange(3):
            case 0:
                return [self.alter_with(table, "DROP PRIMARY KEY")]
            case 1:
                return [self.alter_with(table, "DROP PRIMARY KEY", new)]
        name = self._scene.new_column(table)
        return [
            self.alter_with(
                table,
                "DROP PRIMARY KEY",
                w.join("ADD", w.quoted(name), "INT AUTO_INCREMENT PRIMARY KEY"),
            )
        ]

    def converted(self) -> Sequence[str]:
        charset = self._chance.choice(
            ["latin1", "utf8mb4", "cp1251", "ascii", "DEFAULT", "utf8mb4 COLLATE utf8mb4_bin"]
        )
        return [self.alter_with(self._scene.table(), f"CONVERT TO CHARACTER SET {charset}")]

    def exotic(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        table = self._scene.table()
        column = self._scene.column(table, key=True)
        if column is None:
            return []
        shown = w.column(column.name)
        return [
            self.alter_with(
                table,
                chance.choice(
                    [f"ORDER BY {shown}",
                    f"ADD FOREIGN KEY ({shown}) REFERENCES {w.table(table)} ({shown})",
                     f"RENAME INDEX i1 TO {w.quoted('i9')}", "ALTER INDEX i1 IGNORED",
                     "DROP CONSTRAINT chk",
                     "ENABLE KEYS", "MAX_ROWS=5", "DROP KEY IF EXISTS i2"]
                ),
            )
        ]  # fmt: skip
