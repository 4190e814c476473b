"""The commands of the jobs, made from their rows in the registry; those on traces run here.

A command has the options of its job (`pipeline.jobs.registry`), those that all jobs on traces have,
and some that concern the command alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from purgatory.cli import options
from purgatory.cli.command_group import OWN_PROCESS
from purgatory.cli.exit_status import exit_on_error
from purgatory.cli.options import PATH, Decorator
from purgatory.cli.output import check_report, write_report
from purgatory.pipeline.engines.engine import Engine, RunOptions, choose_engine
from purgatory.pipeline.jobs.registry import (
    ANALYZE,
    AUDIT,
    MOST_NUMBER,
    OCCUPANCY,
    WAITS,
    Job,
    Option,
)
from purgatory.settings.typed_duration import Duration, duration_of

if TYPE_CHECKING:
    from pathlib import Path

    from purgatory.pipeline.engines.results import JobResults
    from purgatory.sweeps.page import SweepResults
    from purgatory.trace.effects import Effect

VIOLATIONS_FOUND = 1
"""The exit status of `audit` for a violation."""

INCONCLUSIVE = 3
"""The exit status of a job with nothing to judge, and of `audit` where it could not decide."""

_RUN_OPTIONS = (
    options.analysis_engine,
    options.master,
    options.overwrite,
    options.show_progress,
    options.column_mapping,
    options.strict,
    options.memory,
)
"""The options of a job's run."""

_ALLOW_EMPTY = options.flag(
    "--allow-empty", "Exit with 0 instead of 3 if there was nothing to decide."
)
_OWN_OPTIONS = {
    "audit": [
        options.option(
            "--effects",
            type=PATH,
            metavar="FILE",
            help="What the service did: JSON lines with topic, partition and offset of a record.",
        )
    ],
    "analyze": [
        options.option(
            "--sweep",
            type=PATH,
            metavar="DIR",
            help="Folder of a sweep's results, to show its answers and heat maps in the report.",
        )
    ],
}
"""The options of a command that its job does not have, and other commands neither."""


def command_of(
    job: Job, run: Callable[..., Any], before: Sequence[Decorator], after: Sequence[Decorator]
) -> click.Command:
    """Return the command of a job.

    Args:
        job: its options are options of the command; durations lack the unit in their names.
        run: a function that is called with all values by their names.
        before, after: the options of the command alone, as they stand in its help.
    """
    flags = {name.removesuffix("_us"): name for name in job.options}

    def command(**values: Any) -> Any:
        for flag, name in flags.items():
            value = values.pop(flag)
            values[name] = value.us if isinstance(value, Duration) else value
        return run(**values)

    own = [_option(flag, job.options[name]) for flag, name in flags.items()]
    for decorate in reversed([*before, *own, *after]):
        command = decorate(command)
    return click.command(job.name, help=job.help)(command)


def _trace_command(job: Job) -> click.Command:
    def run(
        traces: Sequence[str],
        out: str | None,
        engine: Engine | None,
        report: Path | None = None,
        sweep: Path | None = None,
        allow_empty: bool = False,
        effects: Path | None = None,
        **values: Any,
    ) -> None:
        run_options = {name: values.pop(name) for name in RunOptions.__dataclass_fields__}
        check_report(report, out, run_options["overwrite"])
        given = _given_effects(effects)
        if given is not None and engine is None:
            engine = "duckdb"
        engine_name = choose_engine(job.name, engine, run_options["master"])
        if given is not None and engine_name == "spark":
            raise click.UsageError("--effects takes --engine duckdb")
        with exit_on_error(job.name, progress=run_options["progress"], engine=engine_name):
            if engine_name == "duckdb" and click.get_current_context().obj is OWN_PROCESS:
                _import_pyarrow()
            from purgatory.cli.job_output import print_results, runs_without_rows
            from purgatory.pipeline.engines.run import run_job
            from purgatory.pipeline.ingest.stores import parse_location

            swept = _read_sweep(sweep)
            results = run_job(
                job.name,
                [parse_location(trace) for trace in traces],
                None if out is None else parse_location(out),
                engine=engine_name,
                run_options=RunOptions(**run_options),
                page=report is not None,
                notes=[] if swept is None else [swept.sections()],
                effects=given,
                **values,
            )
            if swept is not None:
                click.echo(f"{swept.name}: {swept.basis_line()}")
            print_results(results, out, values.get("expect", ()), has_page=report is not None)
            if report is not None:
                write_report(report, out, results.page())
        if job is AUDIT:
            _exit_after_audit(results, values["expect"], allow_empty)
        elif not allow_empty and (_is_empty(swept) or runs_without_rows(results)):
            raise click.exceptions.Exit(INCONCLUSIVE)

    before = [options.traces, options.out_option(required=job.always_page)]
    if not job.always_page:
        before.append(options.report_file)
    after = [_ALLOW_EMPTY, *_OWN_OPTIONS.get(job.name, ())]
    return command_of(job, run, before, [*_RUN_OPTIONS, *after])


def _option(flag: str, option: Option) -> Decorator:
    name = f"--{flag.replace('_', '-')}"
    if option.kind == "flag":
        return options.flag(name, option.help)
    if option.kind == "duration":
        least = str(duration_of(option.least))
        default = option.default and duration_of(option.default)
        return options.duration_option(name, option.help, least=least, step=least, default=default)
    if option.kind == "number":
        return options.number_option(
            name, least=option.least, most=MOST_NUMBER, default=option.default, help=option.help
        )
    return options.option(
        name,
        type=click.Choice(option.words),
        multiple=option.kind == "words",
        default=option.default,
        help=option.help,
    )


def _import_pyarrow() -> None:
    """Import pyarrow without its optional numpy, which takes a third of the imports' time.

    Only for a process that runs nothing else: pyarrow never converts to numpy afterwards.
    """
    if "numpy" in sys.modules:
        return
    sys.modules["numpy"] = None  # type: ignore[assignment]
    try:
        import pyarrow.json
        import pyarrow.parquet  # noqa: F401
    finally:
        del sys.modules["numpy"]


def _given_effects(path: Path | None) -> Sequence[Effect] | None:
    if path is None:
        return None
    from purgatory.trace.effects import read_effects

    try:
        return read_effects(path)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _read_sweep(sweep: Path | None) -> SweepResults | None:
    if sweep is None:
        return None
    from purgatory.sweeps.page import read_results

    return read_results(sweep)


def _is_empty(swept: SweepResults | None) -> bool:
    return swept is not None and swept.basis is not None and swept.basis.nothing_judged


def _exit_after_audit(results: JobResults, expected: Sequence[str], allow_empty: bool) -> None:
    from purgatory.cli.job_output import count_violations
    from purgatory.pipeline.jobs.audit.findings import undecided

    rows = results.rows["audit"]
    if count_violations(rows):
        raise click.exceptions.Exit(VIOLATIONS_FOUND)
    if undecided(rows, expected) and not allow_empty:
        raise click.exceptions.Exit(INCONCLUSIVE)


waits, occupancy, audit, analyze = map(_trace_command, (WAITS, OCCUPANCY, AUDIT, ANALYZE))
