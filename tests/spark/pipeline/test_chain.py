"""Chains of SQL: their files, their parameters, and SQL that both engines read alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from purgatory.pipeline.engines.duckdb.sql_engine import DuckDBEngine
from purgatory.pipeline.engines.engine import SqlEngine
from purgatory.pipeline.engines.spark.frames import run_chain
from purgatory.pipeline.engines.spark.sql_engine import SparkEngine, sql_settings
from purgatory.pipeline.jobs.chain import Statement, literal, order_by, parse_chain, renamed
from purgatory.pipeline.jobs.registry import JOBS as JOBS_BY_NAME
from purgatory.pipeline.jobs.registry import Job

JOBS = Path(str(files("purgatory.pipeline.jobs")))
SQL_FILES = sorted(JOBS.glob("*/*.sql"))

COLUMNS = {"name": "string", "group": "string", "number": "bigint", "is_odd": "boolean"}
ROWS = [("a'b", "x\\y", 1, True), (None, "z\0", None, None), ("c", None, -(2**63), False)]


@pytest.fixture(params=["duckdb", "spark"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlEngine]:
    if request.param == "duckdb":
        with duckdb.connect() as connection:
            yield DuckDBEngine(connection)
        return
    session = request.getfixturevalue("spark")
    with sql_settings(session):
        yield SparkEngine(session, f"file:{tmp_path}")


def rows_of(engine: SqlEngine, query: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = engine.query(query).to_pylist()
    return rows


def test_statements_read_earlier_ones_on_both_engines(engine: SqlEngine) -> None:
    engine.make_table("t", COLUMNS, ROWS)
    chain = """
        -- A row per number.
        create table halves as
        select name, "group", int_div(number, 2) as half, ratio(number, 0) as none from t;
        create view counted as  -- twice the same table
        select count(*) as n, cast(sum(a.half) as bigint) as half
        from halves a join halves b on a.name = b.name where a.half < :most;
    """
    engine.run(parse_chain(chain, {"most": 5}))
    assert rows_of(engine, "select * from counted") == [{"n": 2, "half": -(2**62)}]
    assert rows_of(engine, "select name, none from halves order by name limit 1") == [
        {"name": None, "none": None}
    ]


def test_chains_explode_arrays_alike(engine: SqlEngine) -> None:
    engine.make_table("bounds", {"high": "bigint"}, [(2,)])
    engine.run(
        parse_chain("create view numbers as select explode(sequence(0, high)) as n from bounds;")
    )
    assert rows_of(engine, "select n from numbers order by n") == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_columns_may_have_the_names_of_later_statements(engine: SqlEngine) -> None:
    engine.make_table("t", COLUMNS, ROWS)
    engine.run(
        parse_chain("""
            create table first as select count(*) as second from t;
            create table second as select second + 1 as first from first;
        """)
    )
    assert rows_of(engine, "select * from second") == [{"first": len(ROWS) + 1}]


def test_second_statement_of_a_name_replaces_the_first(engine: SqlEngine) -> None:
    engine.make_table("t", COLUMNS, ROWS)
    engine.run(
        parse_chain("""
            create view chosen as select 1 as n;
            create table ones as select n from chosen;
            create table more_ones as select n from ones;
            create view chosen as select 2 as n;
            create table twos as select n from chosen;
        """)
    )
    rows = rows_of(
        engine, "select more_ones.n as one, twos.n as two from more_ones cross join twos"
    )
    assert rows == [{"one": 1, "two": 2}]


def test_tables_without_rows_keep_their_columns(engine: SqlEngine) -> None:
    engine.make_table("t", COLUMNS, ROWS)
    engine.run(
        parse_chain("""
            create table none as select * from t where number > 0 and number < 0;
            create table still_none as select name, count(*) as n from none group by name;
        """)
    )
    assert engine.query("select * from none").column_names == list(COLUMNS)
    assert rows_of(engine, "select count(*) as n from still_none") == [{"n": 0}]


@pytest.mark.spark
def test_failure_of_a_statement_cancels_the_jobs_of_the_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    with sql_settings(spark):
        engine = SparkEngine(spark, f"file:{tmp_path}")
        chain = parse_chain("""
            create table endless as
            select count(*) as n from range(100000000) a cross join range(100000000) b
                where (a.id * b.id) % 7 = 3;
            create table wrong as select * from nowhere;
        """)
        with pytest.raises(AnalysisException, match=r"nowhere"):
            engine.run(chain)
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()


def test_failure_of_a_statement_is_raised_and_ends_the_others(engine: SqlEngine) -> None:
    engine.make_table("t", COLUMNS, ROWS)
    with pytest.raises(Exception, match=r"(?i)nowhere"):
        engine.run(
            parse_chain("""
                create table long as select count(*) as n from t;
                create table wrong as select * from nowhere;
                create table after_it as select * from wrong;
            """)
        )


@pytest.mark.parametrize("value", ["it's", "a\\b\\", "\0", "", "ü\n", 5, -(2**63), True, 0.1])
def test_literals_keep_their_value(engine: SqlEngine, value: object) -> None:
    assert rows_of(engine, f"select {literal(value)} as value") == [{"value": value}]


def test_nulls_and_unlisted_values_come_first(engine: SqlEngine) -> None:
    engine.make_table("t", COLUMNS, ROWS)
    order = order_by((("name", ("a'b",)),))
    rows = rows_of(engine, f"select name from t order by {order}")
    assert [row["name"] for row in rows] == [None, "c", "a'b"]


def test_small_tables_keep_their_cells(engine: SqlEngine) -> None:
    engine.make_table("t", COLUMNS, ROWS)
    engine.make_table("t", COLUMNS, ROWS)
    found = rows_of(engine, "select * from t order by number")
    assert [tuple(row.values()) for row in found] == [ROWS[1], ROWS[2], ROWS[0]]


def test_renamed_chain_leaves_columns_and_aliases(engine: SqlEngine) -> None:
    chain = parse_chain("""
        create view sends as select number as sends from reads where reads.number = 1;
        create view counted as select s.sends, reads.name from sends s join reads on true;
    """)
    names = {name: f"other_{name}" for name in ("reads", "sends", "counted")}
    engine.make_table("other_reads", COLUMNS, ROWS[:1])
    engine.run(renamed(chain, names))
    assert rows_of(engine, "select * from other_counted") == [{"sends": 1, "name": "a'b"}]


def test_parameter_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="the text: the parameter :most has no value"):
        parse_chain("create view v as select :most as m;")


def test_statement_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="neither a create view nor a create table: drop table t"):
        parse_chain("drop table t;")


def test_casts_with_two_colons_are_no_parameters() -> None:
    assert parse_chain("create table v as select x::int from t") == [
        Statement("v", True, "select x::int from t")
    ]


UNLIKE = {
    "concat": r"\bconcat\s*\(",
    "any_value": r"\bany_value\s*\(",
    "cast by colons": r"::",
    "backquote": "`",
    "backslash": r"\\",
    "a double without exponent": r"(?<![\w.])\d+\.\d+(?!e|\d)",
    "exclude": r"\bexclude\s*\(",
    "qualify": r"\bqualify\b",
}


@pytest.mark.parametrize("file", SQL_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_sql_files_use_the_common_dialect(file: Path) -> None:
    text = re.sub(r"--[^\n]*", "", file.read_text("utf-8"))
    assert [name for name, pattern in UNLIKE.items() if re.search(pattern, text)] == []


@pytest.mark.parametrize("job", JOBS_BY_NAME.values(), ids=list(JOBS_BY_NAME))
def test_jobs_make_each_output_once(job: Job) -> None:
    options = {**job.all_options({}), "page": True}
    names = Counter(one.name for one in job.statements(options))
    assert {name: names[name] for name in job.outputs} == dict.fromkeys(job.outputs, 1)


@pytest.mark.spark
def test_chain_that_fails_leaves_no_views_and_no_settings(spark: SparkSession) -> None:
    def state() -> tuple[set[str], str | None]:
        views = {row.viewName for row in spark.sql("show views").collect()}
        return views, spark.conf.get("spark.sql.ansi.doubleQuotedIdentifiers")

    before = state()
    chain = parse_chain("create view v as select id from t; create view w as select none from v;")
    with pytest.raises(AnalysisException, match="none"):
        run_chain({"t": spark.range(1)}, chain, ["w"])
    assert state() == before
