"""A plugin of pytest: this cluster starts where kafka-python's tests start a Kafka of their own."""

from __future__ import annotations

import subprocess
import sys
import types
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.suites.cluster_process import running_cluster

_OPENSSL = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
    "-subj /CN=localhost -keyout key.pem -out ca-cert"
)


def _open(fixture: Any) -> None:
    """Start a cluster with the listener that a test's fixture asks for."""
    folder = Path(mkdtemp())
    options = ["--first-broker-id", "0", "--group-delay", "0s", "--group-min-session", "1s"]
    options += ["--default-partitions", str(fixture.partitions)]
    options += ["--auto-create" if fixture.auto_create_topic else "--no-auto-create"]
    if fixture.sasl_enabled:
        options += ["--user", f"{fixture.broker_user}:{fixture.broker_password}"]
    if fixture.ssl_enabled:
        subprocess.run(_OPENSSL.split(), cwd=folder, check=True, capture_output=True)
        fixture.ssl_dir = str(folder)
        options += ["--tls-cert", str(folder / "ca-cert"), "--tls-key", str(folder / "key.pem")]
    fixture.running_cluster = ExitStack()
    cluster = running_cluster(folder / "cluster.log", *options)
    servers = fixture.running_cluster.enter_context(cluster)
    host, _, port = servers.split(",")[0].rpartition(":")
    fixture.host, fixture.port, fixture.running = host, int(port), True


def _close(fixture: Any) -> None:
    if fixture.running:
        fixture.running = False
        fixture.running_cluster.close()


def _topic_names(fixture: Any) -> list[str]:
    from kafka import KafkaAdminClient

    with KafkaAdminClient(**fixture._enrich_client_params({})) as admin:
        return list(admin.list_topics())


def _put_in_place() -> None:
    """Put the cluster in the place of Kafka, and of a module that the distribution lacks."""
    service = types.ModuleType("test.service")
    service.__dict__.update(ExternalService=object, SpawnedService=object)
    sys.modules["test.service"] = service
    from test.integration import fixtures  # type: ignore[import-not-found]

    replaced = {
        "open": _open,
        "start": lambda fixture: None,
        "stop": _close,
        "close": _close,
        "dump_logs": lambda fixture: None,
        "get_topic_names": _topic_names,
        "child": property(lambda fixture: _CHILD, lambda fixture, value: None),
    }
    for name, value in replaced.items():
        setattr(fixtures.KafkaFixture, name, value)


_CHILD = types.SimpleNamespace(dump_logs=lambda: None)
"""Stands for Kafka's process, whose logs some tests want written."""

_put_in_place()
