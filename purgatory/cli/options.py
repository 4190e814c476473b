"""Options that several commands share, with the same name, meaning and syntax.

First the parsers of values, whose errors name the valid ones; then the options, as decorators of a
command's function; last, functions over the values of several options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from purgatory.settings.typed_duration import Duration, duration_between

_MAX_DURATION = "1000000000h"
"""The longest duration: its microseconds fit 64 bits, and so does a sum of two."""
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
            raise click.BadParameter(str(error)) from None

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
            raise click.BadParameter(message)
        return number

    return parse


def memory_size(text: str) -> int:
    """Parse a size of memory: 2GiB, 800m and 1.5G are powers of 1,024, 2GB are 2,000,000,000 bytes.

    Raises:
        click.BadParameter: the text is no size, or is below 256 MiB or above 1024 TiB.
    """
    match = _SIZE.fullmatch(text.strip())
    size = 0
    if match is not None:
        number, unit, binary, byte = match.groups()
        base = 1000 if byte and not binary else 1024
        # An infinite number is no integer.
        size = int(min(float(number), _MOST_MEMORY) * base ** ("kmgt".index(unit.lower()) + 1))
    if not _LEAST_MEMORY <= size <= _MOST_MEMORY:
        raise click.BadParameter(
            f"{text!r} is not a size from 256MiB to 1024TiB, such as 800MiB or 2GiB"
        )
    return size


# Kinds of options.

Decorator = Callable[[Any], Any]
"""An option or an argument, of the function that it decorates."""

PATH = click.Path(path_type=Path)


def option(*names: str, **attributes: Any) -> Decorator:
    """An option whose environment variable, if it has one, stands in the help."""
    return click.option(*names, show_envvar="envvar" in attributes, **attributes)


def flag(name: str, help_text: str, *names: str) -> Decorator:
    """An option that is given or not.

    Args:
        name: of the option.
        help_text: its help.
        names: of its parameter, where that is not the option's.
    """
    return click.option(name, *names, is_flag=True, help=help_text)


def number_option(*names: str, least: int, most: int | None = None, **attributes: Any) -> Decorator:
    """An option that takes a whole number."""
    return option(*names, type=click.IntRange(least, most), metavar="N", **attributes)


def duration_option(name: str, help_text: str, *names: str, **attributes: Any) -> Decorator:
    """An option that takes a duration.

    Args:
        name: of the option.
        help_text: its help.
        names: of its parameter, where that is not the option's.
        attributes: of the option; `least`, `most` and `step` as `duration_parser` has them.
    """
    limits = {name: attributes.pop(name) for name in ("least", "most", "step") & attributes.keys()}
    parser = duration_parser(**limits)
    return option(name, *names, type=parser, metavar="DURATION", help=help_text, **attributes)


# Input and output.

traces = click.argument(
    "traces",
    nargs=-1,
    required=True,
    metavar="TRACE...",
    help="Traces, folders of traces, or their URIs: s3://bucket/runs for DuckDB; for Spark "
    "all that its session reads, such as s3a://bucket/runs.",
)


def out_option(**attributes: Any) -> Decorator:
    """The option `--out`; a text, unless the type is `PATH`, for it may be a URI."""
    return option(
        "--out", metavar="DIR", help="The folder to write the results into.", **attributes
    )


report_file = option(
    "--report",
    type=PATH,
    metavar="FILE",
    help="Write a page with the results and plots into this file.",
)
overwrite = flag("--overwrite", "Replace the results of an earlier run.")
trace_folder = option("--trace", type=PATH, metavar="DIR", help="Write a trace into this folder.")
advertised_host = option(
    "--advertised-host", help="The host that clients are given; by default the one listened on."
)
fault_plan = option("--faults", type=PATH, help="A plan of faults (TOML) to inject.")


def control_options(command: Any) -> Any:
    """The options of a control."""
    from purgatory.settings.addresses import CONTROL_PORT

    port = number_option(
        "--control-port",
        least=0,
        most=65_535,
        default=CONTROL_PORT,
        help="Port of the control (faults, state). 0: any.",
    )
    host = option(
        "--control-host",
        default="127.0.0.1",
        help="Address of the control; beyond the loopback interface it requires a token.",
    )
    token = option(
        "--control-token",
        envvar="PURGATORY_CONTROL_TOKEN",
        help="Token of the control; by default, beyond the loopback interface, a random one.",
    )
    return port(host(token(command)))


def tls_options(command: Any) -> Any:
    """The options of a server's TLS."""
    certificate = option("--tls-cert", type=PATH, help="Use TLS with this certificate (PEM).")
    key = option("--tls-key", type=PATH, help="The private key, if not in the same file.")
    authority = option(
        "--tls-client-ca",
        type=PATH,
        help="Require client certificates signed by one of these.",
    )
    return certificate(key(authority(command)))


column_mapping = option(
    "--mapping",
    type=PATH,
    metavar="FILE.toml",
    help="How to read columns with other names, in traces of other programs.",
)
as_json = flag("--json", "Print the result as one JSON document.", "as_json")
view = flag("--view", "Open a page in the browser.")

# Execution.

analysis_engine = option(
    "--engine",
    type=click.Choice(["spark", "duckdb"]),
    help="Compute with Spark (on clusters, for traces of any size), or DuckDB (in this "
    "process, without Java). By default Spark, or DuckDB where PySpark or Java is missing.",
)
memory = option(
    "--memory",
    type=memory_size,
    metavar="SIZE",
    help="Memory limit, such as 2GiB: of DuckDB's tables, by default 60 % of the memory of "
    "this machine or container; or the heap of Spark's Java, of a cluster the driver's: by "
    "default spark.driver.memory, else a quarter of that memory, 1 to 4 GiB.",
)
strict = flag("--strict", "Stop at the first bad row, file or change instead of quarantining it.")
seed = option(
    "--seed",
    type=whole_number(0, 2**63 - 1),
    metavar="N",
    help="Random seed: a run with the same seed repeats the same events.",
)
once = flag("--once", "Process the data available now, then end.")
master = option(
    "--master",
    default="local[*]",
    help="Spark's master: local[*], local[N], spark://HOST:PORT, or sc://HOST:PORT of a "
    "Spark Connect server.",
)
show_progress = option(
    "--progress/--no-progress",
    default=None,
    help="Show a progress bar on standard error; on a terminal by default.",
)
metrics_port = option(
    "--metrics-port",
    type=whole_number(0, 65_535),
    metavar="PORT",
    help="Serve Prometheus metrics on this port; 0 takes a free one.",
)


def page_options(command: Any) -> Any:
    """The options of a page that is served until Ctrl-C."""
    host = option("--view-host", default="127.0.0.1", help="The address to serve the page on.")
    port = option(
        "--view-port",
        type=whole_number(0, 65_535),
        default=0,
        metavar="PORT",
        help="The port to serve the page on; 0 takes a free one.",
    )
    no_open = flag("--no-open", "Don't open the browser.")
    return host(port(no_open(command)))


# A cluster.


def bootstrap_option(**attributes: Any) -> Decorator:
    """The option `--bootstrap`."""
    return option(
        "--bootstrap",
        metavar="HOST:PORT[,...]",
        help="The Kafka-compatible cluster.",
        **attributes,
    )


publish = option(
    "--publish",
    metavar="PREFIX",
    help="Publish events as rows of JSON in the topics PREFIX.operations, PREFIX.sends "
    "and PREFIX.reads.",
)
client = option(
    "--client",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the Kafka client, as librdkafka names it: security.protocol=SSL; may "
    "be given again.",
)


def client_settings(texts: Sequence[str]) -> dict[str, str]:
    """Return the settings of `client` by name. O(texts).

    Raises:
        click.BadParameter: a text is no NAME=VALUE, or its setting takes a function, or has an
            option of its own.
    """
    return dict(_setting(text) for text in texts)


def validate_consumer_settings(settings: Mapping[str, str]) -> None:
    """Check the settings of a consumer with librdkafka, before Spark starts.

    Raises:
        click.BadParameter: librdkafka rejects them.
    """
    from purgatory.source.client_settings import consumer_settings
    from purgatory.source.errors import OptionError

    try:
        consumer_settings(settings)
    except OptionError as error:
        raise click.BadParameter(str(error), param_hint="--client") from None


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(
            f"{text!r}: write NAME=VALUE, as in security.protocol=SSL", param_hint="--client"
        )
    if name == "bootstrap.servers":
        raise click.BadParameter(f"{text!r}: give --bootstrap", param_hint="--client")
    if name.endswith("_cb") or name == "logger":
        raise click.BadParameter(
            f"{text!r}: {name} takes a function of a program; it can't be given here",
            param_hint="--client",
        )
    return name, value
