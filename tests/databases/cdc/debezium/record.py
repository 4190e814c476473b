"""Records what Debezium's connectors for MariaDB and PostgreSQL write. Takes two minutes, and Java.

    mvn -q -f tests/databases/cdc/debezium/pom.xml dependency:copy-dependencies \\
        -DoutputDirectory=/tmp/debezium/mariadb
    mvn -q -f tests/databases/cdc/debezium/pom.xml -Dconnector=postgres -Ddebezium=3.6.1.Final \\
        dependency:copy-dependencies -DoutputDirectory=/tmp/debezium/postgres
    python -m tests.databases.cdc.debezium.record /tmp/debezium [FOLDER]

Each recording is `NAME.jsonl.gz` in the folder (by default `recorded`), with a line for each record
of the topics, in the order of the log, and `NAME.rows.json`, the source's rows at the end. A
connector runs five times: it snapshots, follows changes, is killed before its offsets are stored,
delivers the same again, and begins anew, with another snapshot, after rows were deleted. The tests
here then compare what is applied with those rows.
"""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg
from pymysql.constants import FIELD_TYPE

from tests.databases.cdc.debezium.plain_values import plain
from tests.databases.cdc.debezium.sources import MARIADB, POSTGRES, Phases
from tests.databases.cdc.mariadb import MariaDb
from tests.databases.cdc.postgres import Postgres, running_postgres

HERE = Path(__file__).parent
_SETTINGS = {
    "name": "recorded",
    "topic.prefix": "src",
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "offset.flush.interval.ms": "0",
    "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
    "bigint.unsigned.handling.mode": "precise",
    "provide.transaction.metadata": "true",
    "heartbeat.interval.ms": "1000",
    "skipped.operations": "none",
    "database.hostname": "127.0.0.1",
}
_PLAIN = {
    "converter.schemas.enable": "false",
    "time.precision.mode": "isostring",
    "decimal.handling.mode": "string",
    "bigint.unsigned.handling.mode": "long",
}
"""The settings that JSON without schemas needs, to be understood."""


_SQL = {
    # Python's dates end at the year 9999.
    "date": "{}::text",
    "timestamp without time zone": "{}::text",
    "timestamp with time zone": "({} AT TIME ZONE 'UTC')::text",
    "time with time zone": "replace(({} AT TIME ZONE 'UTC')::text, '+00', 'Z')",
    "interval": "{}::text",
    "bit": "lpad({0}::text, 32, '0')::bit(32)::int",
    "bit varying": "lpad({0}::text, 32, '0')::bit(32)::int",
}
"""Queries of a column of some types, for values in the form of the copy."""


class Source(Protocol):
    """A database, and its connector's settings."""

    phases: Phases
    settings: dict[str, str]

    def run(self, statements: Sequence[str]) -> None: ...

    def rows(self, table: str) -> list[dict[str, Any]]: ...


class _MariaDb:
    phases = MARIADB

    def __init__(self, server: MariaDb) -> None:
        self._server = server
        self.settings = {
            "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
            "database.port": str(server.port),
            "database.user": "root",
            "database.password": "",
            "database.server.id": "77",
            "database.ssl.mode": "disable",
            "database.include.list": "shop",
            "enable.time.adjuster": "false",
        }

    def run(self, statements: Sequence[str]) -> None:
        self._server.run(*statements)

    def rows(self, table: str) -> list[dict[str, Any]]:
        connection = self._server.connect("shop")
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT * FROM `{table}` ORDER BY 1")
                columns = [
                    (column[0], column[1] == FIELD_TYPE.BIT) for column in cursor.description
                ]
                return [
                    {
                        name: int.from_bytes(value) if is_bits and value is not None else value
                        for (name, is_bits), value in zip(columns, row, strict=True)
                    }
                    for row in cursor.fetchall()
                ]
        finally:
            connection.close()


class _Postgres:
    phases = POSTGRES

    def __init__(self, server: Postgres) -> None:
        self._url = server.url()
        self.settings = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "slot.name": "recorded",
            "publication.autocreate.mode": "filtered",
            "database.port": str(server.port),
            "database.user": "postgres",
            "database.password": "postgres",
            "database.dbname": "postgres",
            "schema.include.list": "shop",
            "interval.handling.mode": "string",
        }
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET wal_level = logical")
        server.stop()
        server.start()

    def run(self, statements: Sequence[str]) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def rows(self, table: str) -> list[dict[str, Any]]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("SET TIME ZONE 'UTC'")
            columns = connection.execute(
                "SELECT column_name, data_type FROM information_schema.columns"
                " WHERE table_schema = 'shop' AND table_name = %s ORDER BY ordinal_position",
                (table,),
            ).fetchall()
            values = [_SQL.get(kind, "{}").format(name) for name, kind in columns]
            cursor = connection.execute(
                f"SELECT {', '.join(values)} FROM shop.{table} ORDER BY {columns[0][0]}".encode()
            )
            names = [name for name, _ in columns]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


class Recording:
    """One recording.

    Args:
        jars: the folder of the connector's.
    """

    def __init__(self, source: Source, jars: Path, folder: Path, settings: Mapping[str, str]):
        self._source = source
        self._jars = jars
        self._folder = folder
        self._settings = settings
        self._marks = itertools.count(1)
        self.lines = folder / "lines"

    def run(self, statements: Sequence[str], *, commits: bool = True) -> None:
        """Run statements, and the connector until it has delivered them all."""
        mark = f"mark {next(self._marks)}."
        self._source.run([*statements, f"UPDATE shop.marks SET mark = '{mark}' WHERE id = 1"])
        properties = {
            **_SETTINGS,
            "offset.storage.file.filename": str(self._folder / "offsets"),
            "schema.history.internal.file.filename": str(self._folder / "history"),
            **self._source.settings,
            **self._settings,
        }
        path = self._folder / "properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        log = self._folder / "log"
        command = ["java", "-Xmx512m", "-cp", f"{self._jars}/*", str(HERE / "Recorder.java")]
        with log.open("a") as errors:
            ran = subprocess.run(
                [*command, str(path), str(self.lines), mark, str(commits).lower()],
                stdout=errors,
                stderr=errors,
                check=False,
            )
        assert ran.returncode == 0, log.read_text()[-6000:]

    def forget(self) -> None:
        """Delete the connector's offsets: it begins anew."""
        (self._folder / "offsets").unlink(missing_ok=True)
        (self._folder / "history").unlink(missing_ok=True)


def record(
    source: Source, jars: Path, folder: Path, name: str, settings: Mapping[str, str]
) -> None:
    """Record a source's five runs."""
    phases = source.phases
    with tempfile.TemporaryDirectory() as temporary:
        recording = Recording(source, jars, Path(temporary), settings)
        source.run(phases.begin)
        recording.run(phases.before)
        recording.run(phases.changes)
        recording.run(phases.lost, commits=False)
        recording.run(phases.again)
        recording.forget()
        recording.run(phases.anew)
        text = recording.lines.read_bytes()
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(text, 9, mtime=0))
    rows = {
        table: [{column: plain(value) for column, value in row.items()} for row in found]
        for table in phases.tables
        for found in [source.rows(table)]
    }
    (folder / f"{name}.rows.json").write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    print(f"{name}: {len(text.splitlines())} records, {len(text):,} bytes")


@contextmanager
def _postgres() -> Any:
    folder = Path(tempfile.mkdtemp(prefix="purgatory-postgres-"))
    try:
        with running_postgres(folder) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(jars: Path, folder: Path = HERE / "recorded") -> None:
    """Record both sources, with and without schemas."""
    for suffix, settings in (("schemas", {}), ("plain", _PLAIN)):
        with MariaDb() as server:
            record(_MariaDb(server), jars / "mariadb", folder, f"mariadb-{suffix}", settings)
        opened: AbstractContextManager[Postgres] = _postgres()
        with opened as postgres:
            record(_Postgres(postgres), jars / "postgres", folder, f"postgres-{suffix}", settings)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
