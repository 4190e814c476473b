"""Options that several commands share, with the same name, meaning and syntax.

First the parsers of values, whose errors say what is valid; then the options; last, functions over
the values of several options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from purgatory.settings.typed_duration import Duration, duration_between

if TYPE_CHECKING:
    pass

_MAX_DURATION = "1000000000h"
"""Its microseconds fit 64 bits, and so does a sum of two."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])(i?)(b?)", re.IGNORECASE)
_LEAST_MEMORY = 256 << 20
_MOST_MEMORY = 1024 << 40


def duration_parser(
    least: str = "1ms", most: str = _MAX_DURATION, step: str = "1ms"
) -> Callable[[str | Duration], Duration]:
    """Return a parser for an option: a multiple of ``step`` from ``least`` to ``most``."""

    def parse(text: str | Duration) -> Duration:
        try:
            return duration_between(str(text), least, most, step)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return a parser for an option: a whole number from ``least`` to ``most``."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            message = f"{text.strip()!r} is not a whole number from {least} to {most}"
            raise typer.BadParameter(message)
        return number

    return parse


def memory_size(text: str) -> int:
    """Parse a size of memory: 2GiB, 800m and 1.5G are powers of 1,024, 2GB are 2,000,000,000 bytes.

    Raises:
        typer.BadParameter: it is not a size, below 256 MiB, or above 1024 TiB.
    """
    match = _SIZE.fullmatch(text.strip())
    size = 0
    if match is not None:
        number, unit, binary, byte = match.groups()
        base = 1000 if byte and not binary else 1024
        # Infinite, it is no integer.
        size = int(min(float(number), _MOST_MEMORY) * base ** ("kmgt".index(unit.lower()) + 1))
    if not _LEAST_MEMORY <= size <= _MOST_MEMORY:
        raise typer.BadParameter(
            f"{text!r} is not a size from 256MiB to 1024TiB, such as 800MiB or 2GiB"
        )
    return size


# Input and output.

Traces = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE...",
        help="Traces, folders of traces, or their URIs: s3://bucket/runs for DuckDB; for Spark "
        "all that its session reads, such as s3a://bucket/runs.",
    ),
]

_out = typer.Option(metavar="DIR", help="The folder to write the results into.")
Out = Annotated[Path, _out]

OutLocation = Annotated[str, _out]
"""A folder, or the URI of one."""

OptionalOutLocation = Annotated[str | None, _out]

ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write a page with the results and plots into this file.",
        show_default=False,
    ),
]

Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the results of an earlier run.")
]

TraceFolder = Annotated[
    Path | None, typer.Option("--trace", metavar="DIR", help="Write a trace into this folder.")
]

FaultPlan = Annotated[
    Path | None, typer.Option("--faults", help="A plan of faults (TOML) to inject.")
]

ControlPort = Annotated[
    int,
    typer.Option(
        "--control-port", min=0, max=65535, help="Port of the control (faults, state). 0: any."
    ),
]

ControlHost = Annotated[
    str,
    typer.Option(
        "--control-host",
        help="Address of the control; beyond the loopback interface it requires a token.",
    ),
]

ControlToken = Annotated[
    str | None,
    typer.Option(
        "--control-token",
        envvar="PURGATORY_CONTROL_TOKEN",
        help="Token of the control; by default, beyond the loopback interface, a random one.",
    ),
]

TlsCertificate = Annotated[
    Path | None, typer.Option("--tls-cert", help="Use TLS with this certificate (PEM).")
]

TlsKey = Annotated[
    Path | None, typer.Option("--tls-key", help="The private key, if not in the same file.")
]

TlsClientAuthority = Annotated[
    Path | None,
    typer.Option("--tls-client-ca", help="Require client certificates signed by one of these."),
]

ColumnMapping = Annotated[
    Path | None,
    typer.Option(
        "--mapping",
        metavar="FILE.toml",
        help="How to read columns with other names, in traces of other programs.",
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
View = Annotated[bool, typer.Option("--view", help="Open a page in the browser.")]

# Execution.

AnalysisEngine = Annotated[
    Literal["spark", "duckdb"] | None,
    typer.Option(
        "--engine",
        help="Compute with Spark (on clusters, for traces of any size), or DuckDB (in this "
        "process, without Java). By default Spark, or DuckDB where PySpark or Java is missing.",
        show_default=False,
    ),
]

Memory = Annotated[
    int | None,
    typer.Option(
        "--memory",
        parser=memory_size,
        metavar="SIZE",
        help="Memory limit, such as 2GiB: of DuckDB's tables, by default 60 % of the memory of "
        "this machine or container; or the heap of Spark's Java, of a cluster the driver's: by "
        "default spark.driver.memory, else a quarter of that memory, 1 to 4 GiB.",
        show_default=False,
    ),
]

Strict = Annotated[
    bool,
    typer.Option(
        "--strict", help="Stop at the first bad row, file or change instead of quarantining it."
    ),
]

seed_option = typer.Option(
    "--seed",
    parser=whole_number(0, 2**63 - 1),
    metavar="N",
    help="Random seed: a run with the same seed repeats the same events.",
    show_default=False,
)

Once = Annotated[bool, typer.Option("--once", help="Process the data that is there now, then end.")]

Master = Annotated[
    str,
    typer.Option(
        help="Spark's master: local[*], local[N], spark://HOST:PORT, or sc://HOST:PORT of a "
        "Spark Connect server."
    ),
]

ShowProgress = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress",
        help="Show a progress bar on standard error; on a terminal by default.",
        show_default=False,
    ),
]
"""None when it is not given."""

MetricsPort = Annotated[
    int | None,
    typer.Option(
        parser=whole_number(0, 65_535),
        metavar="PORT",
        help="Serve Prometheus metrics on this port; 0 takes a free one.",
    ),
]


ViewHost = Annotated[str, typer.Option(help="The address to serve the page on.")]

ViewPort = Annotated[
    int,
    typer.Option(
        parser=whole_number(0, 65_535),
        metavar="PORT",
        help="The port to serve the page on; 0 takes a free one.",
    ),
]

NoOpen = Annotated[bool, typer.Option("--no-open", help="Don't open the browser.")]


def window_option(**limits: str) -> Any:
    """The option `--window`; ``limits`` as `duration_parser` has them."""
    return duration_option("Length of a time window.", **limits)


def duration_override(**limits: str) -> Any:
    """The option `--duration` of a simulation; for ``limits`` see `duration_parser`."""
    return duration_option("Duration, in place of the scenario's.", **limits)


def duration_option(help_text: str, *names: str, **limits: str) -> Any:
    """An option that takes a duration.

    Args:
        help_text: its help.
        names: of the option, where it is not that of its parameter.
        limits: as `duration_parser` has them.
    """
    return typer.Option(
        *names, parser=duration_parser(**limits), metavar="DURATION", help=help_text
    )


# A cluster.

_bootstrap = typer.Option(metavar="HOST:PORT[,...]", help="The Kafka-compatible cluster.")
Bootstrap = Annotated[str, _bootstrap]
OptionalBootstrap = Annotated[str | None, _bootstrap]

Publish = Annotated[
    str | None,
    typer.Option(
        metavar="PREFIX",
        help="Publish events as rows of JSON in the topics PREFIX.operations, PREFIX.sends "
        "and PREFIX.reads.",
    ),
]

Client = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="A setting of the Kafka client, as librdkafka names it: security.protocol=SSL; may "
        "be given again.",
    ),
]


def client_settings(texts: Sequence[str] | None) -> dict[str, str]:
    """Return the settings of `Client` by name. O(texts).

    Raises:
        typer.BadParameter: one is no NAME=VALUE, takes a function, or has an option of its own.
    """
    return dict(_setting(text) for text in texts or ())


def validate_consumer_settings(settings: Mapping[str, str]) -> None:
    """Check the settings of a consumer with librdkafka, before Spark starts.

    Raises:
        typer.BadParameter: librdkafka rejects them.
    """
    from purgatory.pipeline.source.client_settings import consumer_settings
    from purgatory.pipeline.source.errors import OptionError

    try:
        consumer_settings(settings)
    except OptionError as error:
        raise typer.BadParameter(str(error), param_hint="--client") from None


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(
            f"{text!r}: write NAME=VALUE, as in security.protocol=SSL", param_hint="--client"
        )
    if name == "bootstrap.servers":
        raise typer.BadParameter(f"{text!r}: give --bootstrap", param_hint="--client")
    if name.endswith("_cb") or name == "logger":
        raise typer.BadParameter(
            f"{text!r}: {name} takes a function of a program; it can't be given here",
            param_hint="--client",
        )
    return name, value
