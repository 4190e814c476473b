"""Random statements for the tables that a source has just now."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.databases.cdc.statements.alter_statements import AlterStatements
from tests.databases.cdc.statements.column_kinds import any_kind
from tests.databases.cdc.statements.scene import Catalog, Scene
from tests.databases.cdc.statements.sessions import Session, Writing, any_session

DATABASE = "@db@"
"""A placeholder in statements for the name of the program's database."""
_MOST_TABLES = 4


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
        careful: leave out what stops by its nature, and types that lose values.
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
            catalog: the present tables of the source.
        """
        number = self.chance.randrange(len(self.sessions))
        session = self.sessions[number]
        statements = self._statements(number, catalog).some()
        return Step(number, [sql for sql in statements if session.can_write(sql)])

    def first(self) -> list[Step]:
        """Write a table and its rows, by which each program begins."""
        made = self._statements(0, {}).made_table()
        return [Step(0, [sql]) for sql in made if self.sessions[0].can_write(sql)]

    def _statements(self, number: int, catalog: Catalog) -> _Statements:
        writing = Writing(self.chance, self.sessions[number], self.folds_tables)
        hidden = self._temporary.setdefault(number, {})
        return _Statements(Scene(writing, catalog, hidden, careful=self.careful), self.number)

    def number(self) -> int:
        """A number that nothing has yet."""
        self._made += 1
        return self._made


class _Statements:
    """Writes statements of one session for one state of the source."""

    def __init__(self, scene: Scene, number: Callable[[], int]) -> None:
        self._scene = scene
        self._w = scene.writing
        self._chance = scene.chance
        self._alters = AlterStatements(scene)
        self._number = number

    def some(self) -> Sequence[str]:
        if not self._scene.tables():
            return self.made_table()
        ways: list[tuple[float, Callable[[], Sequence[str]]]] = [
            (5, self._insert), (2, self._update), (1, self._delete), (1.5, self._transaction),
            (0.5, self._prepared), (0.4, self._loaded),
            (11, self._alters.some), (1.5, self._index), (1.2, self._rename),
            (0.8, self._rename_chain),
            (0.9, self._like), (0.9, self._select), (0.7, self._replaced), (1, self.made_table),
            (0.9, self._drop), (0.7, self._truncate), (1.2, self._temporary),
            (0.6, self._alters.partition),
            (1.2, self._passed), (0.6, self._indirect), (0.3, self._alters.exotic),
        ]  # fmt: skip
        if not self._scene.careful:
            ways += [
                (0.8, self._alters.ignore),
                (0.8, self._alters.key_changed),
                (0.6, self._alters.converted),
                (0.5, self._keyless),
            ]
        return self._chance.choices([way for _, way in ways], [weight for weight, _ in ways])[0]()

    def made_table(self, verb: str = "CREATE TABLE", name: str | None = None) -> Sequence[str]:
        w, chance = self._w, self._chance
        if len(self._scene.catalog) >= _MOST_TABLES and name is None:
            return self._drop()
        table = self._scene.new_table() if name is None else name
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
            definition = self._scene.definition(kind, adds=False)
            if chance.random() < 0.08:
                of = f"CONCAT({w.column(key)}, 'x')"
                way = chance.choice(["VIRTUAL", "STORED", "PERSISTENT"])
                definition = w.join("VARCHAR(60)", f"AS ({of})", way)
            items.append(w.join(w.quoted(column), definition))
        if "PRIMARY" not in key_item and "KEY" not in key_item and "SERIAL" not in key_item:
            items.append(self._key_item(key, columns))
        chance.shuffle(items)
        options = chance.choice(
            [*8 * [""], "ENGINE=InnoDB", "DEFAULT CHARSET=latin1", "CHARACTER SET utf8mb4",
             "COMMENT='PRIMARY KEY'", "CHARSET=gbk", "COLLATE=utf8mb4_bin", "ROW_FORMAT=DYNAMIC",
             "/*!50100 PARTITION BY HASH (`" + key + "`) PARTITIONS 2 */", "CHARSET sjis"]
        )  # fmt: skip
        if chance.random() < 0.05:
            options = chance.choice(["ENGINE=Aria", "ENGINE=MyISAM", "ENGINE=MEMORY"])
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
        kinds = ["INT", "INT", "BIGINT UNSIGNED", "INT NOT NULL", "SMALLINT", "DECIMAL(9,2)",
        "VARCHAR(20)", "YEAR",
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

    def _insert(self) -> Sequence[str]:
        return [
            self._insert_one(self._scene.table()) for _ in range(self._chance.choice([1, 1, 2]))
        ]

    def _insert_one(self, table: str) -> str:
        w, chance = self._w, self._chance
        columns = [column for column in self._scene.writable(table) if not column.is_generated]
        chosen = [column for column in columns if column.key == "PRI" or chance.random() < 0.7]
        rows = []
        for _ in range(chance.randrange(1, 4)):
            values = [
                str(chance.randrange(1, 30))
                if column.key == "PRI" and column.data_type in ("int", "bigint", "smallint",
                "varchar", "decimal")
                else "DEFAULT" if chance.random() < 0.1
                else "NULL" if column.nullable and chance.random() < 0.1
                else self._scene.literal(column.data_type)
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
        table = self._scene.table()
        column = self._scene.column(table, key=chance.random() < 0.15)
        if column is None or column.is_generated:
            return self._insert()
        value = (
            str(chance.randrange(100))
            if column.key == "PRI"
            else self._scene.literal(column.data_type)
        )
        limit = chance.choice(["LIMIT 1", "LIMIT 2", ""]) if column.key != "PRI" else "LIMIT 1"
        return [
            w.join(
                "UPDATE IGNORE", w.table(table), "SET", f"{w.column(column.name)} = {value}", limit
            )
        ]

    def _delete(self) -> Sequence[str]:
        return [self._w.join("DELETE FROM", self._w.table(self._scene.table()), "LIMIT 1")]

    def _transaction(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        begin = chance.choice(["BEGIN", "START TRANSACTION", "BEGIN WORK", "SET autocommit = 0"])
        statements = self._changes(3)
        for number in range(chance.choice([0, 0, 1, 2])):
            name = w.quoted(chance.choice(["s1", "S 2"]))
            start = chance.randrange(len(statements))
            statements.insert(start, f"SAVEPOINT {name}")
            statements.append(f"ROLLBACK TO {w.maybe('SAVEPOINT')} {name}")
            statements += self._changes(number)
        if chance.random() < 0.4:
            # The source can't cut off what it rolls back: it writes it, and that it is rolled back.
            name = f"tx{self._number()}"
            made, dropped = f"CREATE TEMPORARY TABLE {name} (i INT)", f"DROP TEMPORARY TABLE {name}"
            statements.insert(chance.randrange(1, len(statements) + 1), made)
            if chance.random() < 0.5:
                statements.append(dropped)
        if chance.random() < 0.2:
            # ALTER commits the statements before it.
            statements += self._alters.some()
        end = chance.choice(["COMMIT", "COMMIT", "ROLLBACK", "COMMIT WORK"])
        return [begin, *statements, end, *(["SET autocommit = 1"] if "autocommit" in begin else [])]

    def _changes(self, count: int) -> list[str]:
        ways = [self._insert, self._insert, self._update, self._delete]
        return [one for _ in range(count) for one in self._chance.choice(ways)()]

    def _prepared(self) -> Sequence[str]:
        """An XA transaction."""
        chance = self._chance
        xid = f"'x{self._number()}','{chance.choice(['', 'b'])}',{chance.randrange(1, 9)}"
        ends = [
            [f"XA PREPARE {xid}", f"XA COMMIT {xid}"],
            [f"XA PREPARE {xid}", f"XA ROLLBACK {xid}"],
            [f"XA COMMIT {xid} ONE PHASE"],
            [f"XA ROLLBACK {xid}"],
        ]
        return [f"XA START {xid}", *self._changes(2), f"XA END {xid}", *chance.choice(ends)]

    def _loaded(self) -> Sequence[str]:
        """Rows by way of a file."""
        w, chance = self._w, self._chance
        table, file = w.table(self._scene.table()), f"./{chance.randrange(10**12)}.txt"
        verb = chance.choice(["REPLACE", "IGNORE"])
        return [
            f"SELECT * FROM {table} INTO OUTFILE {w.text(file)}",
            *self._delete(),
            f"LOAD DATA INFILE {w.text(file)} {verb} INTO TABLE {table}",
        ]

    def _index(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        table, name = self._scene.table(), f"i{chance.randrange(5)}"
        if chance.random() < 0.3:
            return [w.join("DROP INDEX IF EXISTS", name, "ON", w.table(table))]
        kind = chance.choice(["INDEX", "INDEX", "UNIQUE INDEX", "OR REPLACE INDEX"])
        exists = "" if "REPLACE" in kind else "IF NOT EXISTS"
        return [
            w.join(
                "CREATE", kind, exists, name, "ON", w.table(table), self._scene.index_columns(table)
            )
        ]

    def _rename(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        table, new = self._scene.table(), self._scene.new_table()
        match chance.randrange(4):
            case 0:
                word = chance.choice(["TO", "AS", "=", ""])
                return [self._alters.alter_with(table, w.join("RENAME", word, w.table(new)))]
            case 1:
                word = w.join("RENAME TO", w.table(new))
                return [self._alters.alter_with(table, self._alters.add(table), word)]
            case 2:
                pairs = [(table, new)]
                for number in range(chance.choice([0, 1, 1, 2])):
                    missing = (f"missing{chance.randrange(9)}", f"no{self._number()}")
                    pairs.insert(chance.randrange(number + 2), missing)
                return [self._renames(pairs, "RENAME TABLE IF EXISTS")]
        return [
            w.join("RENAME", chance.choice(["TABLE", "TABLES"]), w.table(table), "TO", w.table(new))
        ]

    def _rename_chain(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        tables = [
            name
            for name in sorted(self._scene.catalog)
            if w.session.can_write(name) and name not in self._scene.hidden
        ]
        new = self._scene.new_table()
        if len(tables) < 2:
            # Through another name, and back with a new table under the old one.
            one = tables[0]
            like = w.join("CREATE TABLE", w.table(new), "LIKE", w.table(one))
            old = f"old{self._number()}"
            pairs = [(one, old), (new, one)]
            return [like, self._renames(pairs)]
        one, other = chance.sample(tables, 2)
        match chance.randrange(3):
            case 0:
                return [self._renames([(one, new), (other, one), (new, other)])]
            case 1:
                return [self._renames([(one, new), (other, one)])]
        return [self._renames([(one, new), (new, f"end{self._number()}"), (other, new)])]

    def _renames(self, pairs: Sequence[tuple[str, str]], words: str = "RENAME TABLE") -> str:
        w = self._w
        return w.join(words, ", ".join(f"{w.table(old)} TO {w.table(new)}" for old, new in pairs))

    def _like(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        table, new = self._scene.table(), self._scene.new_table()
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
        table, new = self._scene.table(), self._scene.new_table()
        keys = [column.name for column in self._scene.writable(table) if column.key == "PRI"]
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
        if "REPLACE" in verb and chance.random() < 0.5 and len(self._scene.catalog) > 1:
            new = chance.choice([name for name in sorted(self._scene.catalog) if name != table])
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
        return self.made_table("CREATE OR REPLACE TABLE", self._scene.table())

    def _drop(self) -> Sequence[str]:
        w, chance = self._w, self._chance
        table = self._scene.table()
        tables = [w.table(table)]
        if chance.random() < 0.3:
            tables.append(w.table(self._scene.table()))
        if chance.random() < 0.3:
            tables.append(w.quoted(f"missing{chance.randrange(9)}"))
        chance.shuffle(tables)
        exists = w.maybe("IF EXISTS", 0.6 if len(tables) > 1 else 0.3)
        end = chance.choice(["", "", "", "CASCADE", "RESTRICT", "WAIT 1"])
        return [
            w.join(
                "DROP", chance.choice(["TABLE", "TABLE", "TABLES"]), exists, ", ".join(tables), end
            )
        ]

    def _truncate(self) -> Sequence[str]:
        return [
            self._w.join("TRUNCATE", self._w.maybe("TABLE"), self._w.table(self._scene.table()))
        ]

    def _temporary(self) -> Sequence[str]:
        """A temporary table that hides one, or a new one; then something with it."""
        w, chance = self._w, self._chance
        if not self._scene.hidden or chance.random() < 0.4:
            name = self._scene.table() if chance.random() < 0.8 else f"tmp{chance.randrange(3)}"
            column = chance.choice(
                ["id", "a", *[one.name for one in self._scene.writable(name)]]
                if name in self._scene.catalog
                else ["id"]
            )
            self._scene.hidden[name] = column
            made = f"({w.quoted(column)} INT, filler INT)"
            if chance.random() < 0.3 and name not in self._scene.catalog:
                made = f"LIKE {w.table(self._scene.table())}"
            return [w.join("CREATE TEMPORARY TABLE", w.table(name), made)]
        name = chance.choice(sorted(self._scene.hidden))
        shown, column = w.table(name), w.column(self._scene.hidden[name])
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
        del self._scene.hidden[name]
        return chance.choice(ends)

    def _passed(self) -> Sequence[str]:
        """Statements that change no row of a table."""
        w, chance = self._w, self._chance
        table, name = self._scene.table(), f"v{self._number()}"
        shown = w.table(table)
        ways = [
            [w.join("CREATE VIEW", name, "AS SELECT 1 AS a FROM", shown), f"DROP VIEW {name}"],
            [f"CREATE SEQUENCE {name}", f"DROP SEQUENCE {name}"],
            [w.join("ANALYZE TABLE", shown)],
            [w.join("OPTIMIZE TABLE", shown)],
            [w.join("FLUSH TABLES", shown)],
            ["FLUSH BINARY LOGS"],
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
            ways = [way for way in ways if "FUNCTION" not in way[0]]
        return chance.choice(ways)

    def _indirect(self) -> Sequence[str]:
        """A statement that another one runs."""
        w, chance = self._w, self._chance
        alters = self._alters.some()
        if not alters or not w.session.can_write(alters[-1]):
            return self._insert()
        inner = alters[-1]
        name = f"p{self._number()}"
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

    def _keyless(self) -> Sequence[str]:
        """A table as phpMyAdmin dumps it: its key comes later, or never."""
        w, chance = self._w, self._chance
        if len(self._scene.catalog) >= _MOST_TABLES:
            return self._drop()
        table = self._scene.new_table()
        kind = any_kind(chance)
        made = w.join(
            "CREATE TABLE",
            w.table(table),
            f"(id INT NOT NULL, a {self._scene.definition(kind, adds=False)})",
        )
        rows = f"INSERT IGNORE INTO {w.table(table)} (id) VALUES (1), (2)"
        key = self._alters.alter_with(table, w.join("ADD PRIMARY KEY", f"({w.column('id')})"))
        return [made, rows, *([key] if chance.random() < 0.7 else [])]
