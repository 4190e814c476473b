"""A seeded random shop: three tables of many types, changed in transactions."""

from __future__ import annotations

import random
import threading
from typing import Any

import pymysql

from tests.databases.cdc.mariadb import MariaDb

TABLES = {
    "customers": """CREATE TABLE customers (
        id INT UNSIGNED PRIMARY KEY, name VARCHAR(40) NOT NULL, picture VARBINARY(20),
        since DATE, score DOUBLE)""",
    "orders": """CREATE TABLE orders (
        id BIGINT UNSIGNED PRIMARY KEY, customer INT UNSIGNED, amount DECIMAL(12,2),
        placed DATETIME(6), state ENUM('new', 'paid', 'gone'), tags SET('a', 'b', 'c'),
        takes TIME(3), note TEXT)""",
    "parts": """CREATE TABLE parts (
        order_id BIGINT UNSIGNED, number SMALLINT, pieces INT, PRIMARY KEY (order_id, number))""",
}
KEYS = {"customers": ["id"], "orders": ["id"], "parts": ["order_id", "number"]}
_MOST = 60
_PAUSE_S = 0.015
_MOST_TRANSACTIONS = 250


class ShopWorkload:
    """Changes the shop, one transaction after the other. The seed determines which.

    Args:
        widen_after: before this transaction, ``orders`` gets one more column.
    """

    def __init__(self, mariadb: MariaDb, database: str, seed: int, widen_after: int = 100) -> None:
        self._mariadb = mariadb
        self._database = database
        self._choose = random.Random(seed)
        self._widen_after = widen_after
        self.transactions = 0

    def run_until(self, ending: threading.Event) -> None:
        """Run until ``ending`` is set or there were many, with short pauses."""
        connection = self._mariadb.connect(self._database)
        try:
            while self.transactions < _MOST_TRANSACTIONS and not ending.wait(_PAUSE_S):
                self._transaction(connection)
        finally:
            connection.close()

    def _transaction(self, connection: pymysql.connections.Connection) -> None:
        choose = self._choose
        with connection.cursor() as cursor:
            if self.transactions == self._widen_after:
                cursor.execute("ALTER TABLE orders ADD COLUMN weight DECIMAL(8,3)")
            cursor.execute("BEGIN")
            for _ in range(choose.randrange(1, 8)):
                cursor.execute(*self._statement())
            cursor.execute("ROLLBACK" if choose.random() < 0.05 else "COMMIT")
        self.transactions += 1

    def _statement(self) -> tuple[str, tuple[Any, ...]]:
        choose = self._choose
        number = choose.randrange(_MOST)
        match choose.randrange(8):
            case 0:
                name = "".join(choose.choices("aé€😀'\"\\ ", k=6))
                picture = choose.choice([None, choose.randbytes(choose.randrange(20))])
                row = (number, name, picture, f"20{choose.randrange(10, 99)}-02-28")
                return "REPLACE INTO customers VALUES (%s, %s, %s, %s, RAND(3))", row
            case 1 | 2:
                return (
                    "REPLACE INTO orders (id, customer, amount, placed, state, tags, takes, note)"
                    " VALUES (%s, %s, %s, '2024-05-06 07:08:09.012345', %s, %s, %s, %s)",
                    (
                        2**63 + number,
                        choose.randrange(_MOST),
                        choose.randrange(-(10**6), 10**6) / 100,
                        choose.choice([None, "new", "paid"]),
                        choose.choice(["", "a", "c,a"]),
                        choose.choice(["-00:00:01.500", "99:00:00.000", None]),
                        choose.choice([None, "", "line\nline"]),
                    ),
                )
            case 3:
                part = (2**63 + number, choose.randrange(4), choose.randrange(100))
                return "REPLACE INTO parts VALUES (%s, %s, %s)", part
            case 4:
                table = choose.choice(["customers", "orders"])
                key = number + (2**63 if table == "orders" else 0)
                return f"DELETE FROM {table} WHERE id = %s", (key,)
            case 5:
                keys = (2**63 + choose.randrange(_MOST), 2**63 + number)
                return "UPDATE IGNORE orders SET id = %s, state = 'gone' WHERE id = %s", keys
            case 6:
                return "UPDATE parts SET pieces = pieces + 1 WHERE number = %s", (number % 4,)
            case _:
                return (
                    "UPDATE orders SET amount = amount + 0.01, note = NULL WHERE customer < %s",
                    (number % 10,),
                )
