"""The commands of the jobs, made from their rows; those on traces, with what these do, are here.

A command has the options of its job (`pipeline.jobs.registry`), those that all jobs on traces have,
and some that concern the command alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from purgatory.cli import options
from purgatory.cli.exit_status import exit_on_error
from purgatory.cli.output import check_report, write_report
from purgatory.pipeline.engines.engine import choose_engine
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
    from purgatory.pipeline.engines.results import JobResults

VIOLATIONS_FOUND = 1
"""The exit status of `audit` when there is a violation."""

INCONCLUSIVE = 3
"""The exit status of `audit` when there is none, and something could not be decided."""

_MASTER = "local[*]"

Parameters = Mapping[str, tuple[Any, object]]
"""The types and the defaults of parameters by their names."""

REQUIRED = Parameter.empty
"""The default of a parameter that has none."""

_RUN_OPTIONS: Parameters = {
    "engine": (options.AnalysisEngine, None),
    "master": (options.Master, _MASTER),
    "overwrite": (options.Overwrite, False),
    "progress": (options.ShowProgress, None),
    "mapping": (options.ColumnMapping, None),
    "strict": (options.Strict, False),
    "memory": (options.Memory, None),
}
"""How a job runs: the type and the default of each option."""

_COMMAND_OPTIONS: Mapping[str, Parameters] = {
    "audit": {
        "allow_empty": (
            Annotated[
                bool,
                typer.Option(
                    "--allow-empty",
                    help="Exit with 0 instead of 3 if there was nothing to decide.",
                ),
            ],
            False,
        )
    },
    "analyze": {
        "sweep": (
            Annotated[
                Path | None,
                typer.Option(
                    metavar="DIR",
                    help="Folder of a sweep's results, to show its answers and heat maps in the "
                    "report.",
                    show_default=False,
                ),
            ],
            None,
        )
    },
}
"""The options of a command that its job does not have."""


def command_of(
    job: Job, run: Callable[..., Any], before: Parameters, after: Parameters
) -> Callable[..., Any]:
    """Return the function of a job's command, with the signature that `typer` reads.

    Args:
        job: its options are options of the command; durations lack the unit in their names.
        run: is called with all values by their names.
        before, after: the parameters of the command alone, as they stand in its help.
    """
    flags = {name.removesuffix("_us"): name for name in job.options}

    def command(**values: Any) -> Any:
        for flag, name in flags.items():
            value = values.pop(flag)
            values[name] = value.us if isinstance(value, Duration) else value
        return run(**values)

    own = {flag: _parameter(flag, job.options[name]) for flag, name in flags.items()}
    parameters = {**before, **own, **after}
    command.__doc__ = job.help
    command.__annotations__ = {name: type_ for name, (type_, _) in parameters.items()}
    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=type_, default=default)
            for name, (type_, default) in parameters.items()
        ]
    )
    return command


def _trace_command(job: Job) -> Callable[..., None]:
    def run(traces: list[str], out: str | None, report: Path | None = None, **values: Any) -> None:
        run_options = {name: values.pop(name) for name in _RUN_OPTIONS}
        command_options = {name: values.pop(name) for name in _COMMAND_OPTIONS.get(job.name, ())}
        engine = run_options.pop("engine")
        check_report(report, out, run_options["overwrite"])
        engine_name = choose_engine(job.name, engine, run_options["master"])
        with exit_on_error(job.name, progress=run_options["progress"], engine=engine_name):
            from purgatory.cli.job_output import print_results
            from purgatory.pipeline.engines.engine import RunOptions
            from purgatory.pipeline.engines.run import run_job
            from purgatory.pipeline.ingest.stores import parse_location

            results = run_job(
                job.name,
                [parse_location(trace) for trace in traces],
                None if out is None else parse_location(out),
                engine=engine_name,
                run_options=RunOptions(**run_options),
                page=report is not None,
                notes=_notes(command_options.get("sweep")),
                **values,
            )
            print_results(results, out, values.get("expect", ()))
            if report is not None:
                write_report(report, out, results.page())
        if job is AUDIT:
            _exit_after_audit(results, values["expect"], command_options["allow_empty"])

    before: dict[str, tuple[Any, object]] = {"traces": (options.Traces, REQUIRED)}
    if job.always_page:
        before["out"] = (options.OutLocation, REQUIRED)
    else:
        before |= {"out": (options.OptionalOutLocation, None)}
        before |= {"report": (options.ReportFile, None)}
    return command_of(job, run, before, {**_RUN_OPTIONS, **_COMMAND_OPTIONS.get(job.name, {})})


def _parameter(flag: str, option: Option) -> tuple[Any, object]:
    if option.kind == "flag":
        name = f"--{flag.replace('_', '-')}"
        return Annotated[bool, typer.Option(name, help=option.help)], option.default
    if option.kind == "duration":
        least = str(duration_of(option.least))
        typed: Any = options.duration_option(option.help, least=least, step=least)
        return Annotated[Duration | None, typed], option.default and duration_of(option.default)
    if option.kind == "number":
        number: Any = typer.Option(min=option.least, max=MOST_NUMBER, help=option.help)
        return Annotated[int, number], option.default
    if option.kind == "word":
        word: Any = Literal[option.words]
        return Annotated[word, typer.Option(help=option.help)], option.default
    # Typer has no lists of literals.
    choices: Any = StrEnum("words", {word: word for word in option.words})  # type: ignore[misc]
    return Annotated[list[choices], typer.Option(help=option.help, show_default=False)], []


def _notes(sweep: Path | None) -> list[str]:
    if sweep is None:
        return []
    from purgatory.pipeline.sweeps.page import swept_sections

    return [swept_sections(sweep)]


def _exit_after_audit(results: JobResults, expected: list[str], allow_empty: bool) -> None:
    from purgatory.cli.job_output import count_violations
    from purgatory.pipeline.jobs.audit.findings import undecided

    rows = results.rows["audit"]
    if count_violations(rows):
        raise typer.Exit(VIOLATIONS_FOUND)
    if undecided(rows, expected) and not allow_empty:
        raise typer.Exit(INCONCLUSIVE)


waits, occupancy, audit, analyze = map(_trace_command, (WAITS, OCCUPANCY, AUDIT, ANALYZE))
