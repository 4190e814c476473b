"""Sqlglot's reading of the statements in `test_statements_at_mariadb.py`, beside the server's.

Run by hand, with sqlglot installed: ``python -m tests.databases.cdc.ddl.sqlglot_beside_mariadb``.
The result is why there is a parser of our own; `docs/dependencies.md` has it.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import sqlglot
from sqlglot import exp

from tests.databases.cdc.ddl.test_statements_at_mariadb import (
    OLD,
    anew,
    definitions,
    made_column,
    made_tables,
    statements,
)
from tests.databases.cdc.mariadb import MariaDb

_ALIKE = {
    "timestamptz": "timestamp",
    "boolean": "tinyint",
    "json": "longtext",
    "nchar": "char",
    "nvarchar": "varchar",
}


class RefusedError(Exception):
    """A statement that sqlglot does not read."""


def tree_of(sql: str) -> Any:
    try:
        [tree] = sqlglot.parse(sql, dialect="mysql")
    except (sqlglot.ParseError, sqlglot.TokenError) as error:
        raise RefusedError from error
    if tree is not None and tree.find(exp.Command) is not None:
        raise RefusedError
    return tree


def type_name(definition: str) -> str:
    column = tree_of(f"ALTER TABLE t ADD COLUMN a {definition}").find(exp.ColumnDef)
    name = column.args["kind"].this.value.lower()
    name = "bigint" if name == "serial" else name
    return name[1:] if name[0] == "u" and name != "uuid" else _ALIKE.get(name, name)


def tables_after(tables: dict[str, list[str]], sql: str) -> dict[str, list[str]]:
    """The tables with their columns after a statement, as sqlglot reads it."""
    tree = tree_of(sql)
    kind = "" if tree is None else tree.args.get("kind")
    if kind != "TABLE" or tree.args.get("temporary") or tree.find(exp.TemporaryProperty):
        return tables
    found = {table: list(columns) for table, columns in tables.items()}
    table = next(tree.find_all(exp.Table)).name
    if isinstance(tree, exp.Drop):
        for dropped in tree.args["tables"]:
            found.pop(dropped.name, None)
    elif isinstance(tree, exp.Create):
        like = tree.find(exp.LikeProperty)
        columns = [column.name for column in tree.find_all(exp.ColumnDef)]
        if tree.args["replace"] or table not in found:
            found[table] = list(found[like.this.name]) if like else columns
    else:
        _alter(found, table, tree.args.get("actions") or [])
    return found


def _alter(tables: dict[str, list[str]], table: str, actions: list[Any]) -> None:
    columns, names, name = tables.pop(table), {}, table
    for action in actions:
        if isinstance(action, exp.ColumnDef):
            columns += [action.name] if action.name not in columns else []
        elif isinstance(action, exp.Drop) and action.kind == "COLUMN":
            gone = {dropped.name for dropped in action.args["tables"]}
            columns = [column for column in columns if column not in gone]
        elif isinstance(action, exp.RenameColumn):
            names[action.this.name] = action.args["to"].name
        elif isinstance(action, exp.ModifyColumn) and action.args.get("rename_from"):
            names[action.args["rename_from"].name] = action.this.name
        elif isinstance(action, exp.AlterRename):
            name = action.this.name
    tables[name] = [names.get(column, column) for column in columns]


def main() -> None:
    logging.disable(logging.WARNING)
    counts: Counter[str] = Counter()

    def judge(what: str, read: Any, made: Any) -> None:
        counts["right" if read == made else "misread"] += 1
        if read != made:
            print(f"misread  {what}\n         as {read}\n         it is {made}")

    with MariaDb() as mariadb, mariadb.connect() as connection, connection.cursor() as cursor:
        anew(cursor)
        for definition in definitions():
            made_type = made_column(cursor, definition)[0]
            try:
                judge(definition, type_name(definition), made_type)
            except RefusedError:
                counts["refused"] += 1
                print(f"refused  {definition}")
        for sql in statements():
            anew(cursor)
            cursor.execute(OLD)
            cursor.execute("CREATE TABLE other (id INT PRIMARY KEY, z INT)")
            before = made_tables(cursor)
            cursor.execute(sql)
            after = {table: set(columns) for table, columns in made_tables(cursor).items()}
            try:
                read = tables_after(before, sql)
                judge(sql, {table: set(columns) for table, columns in read.items()}, after)
            except RefusedError:
                counts["refused"] += 1
                print(f"refused  {sql}")
    print(dict(counts))


if __name__ == "__main__":
    main()
