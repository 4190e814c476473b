"""``purgatory simulate`` and ``purgatory scenarios``: a cluster in virtual time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    from purgatory.stream.publisher import RowPublisher

_SHUTDOWN_EVENTS = {"purgatory_closed", "timer_closed"}


@click.command()
@click.argument("scenario", help="A shipped scenario's name, or a TOML file.")
@options.seed
@options.trace_folder
@options.overwrite
@options.metrics_port
@options.flag("--real-time", "Run in real time, with timers and reapers on threads.")
@options.publish
@options.bootstrap_option()
@options.client
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
def simulate(
    scenario: str,
    seed: int | None,
    trace: Path | None,
    overwrite: bool,
    metrics_port: int | None,
    real_time: bool,
    publish: str | None,
    bootstrap: str | None,
    client: Sequence[str],
    strict: bool,
    duration: Duration | None,
    log_format: str,
    view: bool,
    view_host: str,
    view_port: int,
    no_open: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Run a simulated cluster, and show how long requests waited.

    Brokers, each with its own purgatories, take produces and fetches from groups of producers and
    consumers, while followers copy the logs and faults are injected, as the scenario says.
    `purgatory scenarios` lists the shipped ones.

    One seed gives one trace, byte for byte. With --real-time, --publish sends the same rows to the
    cluster at --bootstrap. With --view, the page is served until Ctrl-C, from a
    temporary trace unless --trace is given.
    """
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
    if (publish is None) != (bootstrap is None):
        return _exit_with_error("purgatory simulate: --publish and --bootstrap belong together", 2)
    if publish is not None and not real_time:
        return _exit_with_error("purgatory simulate: --publish goes with --real-time", 2)
    if client and publish is None:
        return _exit_with_error("purgatory simulate: --client goes with --publish", 2)
    settings = options.client_settings(client)
    if view and (view_error := _view_error(view_host, view_port)) is not None:
        return _exit_with_error(f"purgatory simulate: {view_error}", 2)
    duration_ms = None if duration is None else duration.whole_ms
    with _trace_folder(trace, view) as folder:
        try:
            scenario_run = apply_overrides(
                load_scenario(scenario), seed=seed, duration_ms=duration_ms
            )
            publisher = None
            if publish is not None and bootstrap is not None:
                publisher = _publisher(scenario_run, bootstrap, publish, settings)
            run = _prepare(scenario_run, folder, overwrite, strict, real_time, quiet, publisher)
        except _PublishError as error:
            return _exit_with_error(f"purgatory simulate: --publish {error}", 2)
        except (ScenarioError, ArrivalsError, TraceError) as error:
            return _exit_with_error(str(error), 2)
        except OSError as error:
            return _exit_with_error(f"purgatory simulate: {error}", 2)
        try:
            with ExitStack() as stack:
                if publisher is not None:
                    stack.callback(_end_publishing, publisher)
                if metrics_port is not None:
                    _serve(stack, run, metrics_port)
                signals = stack.enter_context(interruptible(run.interrupt))
                on_progress = None if quiet else stack.enter_context(_progress(run))
                summary = run.run(on_progress)
        except _PortError as error:
            return _exit_with_error(f"purgatory simulate: {error}", 2)
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
    """Return why the page can't be served, before the run; None if it can."""
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


class _PortError(Exception):
    """The port for the metrics can't be used."""


class _PublishError(Exception):
    """Rows can't be published there."""


def _prepare(
    scenario_run: LoadedScenario,
    trace: Path | None,
    overwrite: bool,
    strict: bool,
    real_time: bool,
    quiet: bool,
    publisher: RowPublisher | None,
) -> Simulation:
    import structlog

    from purgatory.simulation import Simulation
    from purgatory.simulation.runtime import RealTimeRuntime, VirtualRuntime

    return Simulation(
        scenario_run,
        trace_folder=trace,
        overwrite=overwrite,
        strict=strict,
        make_runtime=RealTimeRuntime if real_time else VirtualRuntime,
        on_event=None if quiet else structlog.get_logger("purgatory.simulation").info,
        publisher=publisher,
    )


def _publisher(
    scenario_run: LoadedScenario, bootstrap_servers: str, prefix: str, client: Mapping[str, str]
) -> RowPublisher:
    """The publisher; its topics exist, so the cluster answers."""
    import time

    from purgatory.stream.publisher import PublishError, RowPublisher, create_topics

    # The same scenario and seed may be published again, and is another run then.
    now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    run_id = f"{scenario_run.scenario.run_id}-{now}"
    try:
        publisher = RowPublisher(prefix, run_id=run_id, numbered_by="producer", client=client)
        create_topics(bootstrap_servers, prefix, client)
        publisher.start(bootstrap_servers)
    except (PublishError, ValueError) as error:
        raise _PublishError(str(error)) from error
    return publisher


def _end_publishing(publisher: RowPublisher) -> None:
    """Send the remaining rows, and report those that could not be sent."""
    published = publisher.close()
    if published.failed or published.dropped:
        print(
            f"purgatory simulate: of the published rows {published.failed:,} could not be "
            f"delivered, and {published.dropped:,} were dropped because the queue was full",
            file=sys.stderr,
        )


def _serve(stack: ExitStack, run: Simulation, port: int) -> None:
    from purgatory.simulation.metrics_server import ADDRESS, serve_metrics

    try:
        metrics_url = stack.enter_context(serve_metrics(run.runtime, port))
    except OSError as error:
        raise _PortError(f"--metrics-port {port} can't be used: {error}") from error
    print(f"metrics: http://{ADDRESS}:{metrics_url}/metrics", file=sys.stderr)


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
    """Drop the end of each simulated broker's purgatories: three lines per broker and run."""
    import structlog

    if event.get("event") in _SHUTDOWN_EVENTS:
        raise structlog.DropEvent
    return event


def _exit_with_error(message: str, status: int) -> int:
    print(message, file=sys.stderr)
    return status
