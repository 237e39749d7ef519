"""Placeholders in texts of the configuration: a typo is found, and other braces are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.configfile.values import PLACE, wrong_places

NAMES = ("operation", "node", "node_uid", "boot_id", "reason")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{noed}", 'no value is filled in for "{noed}" (did you mean "{node}"?)'),
        ("n={node-uid}", 'no value is filled in for "{node-uid}" (did you mean "{node_uid}"?)'),
        ("{node uid}", 'no value is filled in for "{node uid}" (did you mean "{node_uid}"?)'),
        ("{ node }", 'no value is filled in for "{ node }" (did you mean "{node}"?)'),
        ("{node1}", 'no value is filled in for "{node1}" (did you mean "{node}"?)'),
        ("{Node-UID}", 'no value is filled in for "{Node-UID}" (did you mean "{node_uid}"?)'),
        ("{_node}", 'no value is filled in for "{_node}" (did you mean "{node}"?)'),
        ("{rack-name}", 'no value is filled in for "{rack-name}"'),
        ("{node", '"{node" has no "}" (did you mean "{node}"?)'),
        ("https://x/{node/reboot", '"{node" has no "}" (did you mean "{node}"?)'),
        ("{reason} of {node", '"{node" has no "}" (did you mean "{node}"?)'),
        ("node}", '"node}" has no "{" (did you mean "{node}"?)'),
    ],
)
def test_a_typo_is_named_with_what_was_meant(text: str, told: str) -> None:
    assert list(wrong_places(text, NAMES)) == [told]


@pytest.mark.parametrize(
    "text",
    [
        "{node}",
        "a-{node}-{operation}: {reason}",
        "${node}",
        "${node_name}",
        "%{http_code}",
        "{{node}}",
        "{{.Node.Name}}",
        "{print $1}",
        "{ print }",
        "/x/ { print NR }",
        "{a,b}",
        "x{3}",
        "{}",
        '{"node": "{node}", "why": "{reason}"}',
        "{node: x}",
        '{"node": ["{node}"]}',
        "node",
        "the {node}'s {reason}",
    ],
)
def test_braces_of_another_language_are_left_alone(text: str) -> None:
    assert list(wrong_places(text, NAMES)) == []


@given(st.lists(st.sampled_from([f"{{{name}}}" for name in NAMES] + ["a", " ", "-", "/", "."])))
def test_a_text_of_known_placeholders_is_right(parts: list[str]) -> None:
    assert list(wrong_places("".join(parts), NAMES)) == []


@given(st.text(alphabet="{}$% nodeuid_-1", max_size=30))
def test_what_would_not_be_filled_in_is_told(text: str) -> None:
    unknown = [one for one in PLACE.finditer(text) if one[1] not in NAMES]
    assert not unknown or list(wrong_places(text, NAMES))
