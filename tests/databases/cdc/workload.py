"""A seeded random workload: transactions of inserts, updates, deletes and changed keys."""

from __future__ import annotations

import random
import threading

import pymysql

from tests.databases.cdc.mariadb import MariaDb

ACCOUNTS = "CREATE TABLE accounts (id INT PRIMARY KEY, balance BIGINT NOT NULL)"
_PAUSE_S = 0.002


class Workload:
    """Changes a table ``accounts``, one transaction after the other. The seed determines which."""

    def __init__(self, mariadb: MariaDb, database: str, seed: int) -> None:
        self._mariadb = mariadb
        self._database = database
        self._choose = random.Random(seed)

    def run_until(self, ending: threading.Event) -> None:
        """Run until ``ending`` is set, with short pauses."""
        connection = self._mariadb.connect(self._database)
        try:
            while not ending.wait(_PAUSE_S):
                self._transaction(connection)
        finally:
            connection.close()

    def run(self, transactions: int) -> None:
        """Run so many transactions."""
        connection = self._mariadb.connect(self._database)
        try:
            for _ in range(transactions):
                self._transaction(connection)
        finally:
            connection.close()

    def _transaction(self, connection: pymysql.connections.Connection) -> None:
        choose = self._choose
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for _ in range(choose.randrange(1, 6)):
                cursor.execute(*self._statement())
            cursor.execute("ROLLBACK" if choose.random() < 0.05 else "COMMIT")

    def _statement(self) -> tuple[str, tuple[int, ...]]:
        choose = self._choose
        number, amount = choose.randrange(1, 4000), choose.randrange(1000)
        match choose.randrange(5):
            case 0:
                return "REPLACE INTO accounts VALUES (%s, %s)", (number, amount)
            case 1:
                return "DELETE FROM accounts WHERE id = %s", (number,)
            case 2:
                return (
                    "UPDATE IGNORE accounts SET id = %s, balance = %s WHERE id = %s",
                    (choose.randrange(1, 4000), amount, number),
                )
            case _:
                return (
                    "UPDATE accounts SET balance = balance + %s WHERE id BETWEEN %s AND %s",
                    (amount, number, number + 3),
                )
