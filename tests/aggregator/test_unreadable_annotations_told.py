"""An unreadable annotation of a Node is logged once, and shown, by a whole replica."""

import datetime as dt
import json
import logging

import msgspec
import pytest

from aggregator.cli.cluster_view import node_answer
from aggregator.cli.explain import explanation
from aggregator.cli.render_nodes import node as rendered_node
from aggregator.cli.screen import Screen
from aggregator.cluster.node_names import OVERRULED
from aggregator.web import node_view
from aggregator.web.node_view import ViewMoment
from tests.support.idle_node_tests import HOUR, IdleNodes
from tests.support.virtual_replica import later
from tests.support.virtual_time import in_virtual_time

NOW = dt.datetime(2026, 11, 26, tzinfo=dt.UTC)
COMMAND = f"kubectl annotate node n1 {OVERRULED}-"


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    name = "node.annotation_unreadable"
    return [one for one in caplog.records if getattr(one, "event", "") == name]


@in_virtual_time
async def test_it_is_logged_once_and_explained_with_the_next_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = IdleNodes()
    site.idle = None
    site.world.person_annotates("n1", OVERRULED, "{")
    site.start()
    await later(HOUR)
    [line] = logged(caplog)
    assert line.levelno == logging.WARNING
    assert (line.__dict__["node"], COMMAND in line.__dict__["error"]) == ("n1", True)
    fleet, moment = site.replica.fleet, ViewMoment(0.0, NOW.timestamp())
    view = node_view.node(fleet, fleet.node_summaries["n1"], moment)
    told = json.loads(msgspec.json.encode(view))
    assert COMMAND in explanation(told, NOW).to_do[0]
    assert COMMAND in " ".join("\n".join(rendered_node(told, Screen(NOW, 400))).split())
    # A person removes it.
    site.world.person_annotates("n1", OVERRULED, None)
    await later(HOUR)
    view = node_view.node(fleet, fleet.node_summaries["n1"], moment)
    assert view.unreadable == []
    assert len(logged(caplog)) == 1


def test_it_is_explained_while_no_aggregator_answers() -> None:
    meta = {"name": "n1", "uid": "u", "annotations": {OVERRULED: "{"}}
    told = node_answer("n1", {"metadata": meta}, None, NOW.timestamp())
    [sentence, *_] = explanation(told, NOW).to_do
    assert sentence.startswith(f"Note {OVERRULED} can't be read: evidence")
    assert COMMAND in sentence
