"""The dashboard for Grafana: the file is what the generator makes, and every query asks for metrics
that exist, by labels that they have.
"""

import itertools
import json
import re
from typing import Any

import pytest

from tests.dashboard import sickbay
from tests.dashboard.panels import COLUMNS
from tests.deploy.test_alert_rules import documented, metrics_in, rules

MADE = json.loads(sickbay.FILE.read_text("utf-8"))
PANELS = [panel for panel in MADE["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
#: The values that Grafana sets where a person chooses none.
CHOSEN = {"$cluster": ".*", "$job": ".*", "$__rate_interval": "1m"}
#: Labels that Prometheus itself sets, and those of histograms.
_OTHERS = {"cluster", "instance", "job", "le"}


def test_the_file_is_what_the_generator_makes() -> None:
    assert sickbay.FILE.read_text("utf-8") == sickbay.text(), "run `make chart`"


@pytest.mark.parametrize("query", sorted(set(QUERIES)))
def test_a_query_asks_for_metrics_that_exist(query: str) -> None:
    used = metrics_in(query)
    known = documented()
    assert used
    assert used <= known.keys()
    recorded = {rule["record"] for rule in rules("record")}
    assert set(re.findall(r"sickbay:[a-z_:0-9]+", query)) <= recorded
    labels = set().union(*(known[name] for name in used)) | _OTHERS
    named = re.findall(r"(?:by|on) \(([^)]*)\)", query)
    assert {label.strip() for group in named for label in group.split(",")} <= labels
    assert set(re.findall(r"[{,](\w+)(?:=|!)", query)) <= labels


def chosen(query: str) -> str:
    """The query as Grafana sends it."""
    for name, value in CHOSEN.items():
        query = query.replace(name, value)
    return query


def test_a_person_chooses_cluster_and_job_of_each_series_and_gets_to_the_page() -> None:
    variables = {one["name"]: one for one in MADE["templating"]["list"]}
    assert variables.keys() == {"datasource", "cluster", "job", "page"}
    for query in QUERIES:
        series = re.findall(r"\b(?:sickbay[_:]|process_)[a-z_:0-9]+", query)
        assert query.count('{cluster=~"$cluster",job=~"$job"') == len(series), query
        assert not re.search(r"rate\([^)]*\[[1-5]m\]", query), query
    assert [link["url"] for link in MADE["links"]] == ["${page}"]


def test_a_legend_names_labels_that_its_query_keeps() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert label in target["expr"] or ":" in target["expr"], target


def test_every_panel_explains_itself_and_has_a_place_of_its_own() -> None:
    assert len({panel["id"] for panel in MADE["panels"]}) == len(MADE["panels"])
    for panel in PANELS:
        assert panel["description"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= COLUMNS
    for one, other in itertools.combinations(MADE["panels"], 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not (beside or below)
