"""Annotations of a Node that an edit has made unreadable are told to people, and no others are."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.node_names import OVERRULED
from aggregator.quarantine.decide.node_marks import write_overruled
from aggregator.quarantine.decide.overrides import Override
from aggregator.quarantine.decide.release_checks import RELEASE_HISTORY
from aggregator.quarantine.decide.unreadable_annotations import unreadable_annotations

KEYS = (OVERRULED, RELEASE_HISTORY)


def test_what_sickbay_and_people_write_is_readable() -> None:
    written = {
        OVERRULED: write_overruled(frozenset({Override("xid:79", "GPU-1", "b", "reboot")})),
        RELEASE_HISTORY: json.dumps([["xid:79", "GPU-1", 1.0]]),
        "example.com/other": "{",
    }
    assert unreadable_annotations("n1", written) == ()
    assert unreadable_annotations("n1", {}) == ()
    assert unreadable_annotations("n1", {OVERRULED: write_overruled(frozenset())}) == ()
    assert unreadable_annotations("n1", {OVERRULED: ""}) == ()


@pytest.mark.parametrize(
    ("key", "text", "effect"),
    [
        (OVERRULED, "{", "evidence that a person has overruled counts again"),
        (OVERRULED, '{"evidence": [["xid:79"]]}', "evidence that a person has overruled counts"),
        (RELEASE_HISTORY, "[[]]", "earlier releases of the node count no more"),
    ],
)
def test_each_other_one_names_its_effect_and_the_command(key: str, text: str, effect: str) -> None:
    [told] = unreadable_annotations("n1", {key: text})
    assert told.startswith(f"note {key} can't be read: {effect}")
    assert f"To go on: kubectl annotate node n1 {key}-" in told


@given(st.dictionaries(st.sampled_from(KEYS), st.text() | st.from_regex(r"[\[\]{}\",0-9]{0,20}")))
def test_no_text_raises(annotations: dict[str, str]) -> None:
    assert len(unreadable_annotations("n1", annotations)) <= len(annotations)
