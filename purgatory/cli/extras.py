"""Which extra of the distribution brings the modules that a command needs."""

from __future__ import annotations

_SPARK = ("spark", {"pyspark", "py4j", "pandas", "numpy", "pyarrow", "plotly", "rich"})
_EXTRA_OF_COMMAND = {
    "wheel": ("cli", {"rich"}),
    "simulate": ("simulation", {"pydantic", "pyarrow", "rich"}),
    "scenarios": ("simulation", {"pydantic", "pyarrow", "rich"}),
    "view": ("view", {"aiohttp", "pyarrow"}),
    "cluster": ("cluster", {"aiohttp", "cramjam", "crc32c", "kio", "uvloop"}),
    "stream": ("live", {*_SPARK[1], "confluent_kafka", "google", "prometheus_client"}),
    "prepare": _SPARK,
    "capture": ("live", {"confluent_kafka", "pymysql", "pymysqlreplication"}),
    "apply": ("live", {*_SPARK[1], "confluent_kafka", "google", "psycopg"}),
    "analyze": _SPARK,
    "waits": _SPARK,
    "occupancy": _SPARK,
    "audit": _SPARK,
    "sweep": (
        "simulation,spark",
        {"pydantic", "pyspark", "py4j", "pandas", "numpy", "pyarrow", "plotly", "rich"},
    ),
}
_CLIENT = "confluent_kafka"
_SERVER = "aiohttp"
"""`purgatory simulate` and `purgatory wheel` need it only with --view."""
_WITHOUT_JAVA = ("analyze", "waits", "occupancy", "audit")
"""Commands that DuckDB does, too."""
_PUBLISHING = ("cluster", "simulate")
"""Commands that need the client of Kafka only with --publish."""


def missing_extra(command: str, module: str | None, who: str | None = None) -> str | None:
    """Say what to install when ``command`` did not find ``module``.

    Args:
        command: which needs it.
        module: what was not found.
        who: to be named instead of the command.

    Returns:
        One line, or None when no extra brings that module: then its absence is a defect.
    """
    extra, modules = _EXTRA_OF_COMMAND.get(command, ("", set()))
    if module == _CLIENT and command in _PUBLISHING:
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
    either = ", or, for DuckDB and without Java, 'kafka-purgatory[analysis]'"
    words = extra.replace(",", " and the ")
    return (
        f"{who or f'purgatory {command}'} needs the {words} extra ({module} is missing): "
        f"pip install 'kafka-purgatory[{extra}]'{either if command in _WITHOUT_JAVA else ''}"
    )
