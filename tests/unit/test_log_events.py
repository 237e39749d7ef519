"""The events of log lines: each stands for one line, and docs/logs.md has each."""

import re

import pytest

from aggregator.events import EventKind
from tests.support.log_events import ROOT, log_events

SECTIONS = {"aggregator": "Of the aggregator", "nodeagent": "Of the agent"}

each_program = pytest.mark.parametrize("program", SECTIONS)


def documented(program: str) -> list[str]:
    page = (ROOT / "docs" / "logs.md").read_text("utf-8")
    section = page.partition(f"## {SECTIONS[program]}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


@pytest.mark.slow
def test_an_event_stands_for_one_line_of_one_program() -> None:
    lines = log_events("aggregator") + log_events("nodeagent")
    assert [event for event, count in lines.items() if count > 1] == []


@each_program
def test_each_event_is_documented_and_no_other_is(program: str) -> None:
    assert sorted(documented(program)) == sorted(log_events(program))


@each_program
def test_an_event_is_no_kind_of_a_transition_and_has_the_form_of_one(program: str) -> None:
    events = log_events(program).keys()
    assert events.isdisjoint(kind.value for kind in EventKind)
    assert [event for event in events if not re.fullmatch(r"[a-z]+\.[a-z_]+", event)] == []
