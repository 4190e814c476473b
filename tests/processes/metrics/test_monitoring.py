"""The alerts, the dashboard and their page: all metrics are there, none that doesn't exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from purgatory import DelayedOperationPurgatory, metrics
from purgatory.shared import UnixRelay
from tests.unit.metrics.promtool import MONITORING, promtool

METRIC = re.compile(r"\b(?:purgatory|timer|kafka_server)_[a-z_]+\b")

Json = dict[str, Any]


@pytest.fixture(scope="module")
def names() -> set[str]:
    """The names of all samples that a scrape can have."""
    registry = CollectorRegistry()
    with (
        DelayedOperationPurgatory("Produce", max_pending=1) as produce,
        DelayedOperationPurgatory("Fetch") as fetch,
    ):
        for purgatory in (produce, fetch):
            metrics.register(purgatory, registry, kafka_names=True)
        relay = UnixRelay("relay")
        metrics.register_relay(relay, registry)
        relay.observers[registry]("sent", 1)
        samples = [sample.name for family in registry.collect() for sample in family.samples]
        return {name for name in samples if not name.endswith("_created")}


@pytest.fixture(scope="module")
def dashboard() -> Json:
    found: Json = json.loads((MONITORING / "dashboard.json").read_text())
    return found


def panels_of(dashboard: Json) -> list[Json]:
    """Return all panels but the rows, those of collapsed rows too."""
    found = [inner for panel in dashboard["panels"] for inner in (panel, *panel.get("panels", ()))]
    return [panel for panel in found if panel["type"] != "row"]


def queries_of(dashboard: Json) -> list[str]:
    return [target["expr"] for panel in panels_of(dashboard) for target in panel["targets"]]


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", (MONITORING / "alerts.yml").read_text())


def test_every_metric_is_on_the_dashboard(names: set[str], dashboard: Json) -> None:
    shown = set(METRIC.findall("\n".join(queries_of(dashboard))))
    assert shown == names


def test_the_alerts_name_only_metrics_that_exist(names: set[str]) -> None:
    for file in ("alerts.yml", "alerts_test.yml"):
        named = set(METRIC.findall((MONITORING / file).read_text()))
        assert named
        assert named <= names, file


def test_no_alert_counts_the_expiries_of_fetches() -> None:
    rules = (MONITORING / "alerts.yml").read_text()
    selectors = re.findall(r"purgatory_operations_total\{[^}]*\}", rules)
    about_expiry = [one for one in selectors if '"expired"' in one]
    assert about_expiry
    assert all('purgatory=~"Produce.*"' in selector for selector in about_expiry)
    assert "delayedfetchmetrics" not in rules


def test_each_alert_is_tested_firing_and_not_firing() -> None:
    cases = re.findall(
        r"alertname: (\w+)\n\s+exp_alerts:( \[\])?", (MONITORING / "alerts_test.yml").read_text()
    )
    for alert in alerts():
        assert {silent for name, silent in cases if name == alert} == {"", " []"}, alert


def test_the_page_explains_each_alert_and_each_panel(dashboard: Json) -> None:
    page = (MONITORING / "README.md").read_text()
    assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == alerts()
    assert f": {len(alerts())} alerts;" in page
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", page.split("## The dashboard")[1], re.M)
    assert rows[1:] == [panel["title"] for panel in panels_of(dashboard)]


def test_each_alert_leads_to_its_part_of_the_page() -> None:
    rules = (MONITORING / "alerts.yml").read_text()
    runbooks = re.findall(r"runbook: docs/monitoring/README\.md#(\w+)", rules)
    assert runbooks == [alert.lower() for alert in alerts()]


def test_the_pages_links_lead_somewhere() -> None:
    page = (MONITORING / "README.md").read_text()
    for target, part in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", page):
        document = MONITORING / target if target else MONITORING / "README.md"
        assert document.exists(), target
        if part:
            titles = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
            assert part in {title.lower().replace(" ", "-") for title in titles}, part


def test_the_dashboard_is_one_that_grafana_takes(dashboard: Json) -> None:
    assert isinstance(dashboard["schemaVersion"], int)
    assert dashboard["id"] is None, "Grafana gives it a number at the import"
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    panels = panels_of(dashboard)
    rows = [panel for panel in dashboard["panels"] if panel["type"] == "row"]
    ids = [panel["id"] for panel in (*panels, *rows)]
    assert len(set(ids)) == len(ids)
    used: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
        for one in (panel, *panel["targets"]):
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= {"__rate_interval", *variables}
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        squares = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not squares & used, f"{panel['title']} overlaps another panel"
        used |= squares


def test_the_variables_of_the_dashboard_hold_for_every_query(dashboard: Json) -> None:
    for query in queries_of(dashboard):
        for selector in re.findall(r"\{[^}]*\}", query):
            asked = dict(re.findall(r'(\w+)=~"\$(\w+)"', selector))
            chosen = {"purgatory", "timer", "delayedOperation"} & asked.keys()
            assert {"job", "instance", "broker"} <= asked.keys(), query
            assert all(asked[name] == "purgatory" for name in chosen)
            assert chosen or "expires_total" in query or "purgatory_relay" in query, query


def test_the_dashboard_begins_with_the_main_panels(dashboard: Json) -> None:
    first, *panels = dashboard["panels"][:5]
    assert (first["type"], first["title"]) == ("row", "Overview")
    for panel in panels:
        assert panel["gridPos"]["y"] == 1
        assert [target["expr"].partition(",")[0] for target in panel["targets"]] == ["topk(5"]


def test_the_dashboards_queries_are_promql(dashboard: Json, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$(?!__)\w+", ".*", query)}
        for number, query in enumerate(queries_of(dashboard))
    ]
    for rule in rules:
        rule["expr"] = rule["expr"].replace("$__rate_interval", "1m")
    file = tmp_path / "queries.yml"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", file)


def test_promtool_takes_configuration_and_rules() -> None:
    assert "is valid" in promtool("check", "config", MONITORING / "prometheus.yml")
    told = promtool("check", "rules", MONITORING / "alerts.yml")
    assert f"{len(alerts())} rules found" in told


def test_the_alerts_fire_at_their_thresholds() -> None:
    assert "SUCCESS" in promtool("test", "rules", MONITORING / "alerts_test.yml")


def test_promtool_accepts_a_scrape() -> None:
    registry = CollectorRegistry()
    with DelayedOperationPurgatory("Produce", max_pending=1) as purgatory:
        metrics.register(purgatory, registry)
        metrics.register_relay(UnixRelay("relay"), registry)
        scrape = generate_latest(registry).decode()
    assert promtool("check", "metrics", text=scrape) == ""
