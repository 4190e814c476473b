"""docs/names.md: the table of purgatories is that of a running cluster."""

from __future__ import annotations

import asyncio
import re

import aiohttp
from kio.schema.index import api_key_map

from purgatory.cluster import Cluster, ClusterConfig
from purgatory.cluster.api.registry import APIS
from purgatory.cluster.control.control import Control
from purgatory.kafka.faults.fault import kafka_api_name
from tests.unit.documents.documents import ROOT, names_in
from tests.unit.documents.test_promises import rows_after

_DOCUMENT = ROOT / "docs" / "names.md"
_PURGATORY, _CODE, _TEST = 0, 5, 6


def _rows() -> list[list[str]]:
    rows = rows_after(_DOCUMENT, "| purgatory | Kafka's classes |")
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_documented_purgatories_are_those_in_the_brokers_metrics() -> None:
    async def main() -> str:
        async with Cluster(ClusterConfig(brokers=2)) as cluster:
            control = Control(cluster)
            await control.start()
            try:
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(control.metrics_url) as answer,
                ):
                    return await answer.text()
            finally:
                await control.stop()

    text = asyncio.run(main())
    for broker in (1, 2):
        found = re.findall(
            rf'^purgatory_pending_operations{{broker="{broker}",purgatory="(\w+)"}}', text, re.M
        )
        assert sorted(found) == sorted(row[_PURGATORY] for row in _rows())


def test_documented_code_and_tests_exist() -> None:
    rows = _rows()
    assert len(rows) > 10
    for row in rows:
        path = ROOT / row[_CODE].strip("`")
        assert path.is_file(), row[_CODE]
        assert any(name.startswith("Delayed") for name in names_in(path)), path
        test, _, name = row[_TEST].strip("`").partition("::")
        assert name in names_in(ROOT / test), row[_TEST]


def test_the_served_apis_in_the_document_are_those_of_the_registry() -> None:
    text = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    section = text.partition("## Supported APIs\n\n")[2].partition(".\n")[0]
    served = {kafka_api_name(api_key_map[key]) for key, api in APIS.items() if api.is_served}
    assert sorted(re.split(r",\s+", section)) == sorted(served)
