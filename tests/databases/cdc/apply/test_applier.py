"""A target that goes away and comes back; two tasks that have the same batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from purgatory.cdc import Applied, ApplyOptions, TargetError, open_target
from purgatory.cdc.apply.applier import Applier
from purgatory.cdc.column_types import Value
from purgatory.cdc.targets.postgres import PostgresTarget
from tests.databases.cdc.change_log import (
    TOPIC,
    as_list,
    closing_target,
    random_log,
    record,
    rows_of,
)
from tests.databases.cdc.postgres import Postgres


def test_restarted_server_gets_each_change_once(postgres: Postgres) -> None:
    url = postgres.make_schema("killed")
    log, rows = random_log(2, 90)
    with Applier(partial(open_target, url), ApplyOptions()) as applier:
        applier.apply_batch(TOPIC, 0, log[:30])
        postgres.kill()
        restarted = threading.Thread(target=postgres.restart)
        restarted.start()
        assert applier.apply_batch(TOPIC, 0, log[:60]) == Applied(applied=30, skipped=30)
        restarted.join()
        assert applier.apply_batch(TOPIC, 0, log[60:]) == Applied(applied=30)
    with closing_target(url) as target:
        assert rows_of(target) == as_list(rows)


@pytest.mark.parametrize(
    ("point", "became"),
    [
        ("within", Applied(applied=30)),
        ("commit", Applied(applied=30)),
        ("after", Applied(skipped=30)),
    ],
)
def test_server_killed_in_a_transaction_gets_each_change_once(
    postgres: Postgres, point: str, became: Applied
) -> None:
    """The points: within it, before its commit, and after that, without the client's response."""
    url = postgres.make_schema(f"killed_{point}")
    log, rows = random_log(2, 60)
    armed: list[str] = []
    restarted = threading.Thread(target=postgres.restart)

    def reached(here: str) -> None:
        if here in armed:
            armed.clear()
            postgres.kill()
            restarted.start()

    class Target(PostgresTarget):
        def _run_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
            super()._run_many(sql, rows)
            if "orders" in sql:
                reached("within")

        @contextmanager
        def transaction(self) -> Iterator[None]:
            with super().transaction():
                yield
                reached("commit")
            if "after" in armed:
                reached("after")
                while True:  # until the connection's own process has seen that its server is gone
                    self._run("SELECT 1")

    with Applier(partial(Target, url), ApplyOptions()) as applier:
        applier.apply_batch(TOPIC, 0, log[:30])
        armed.append(point)
        assert applier.apply_batch(TOPIC, 0, log[30:]) == became
        assert not armed
        restarted.join()
    with closing_target(url) as target:
        assert rows_of(target) == as_list(rows)


def test_connection_cut_in_a_transaction_loses_no_change(postgres: Postgres) -> None:
    url = postgres.make_schema("cut")
    log, rows = random_log(2, 60)
    with Applier(partial(open_target, url), ApplyOptions()) as applier:
        applier.apply_batch(TOPIC, 0, log[:30])
        with closing_target(url) as other:
            other._run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> "
                "pg_backend_pid() AND backend_type = 'client backend'"
            )
        assert applier.apply_batch(TOPIC, 0, log[30:]) == Applied(applied=30)
    with closing_target(url) as target:
        assert rows_of(target) == as_list(rows)


def test_unreachable_target_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="can't be reached") as raised:
        Applier(
            partial(open_target, "postgresql://nobody@127.0.0.1:1/none"),
            ApplyOptions(),
            retry_for_s=0,
        )
    assert "\n" not in str(raised.value)


def test_broken_table_is_reported_without_partial_changes(url: str) -> None:
    with Applier(partial(open_target, url), ApplyOptions(), retry_for_s=0) as applier:
        applier.apply_batch(TOPIC, 0, [record(0, data={"id": 1})])
        with closing_target(url) as other:
            other._run("DROP TABLE orders")
        with pytest.raises(TargetError, match=r"the target failed: .*orders"):
            applier.apply_batch(TOPIC, 0, [record(1, data={"id": 2})])
        assert applier.next_offsets([TOPIC]) == {TOPIC: {0: 1}}
        # Read again, the table is created.
        assert applier.apply_batch(TOPIC, 0, [record(1, data={"id": 2})]) == Applied(applied=1)


def test_two_tasks_with_the_same_batches_apply_each_change_once(url: str) -> None:
    log, rows = random_log(4, 300)
    options = ApplyOptions(audit_log=True)
    became: list[Applied] = []

    def task() -> None:
        with Applier(partial(open_target, url), options) as applier:
            for start in range(0, len(log), 20):
                became.append(applier.apply_batch(TOPIC, 0, log[start : start + 20]))

    with closing_target(url) as target:
        target.prepare()
        tasks = [threading.Thread(target=task) for _ in range(3)]
        for one in tasks:
            one.start()
        for one in tasks:
            one.join()
        assert rows_of(target) == as_list(rows)
        assert [row[2] for row in target.select_own("purgatory_effects")] == list(range(300))
    total = sum(became, Applied())
    assert (total.applied, total.skipped) == (300, 600)
