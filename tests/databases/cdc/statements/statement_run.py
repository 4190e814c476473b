"""Runs programs of statements at a source, captures them, applies them, and compares all copies.

Each program has a database of its own. Many run at once, step by step: one capture takes all of
their changes. A program ends equal in a copy, or the copy stops at a statement with one line, or
rows are in the quarantine for a reason that docs/apply.md gives. Everything else is a failure.
"""

from __future__ import annotations

import bisect
import itertools
import json
import random
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from purgatory.cdc import QuarantineStopError, Record, open_target
from purgatory.cdc.apply.exactly_once import Writer
from purgatory.cdc.apply.transactions import apply_rows, apply_transactions
from purgatory.cdc.capture import (
    CaptureConfig,
    CaptureError,
    KafkaSettings,
    capture_changes,
    parse_source_address,
)
from purgatory.cdc.capture.source import current_position
from purgatory.cluster import ClusterConfig, ThreadedCluster
from tests.databases.cdc.captured import read_records
from tests.databases.cdc.mariadb import MariaDb
from tests.databases.cdc.postgres import Postgres, running_postgres
from tests.databases.cdc.statements.cells import (
    CopiedTable,
    SourceTable,
    differences,
    keyless_tables,
    read_postgres,
    read_source,
    read_sqlite,
)
from tests.databases.cdc.statements.scene import SourceColumn
from tests.databases.cdc.statements.statement_generator import (
    DATABASE,
    Program,
    StatementGenerator,
    Step,
)

_WAYS = ("row", "transaction")
PROGRAMS_AT_ONCE = 10
"""Each has four copies, and a PostgreSQL of the tests takes fifty connections."""

Place = tuple[int, int]


@dataclass
class Outcome:
    """The outcome of a program.

    Args:
        verdicts: of each copy: ``equal``, ``stops`` or ``quarantined``.
        failure: a description, or empty.
        crashed: a statement ended the source's own process.
    """

    program: Program
    tried: int = 0
    refused: int = 0
    verdicts: dict[str, str] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    failure: str = ""
    crashed: bool = False
    failed_copy: str = ""

    @property
    def verdict(self) -> str:
        """The verdict of the whole program."""
        if self.failure:
            return "FAILED"
        if self.crashed:
            return "crashed the source"
        found = set(self.verdicts.values())
        return next((one for one in ("stops", "quarantined") if one in found), "equal")


class Servers:
    """A MariaDB, a cluster and a PostgreSQL, for any number of programs."""

    def __init__(
        self, mariadb: MariaDb, cluster: ThreadedCluster, postgres: Postgres, folder: Path
    ) -> None:
        self.mariadb = mariadb
        self.cluster = cluster
        self.postgres = postgres
        self.folder = folder
        self.numbers = itertools.count(1)
        self.is_usual = mariadb.is_mariadb("10.11")
        self.folds_tables = mariadb.rows("SELECT @@lower_case_table_names")[0][0] == 1

    def source_ended(self) -> bool:
        """Whether the source's process has ended: some statements crash MariaDB itself."""
        try:
            self.mariadb.connect().close()
        except pymysql.Error:
            return True
        return False

    def revive_source(self) -> None:
        """Start the source again if its process has ended."""
        if self.source_ended():
            self.mariadb.kill()
            self.mariadb.start()

    def config(self, topic: str) -> CaptureConfig:
        """Of a capture of all databases, up to the end of the binlog."""
        return CaptureConfig(
            source=parse_source_address(self.mariadb.url),
            kafka=KafkaSettings(self.cluster.bootstrap_servers),
            topic=topic,
            partitions=3,
            once=True,
        )


@contextmanager
def running_servers(*settings: str) -> Iterator[Servers]:
    """Start the servers that the programs need; ``settings`` are MariaDB's."""
    with ExitStack() as stack:
        postgres_folder = Path(tempfile.mkdtemp(prefix="purgatory-postgres-"))
        stack.callback(shutil.rmtree, postgres_folder, ignore_errors=True)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        mariadb = stack.enter_context(MariaDb(*settings))
        postgres = stack.enter_context(running_postgres(postgres_folder))
        cluster = stack.enter_context(ThreadedCluster(ClusterConfig(brokers=1)))
        yield Servers(mariadb, cluster, postgres, folder)


class Copy:
    """One copy of one program's database, in SQLite or PostgreSQL, by row or by transaction."""

    def __init__(
        self, servers: Servers, kind: str, way: str, number: int, reader: psycopg.Connection[Any]
    ) -> None:
        self.label = f"{kind} by {way}"
        self.way = way
        self.stopped = ""
        self.quarantined: list[tuple[Any, ...]] = []
        self._schema = f"s{number}"
        self._reader: sqlite3.Connection | None = None
        self._postgres = reader
        if kind == "sqlite":
            path = servers.folder / f"{number}.db"
            url = f"sqlite:///{path}"
            self.target = open_target(url)
            self.target.prepare()
            self._reader = sqlite3.connect(path)
        else:
            self.target = open_target(servers.postgres.make_schema(self._schema))
            self.target.prepare()
        self._writer = Writer(self.target)

    def apply(self, records: Sequence[Record]) -> None:
        """Apply records that were captured behind those of before."""
        try:
            if self.way == "transaction":
                apply_transactions(self._writer, records)
            else:
                # The last partition first: the others wait for the common servers.
                for partition in sorted({record.partition for record in records}, reverse=True):
                    found = [record for record in records if record.partition == partition]
                    apply_rows(self._writer, found[0].topic, partition, found)
        except QuarantineStopError as error:
            self.stopped = str(error)
        self.quarantined = [tuple(row) for row in self.target.select_own("purgatory_quarantine")]

    def read(self) -> dict[str, CopiedTable]:
        """The tables that a client of the copy finds."""
        if self._reader is not None:
            return read_sqlite(self._reader)
        return read_postgres(self._postgres, self._schema)

    def waits(self) -> bool:
        """Whether records wait for others."""
        return bool(self.target.select_own("purgatory_pending"))

    def close(self) -> None:
        """Close its connections."""
        self.target.close()
        if self._reader is not None:
            self._reader.close()


class _Running:
    """One program while it runs."""

    def __init__(
        self,
        batch: _Batch,
        name: str,
        generator: StatementGenerator | None,
        replayed: Program | None,
    ) -> None:
        self._batch = batch
        self._live = batch.live
        self.name = name
        self.database = f"p{next(batch.servers.numbers)}"
        self._servers = batch.servers
        self._reader = batch.reader
        self._generator = generator
        self._todo = list(replayed.steps) if replayed else []
        self.sessions = (
            list(replayed.sessions) if replayed else (generator.sessions if generator else [])
        )
        self._connections: dict[int, Any] = {}
        self.steps: list[Step] = []
        self.ends: list[tuple[Place, str]] = []
        self.tables: dict[str, SourceTable] = {}
        self._before: dict[str, SourceTable] = {}
        self._names: set[str] = set()
        self.ever_keyless: set[str] = set()
        self.errors: dict[str, str] = {}
        if generator is not None:
            self._todo = generator.first()
        with batch.reader.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {self.database}")
        batch.place = _place(batch.reader)
        self.outcome = Outcome(Program(name, self.sessions, self.steps))
        self.copies = [
            Copy(batch.servers, kind, way, next(batch.servers.numbers), batch.postgres)
            for kind in ("sqlite", "postgresql")
            for way in _WAYS
        ]

    def step(self) -> bool:
        """Run the next step; False if a replayed program is at its end."""
        if self._todo:
            step = self._todo.pop(0)
        elif self._generator is not None:
            step = self._generator.next(_catalog(self._reader, self.database))
        else:
            return False
        self.steps.append(step)
        connection = self._connection(step.session)
        session = self.sessions[step.session]
        for statement in step.statements:
            self.outcome.tried += 1
            sql = statement.replace(DATABASE, self.database)
            try:
                connection.query(session.encoded(sql))
            except pymysql.Error as error:
                self.outcome.refused += 1
                self.errors[statement] = str(error)
            place = _place(self._reader)
            if place != self._batch.place:
                # Of several statements with one place only the first wrote something.
                self._batch.place = place
                self.ends.append((place, statement))
                self.ever_keyless |= keyless_tables(self._reader, self.database)
        self._before, self.tables = self.tables, read_source(self._reader, self.database)
        self._names |= set(self.tables)
        return True

    def _connection(self, number: int) -> Any:
        if number not in self._connections:
            connection = self._servers.mariadb.connect(self.database)
            for statement in self.sessions[number].setup:
                try:
                    connection.query(statement)
                except pymysql.Error:
                    if self._servers.is_usual:  # Others lack some modes and variables.
                        raise
            self._connections[number] = connection
        return self._connections[number]

    def compare(self, records: Sequence[Record]) -> None:
        """Apply the captured changes to all copies, and compare each."""
        for copy in self.copies:
            if copy.stopped or self.outcome.failure:
                continue
            try:
                if records:
                    copy.apply(records)
                self._judge(copy)
            except Exception as error:
                self._fail(copy, f"{type(error).__name__}: {error}")

    def _judge(self, copy: Copy) -> None:
        excused = set()
        for _topic, _partition, _offset, reason, detail, value in copy.quarantined:
            table = _table_of(value)
            clashes = len({name for name in self._names if name.lower() == table}) > 1
            if copy.label.startswith("sqlite") and clashes:
                # Two tables to the source, and one name to SQLite.
                excused.add(table)
                continue
            if not _is_promised(copy, reason, detail, value, table in self.ever_keyless):
                self._fail(copy, f"in the quarantine: {reason}: {detail}: {str(value)[:300]}")
                return
            excused.add(table)
        if copy.quarantined:
            self.outcome.verdicts[copy.label] = "quarantined"
            self.outcome.told[copy.label] = f"{copy.quarantined[0][3]}: {copy.quarantined[0][4]}"
        else:
            self.outcome.verdicts[copy.label] = "equal"
        if copy.stopped:
            self.outcome.verdicts[copy.label] = "stops"
            self.outcome.told[copy.label] = copy.stopped
            if "\n" in copy.stopped.strip():
                self._fail(copy, f"stops with more than a line: {copy.stopped}")
            elif self._live and not copy.quarantined and self._altered_alone():
                found = differences(self._before, copy.read())
                if found:
                    self._fail(
                        copy, f"stops ({copy.stopped}), and before that is different: {found}"
                    )
            return
        if copy.waits():
            self._fail(copy, "records wait for others that are there")
            return
        found = differences(self.tables, copy.read())
        renamed = any("rename" in sql.lower() for _, sql in self.ends) and excused
        found = {
            name: told
            for name, told in found.items()
            if name.lower() not in excused and not renamed
        }
        if found:
            self._fail(copy, f"is different: {found}")

    def _altered_alone(self) -> bool:
        """Whether the last step is one ALTER: a statement that takes effect whole or not at all."""
        statements = self.steps[-1].statements
        return len(statements) == 1 and statements[0].upper().startswith("ALTER")

    def _fail(self, copy: Copy, what: str) -> None:
        self.outcome.failure = f"{copy.label}: {what}"
        self.outcome.failed_copy = copy.label

    def shown(self) -> str:
        """Its statements, with the source's response to each."""
        lines = [f"-- session {n}: {session.setup[1:]}" for n, session in enumerate(self.sessions)]
        for step in self.steps:
            for sql in step.statements:
                error = self.errors.get(sql)
                lines.append(
                    f"  [{step.session}] {sql!r}"
                    + (f"   -- refused: {error[:80]}" if error else "")
                )
        return "\n".join(lines)

    def close(self) -> None:
        for copy in self.copies:
            copy.close()
        for connection in self._connections.values():
            if connection.open:
                connection.close()
        with suppress(pymysql.Error), self._reader.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {self.database}")


def _is_promised(copy: Copy, reason: str, detail: str, value: bytes | None, keyless: bool) -> bool:
    """Whether such a record is quarantined according to docs/apply.md."""
    if reason == "missing key" or "and that of the source" in detail:
        return keyless
    if "is the same name as" in detail or "'s: give" in detail:
        return copy.label.startswith("sqlite")
    return copy.label.startswith("postgresql") and b"\\u0000" in (value or b"")


def _table_of(value: bytes | None) -> str:
    found = re.search(rb'"table": ?"((?:[^"\\]|\\.)*)"', value or b"")
    return str(json.loads(b'"' + found[1] + b'"')).lower() if found else ""


def _catalog(connection: Any, database: str) -> dict[str, list[SourceColumn]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, COLUMN_KEY, EXTRA"
            " FROM information_schema.COLUMNS"
            " JOIN information_schema.TABLES USING (TABLE_SCHEMA, TABLE_NAME)"
            " WHERE TABLE_SCHEMA = %s AND TABLE_TYPE = 'BASE TABLE'"
            " ORDER BY TABLE_NAME, ORDINAL_POSITION",
            (database,),
        )
        found: dict[str, list[SourceColumn]] = {}
        for table, name, data_type, column_type, nullable, key, extra in cursor.fetchall():
            column = SourceColumn(name, data_type, column_type, nullable == "YES", key, extra)
            found.setdefault(table, []).append(column)
        return found


def _place(connection: Any) -> Place:
    end = current_position(connection)
    return end.file_number, end.offset


class _Batch:
    """Programs that run side by side, and one capture of them all."""

    def __init__(self, servers: Servers, *, live: bool) -> None:
        self.servers = servers
        self.live = live
        self.topic = f"log{next(servers.numbers)}"
        self.reader = servers.mariadb.connect()
        self.postgres: psycopg.Connection[Any] = psycopg.connect(
            servers.postgres.url(), autocommit=True
        )
        self.running: list[_Running] = []
        self.place: Place = (0, 0)
        self._read: dict[int, int] = {}

    def capture(self) -> Mapping[str, Sequence[Record]]:
        """Capture up to the end, and return the new records of each program."""
        capture_changes(self.servers.config(self.topic))
        ends = sorted(
            (end, running.database) for running in self.running for end, _ in running.ends
        )
        places = [end for end, _ in ends]
        found: dict[str, list[Record]] = {}
        for record in read_records(self.servers.cluster.bootstrap_servers, self.topic):
            if record.offset < self._read.get(record.partition, 0):
                continue
            self._read[record.partition] = record.offset + 1
            value = json.loads(record.value or b"{}")
            if value.get("database"):
                found.setdefault(value["database"], []).append(record)
            elif value.get("position") is not None:
                # A statement that is not understood may be of any database.
                file, _, offset = value["position"].rpartition(":")
                at = bisect.bisect_left(places, (int(file.rpartition(".")[2]), int(offset)))
                if at < len(ends):
                    found.setdefault(ends[at][1], []).append(record)
        return found

    def close(self) -> None:
        for running in self.running:
            running.close()
        if self.reader.open:
            self.reader.close()
        self.postgres.close()


@dataclass(frozen=True)
class Task:
    """A program that is to run: generated from a seed, or replayed."""

    name: str
    steps: int = 0
    careful: bool = True
    replayed: Program | None = None


def run_programs(
    servers: Servers, tasks: Sequence[Task], *, live: bool
) -> list[tuple[Outcome, str]]:
    """Run programs side by side; return the outcome of each, and the program in words.

    Args:
        live: capture and compare after each step, and not only at the end.
    """
    results = []
    for first in range(0, len(tasks), PROGRAMS_AT_ONCE):
        some = tasks[first : first + PROGRAMS_AT_ONCE]
        found = _run_some(servers, some, live=live)
        if found is None:
            # One of them ends the capture: alone, each is captured once, at its end.
            found = [one for task in some for one in _run_some(servers, [task], live=False) or ()]
        results += found
    return results


def _run_some(
    servers: Servers, tasks: Sequence[Task], *, live: bool
) -> list[tuple[Outcome, str]] | None:
    """None if the capture of several was refused."""
    batch = _Batch(servers, live=live)
    try:
        batch.capture()
        for task in tasks:
            generator = None
            if task.replayed is None:
                generator = StatementGenerator(
                    random.Random(task.name), task.careful, servers.folds_tables
                )
            batch.running.append(_Running(batch, task.name, generator, task.replayed))
        for number in itertools.count():
            alive = False
            for running, task in zip(batch.running, tasks, strict=True):
                if task.replayed is None and number >= task.steps:
                    continue
                if live and (
                    running.outcome.failure or all(copy.stopped for copy in running.copies)
                ):
                    continue
                alive = running.step() or alive
            if live and alive:
                _capture_and_compare(batch)
            if not alive:
                break
        if not live:
            _capture_and_compare(batch)
    except Exception as error:
        if len(tasks) > 1:
            return None
        batch.running[0].outcome.verdicts.clear()
        if servers.source_ended():
            batch.running[0].outcome.crashed = True
        else:
            _note_refusal(batch.running[0], error)
    finally:
        results = [(running.outcome, running.shown()) for running in batch.running]
        batch.close()
        servers.revive_source()
    return results


def _capture_and_compare(batch: _Batch) -> None:
    found = batch.capture()
    for running in batch.running:
        running.compare(found.get(running.database, ()))


def _note_refusal(running: _Running, error: Exception) -> None:
    """The capture of this program alone ended: one line is a stop, all else is a failure."""
    told = str(error)
    if isinstance(error, CaptureError) and told and "\n" not in told:
        running.outcome.verdicts = dict.fromkeys(["capture"], "stops")
        running.outcome.told = {"capture": told}
    else:
        running.outcome.failure = f"capture: {type(error).__name__}: {told}"
        running.outcome.failed_copy = "capture"


def shrink(servers: Servers, outcome: Outcome, *, live: bool) -> tuple[Outcome, str] | None:
    """Look for fewer statements that fail in the same copy; None if it does not fail again."""
    steps = [Step(step.session, [sql]) for step in outcome.program.steps for sql in step.statements]
    best = _first_failing(servers, outcome, [steps], live=live)
    while best is not None:
        steps = list(best[0].program.steps)
        shorter = [steps[:n] + steps[n + 1 :] for n in range(len(steps))]
        found = _failing(servers, outcome, shorter, live=live)
        droppable = [n for n, one in enumerate(found) if one is not None]
        if not droppable:
            return best
        together = [step for n, step in enumerate(steps) if n not in droppable]
        again = (
            _first_failing(servers, outcome, [together], live=live) if len(droppable) > 1 else None
        )
        best = again or found[droppable[0]]
    return best


def _failing(
    servers: Servers, like: Outcome, candidates: Sequence[Sequence[Step]], *, live: bool
) -> list[tuple[Outcome, str] | None]:
    tasks = [
        Task(
            f"{like.program.name} {n}",
            replayed=Program(like.program.name, like.program.sessions, list(steps)),
        )
        for n, steps in enumerate(candidates)
    ]
    return [
        (found, shown) if found.failure and found.failed_copy == like.failed_copy else None
        for found, shown in run_programs(servers, tasks, live=live)
    ]


def _first_failing(
    servers: Servers, like: Outcome, candidates: Sequence[Sequence[Step]], *, live: bool
) -> tuple[Outcome, str] | None:
    return next(
        (one for one in _failing(servers, like, candidates, live=live) if one is not None), None
    )
