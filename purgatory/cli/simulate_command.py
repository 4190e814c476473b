"""``purgatory simulate`` and ``purgatory scenarios``: a cluster in virtual time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from purgatory.cli import options
from purgatory.cli.exit_status import SIGNAL_BASE
from purgatory.cli.view_command import serve_trace
from purgatory.pipeline.signals import interruptible

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from purgatory.settings.typed_duration import Duration
    from purgatory.simulation import Simulation
    from purgatory.simulation.scenario_file import LoadedScenario

_FORMER_OPTIONS = (
    "purgatory simulate: --real-time, --publish, --bootstrap, --client, --metrics-port are gone: "
    "use purgatory cluster, which runs in real time and has --publish and --metrics-port"
)
_SHUTDOWN_EVENTS = {"purgatory_closed", "timer_closed"}


@click.command()
@click.argument("scenario", help="A shipped scenario's name, or a TOML file.")
@options.seed
@options.trace_folder
@options.overwrite
@options.strict
@options.duration_option("--duration", "Duration, in place of the scenario's.", most="1000000000s")
@options.option(
    "--log-format",
    type=click.Choice(["console", "json"]),
    default="console",
    help="Format of the log on standard error.",
)
@options.view
@options.page_options
@options.flag("--quiet", "No progress bar, and only warnings in the log.")
@options.as_json
@options.option("--real-time", "former_flag", is_flag=True, hidden=True)
@options.option(
    *("--publish", "--bootstrap", "--client", "--metrics-port"),
    *("former",),
    multiple=True,
    hidden=True,
)
def simulate(
    scenario: str,
    seed: int | None,
    trace: Path | None,
    overwrite: bool,
    strict: bool,
    duration: Duration | None,
    log_format: str,
    view: bool,
    view_host: str,
    view_port: int,
    no_open: bool,
    quiet: bool,
    as_json: bool,
    former_flag: bool,
    former: Sequence[str],
) -> int:
    """Run a simulated cluster, and show how long requests waited.

    Brokers, each with its own purgatories, take produces and fetches from groups of producers and
    consumers, while followers copy the logs and faults are injected, as the scenario specifies.
    `purgatory scenarios` lists the shipped ones.

    One seed gives one trace, byte for byte. With --view, the page is served until Ctrl-C, from a
    temporary trace unless --trace is given.
    """
    if former_flag or former:
        return _exit_with_error(_FORMER_OPTIONS, 2)
    if view:
        import aiohttp  # noqa: F401  # a missing extra is an error before the run
    from purgatory.simulation import (
        ArrivalsError,
        InvariantViolation,
        ScenarioError,
        TraceError,
        apply_overrides,
        load_scenario,
    )
    from purgatory.simulation.simulation import SimulationInterrupted

    _configure_logs(log_format, quiet)
    if view and (view_error := _view_error(view_host, view_port)) is not None:
        return _exit_with_error(f"purgatory simulate: {view_error}", 2)
    duration_ms = None if duration is None else duration.whole_ms
    with _trace_folder(trace, view) as folder:
        try:
            scenario_run = apply_overrides(
                load_scenario(scenario), seed=seed, duration_ms=duration_ms
            )
            run = _prepare(scenario_run, folder, overwrite, strict, quiet)
        except (ScenarioError, ArrivalsError, TraceError) as error:
            return _exit_with_error(str(error), 2)
        except OSError as error:
            return _exit_with_error(f"purgatory simulate: {error}", 2)
        try:
            with ExitStack() as stack:
                signals = stack.enter_context(interruptible(run.interrupt))
                on_progress = None if quiet else stack.enter_context(_progress(run))
                summary = run.run(on_progress)
        except SimulationInterrupted as error:
            trace_note = "" if trace is None else f"; the trace in {trace} is marked incomplete"
            return _exit_with_error(
                f"purgatory simulate: {error}{trace_note}", SIGNAL_BASE + signals[0]
            )
        except InvariantViolation as error:
            return _exit_with_error(f"purgatory simulate: invariant violated: {error}", 1)
        except OSError as error:
            return _exit_with_error(f"purgatory simulate: the trace cannot be written: {error}", 1)
        _print_summary(summary, as_json, trace)
        if not view or folder is None:
            return 0
        return serve_trace("simulate", folder, view_host, view_port, not no_open)


def _view_error(host: str, port: int) -> str | None:
    """Return the reason why the page can't be served, before the run; None if it can."""
    from purgatory.view.errors import ViewError
    from purgatory.view.page_server import check_address

    try:
        check_address(host, port)
    except ViewError as error:
        return str(error)
    return None


@contextmanager
def _trace_folder(trace: Path | None, view: bool) -> Iterator[Path | None]:
    """The folder of the trace, if any; --view needs one."""
    if trace is not None or not view:
        yield trace
        return
    from purgatory.pipeline.signals import working_folder

    with working_folder("purgatory-view-") as folder:
        yield folder / "trace"


@click.command()
def scenarios() -> None:
    """List the shipped scenarios."""
    from rich.console import Console
    from rich.table import Table

    from purgatory.simulation import shipped_scenarios

    table = Table(box=None, show_header=False, pad_edge=False)
    for name, description in shipped_scenarios().items():
        table.add_row(name, description)
    Console(highlight=False).print(table)


def _prepare(
    scenario_run: LoadedScenario,
    trace: Path | None,
    overwrite: bool,
    strict: bool,
    quiet: bool,
) -> Simulation:
    import structlog

    from purgatory.simulation import Simulation

    return Simulation(
        scenario_run,
        trace_folder=trace,
        overwrite=overwrite,
        strict=strict,
        on_event=None if quiet else structlog.get_logger("purgatory.simulation").info,
    )


@contextmanager
def _progress(run: Simulation) -> Iterator[Callable[[int], None] | None]:
    """A progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %  {task.fields[records]:,} records"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(run.scenario.name, total=run.duration_ms, records=0)

        def on_progress(now_ms: int) -> None:
            records = sum(group.counts.records for group in run.producer_groups)
            progress.update(task, completed=min(now_ms, run.duration_ms), records=records)

        yield on_progress


def _print_summary(summary: dict[str, Any], as_json: bool, trace: Path | None) -> None:
    if as_json:
        print(json.dumps(summary, indent=1))
        return
    console = _console()
    from purgatory.simulation.summary_tables import print_report

    print_report(summary, console)
    if trace is not None:
        console.print(f"trace: {trace}", highlight=False, markup=False, soft_wrap=True)


def _console() -> Console:
    from rich.console import Console

    console = Console()
    # A pipe has no width: the tables must not be cut to 80 columns there.
    return console if console.is_terminal else Console(width=120)


class _Stderr:
    """The current `sys.stderr`, which a progress bar replaces."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _configure_logs(log_format: str, quiet: bool) -> None:
    """Send log lines to standard error: coloured on a terminal, or as JSON."""
    import logging

    import structlog

    renderer: Any = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _drop_shutdown_events,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *([structlog.processors.dict_tracebacks] if log_format == "json" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.WARNING if quiet else logging.INFO
        ),
        logger_factory=structlog.PrintLoggerFactory(file=_Stderr()),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )


def _drop_shutdown_events(_logger: Any, _method: str, event: Any) -> Any:
    """Drop the log lines at the end of simulated purgatories: three per broker and run."""
    import structlog

    if event.get("event") in _SHUTDOWN_EVENTS:
        raise structlog.DropEvent
    return event


def _exit_with_error(message: str, status: int) -> int:
    print(message, file=sys.stderr)
    return status
