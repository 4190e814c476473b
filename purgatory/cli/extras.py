"""The extras of the distribution that the commands need."""

from __future__ import annotations

_SPARK = ("spark", {"pyspark", "py4j", "pandas", "numpy", "pyarrow", "rich"})
_EXTRA_OF_COMMAND = {
    "wheel": ("cli", {"rich"}),
    "simulate": ("simulation", {"pydantic", "pyarrow", "rich"}),
    "scenarios": ("simulation", {"pydantic", "pyarrow", "rich"}),
    "view": ("view", {"aiohttp", "pyarrow"}),
    "cluster": ("cluster", {"aiohttp", "cramjam", "crc32c", "kio", "uvloop"}),
    "proxy": ("cluster", {"aiohttp", "cramjam", "crc32c", "kio", "uvloop"}),
    "stream": ("live", {*_SPARK[1], "confluent_kafka", "prometheus_client"}),
    "capture": ("live", {"confluent_kafka", "pymysql", "pymysqlreplication"}),
    "apply": ("live", {*_SPARK[1], "confluent_kafka", "psycopg"}),
    "analyze": _SPARK,
    "waits": _SPARK,
    "occupancy": _SPARK,
    "audit": _SPARK,
    "sweep": (
        "simulation,spark",
        {"pydantic", "pyspark", "py4j", "pandas", "numpy", "pyarrow", "rich"},
    ),
}
_CLIENT = "confluent_kafka"
_SERVER = "aiohttp"
"""Commands that need the page's modules only with --view."""
_WITHOUT_JAVA = ("analyze", "waits", "occupancy", "audit")
"""Commands that run on DuckDB, too."""
_PUBLISHING_COMMANDS = ("cluster", "simulate")
"""Commands that need the Kafka client only with --publish."""


def missing_extra(command: str, module: str | None, requirer: str | None = None) -> str | None:
    """The message on a missing module: which extra to install.

    Args:
        requirer: the name to use instead of the command's.

    Returns:
        One line; None if no extra has the module, whose absence is then a defect.
    """
    extra, modules = _EXTRA_OF_COMMAND.get(command, ("", set()))
    if module == _CLIENT and command in _PUBLISHING_COMMANDS:
        extra, modules = "live", {_CLIENT}
    if module == _SERVER and command in ("simulate", "wheel"):
        extra, modules = "view", {_SERVER}
    module = (module or "").partition(".")[0]
    if module == "duckdb" and command in _WITHOUT_JAVA:
        return (
            f"purgatory {command} needs the analysis extra for DuckDB (duckdb is missing): "
            "pip install 'kafka-purgatory[analysis]'"
        )
    if module not in modules:
        return None
    alternative = ", or, for DuckDB and without Java, 'kafka-purgatory[analysis]'"
    extra_names = extra.replace(",", " and the ")
    return (
        f"{requirer or f'purgatory {command}'} needs the {extra_names} extra "
        f"({module} is missing): "
        f"pip install 'kafka-purgatory[{extra}]'{alternative if command in _WITHOUT_JAVA else ''}"
    )
