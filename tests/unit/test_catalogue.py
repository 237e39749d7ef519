"""The catalogue of codes: which class a code is of, and what in its file is refused."""

from typing import Any

import pytest

from aggregator.health.model import ClearedBy
from aggregator.policy.catalogue import Published, parse_catalogue
from aggregator.policy.nvlink5 import Row, parse_nvlink5
from tests.support.replica import POLICY, fault
from tests.support.yaml_documents import read_yaml

CATALOGUE = POLICY.catalogue


@pytest.mark.parametrize(
    ("code", "its_class"),
    [
        ("xid:79", "fatal-node"),
        ("xid:39", "application"),  # both ends of 39-41
        ("xid:40", "application"),
        ("xid:41", "application"),
        ("xid:42", "unknown"),
        ("xid:79:fatal", "unknown"),
        ("xid:12020", "unknown"),
        ("gpu:1:fatal", "unknown"),
        ("sxid:12028:fatal", "switch-fatal"),
        ("sxid:12028:non-fatal", "switch-non-fatal"),
        ("sxid:12028:unstated", "unknown"),
        ("sxid:12028", "unknown"),
        ("sxid:12020:fatal", "switch-fatal"),
        ("sxid:12020:non-fatal", "switch-fatal"),  # always fatal, whatever its line says
        ("sxid:12020:unstated", "switch-fatal"),
        ("sxid:23001:non-fatal", "switch-fatal"),
        ("sxid:23017:non-fatal", "switch-fatal"),
        ("sxid:23018:non-fatal", "switch-non-fatal"),
        ("", "unknown"),
    ],
)
def test_a_code_is_of_the_class_that_lists_it_or_that_its_own_word_names(
    code: str, its_class: str
) -> None:
    assert CATALOGUE.classify(code) == its_class


def test_a_code_of_no_class_is_ended_by_what_its_agent_says() -> None:
    for ends in ClearedBy:
        assert CATALOGUE.clears(fault("xid:4711", cleared_by=ends), {}) is ends
        assert CATALOGUE.clears(fault("xid:79", cleared_by=ends), {}) is ClearedBy.REBOOT


def test_a_code_is_described_with_its_name_where_it_has_one() -> None:
    assert CATALOGUE.describe("xid:48") == "xid:48 (GPU ECC DBE)"
    assert CATALOGUE.describe("xid:79") == "xid:79 (GPU has fallen off the bus)"
    assert CATALOGUE.describe("sxid:12028:fatal") == "sxid:12028:fatal"


def data(**changes: Any) -> dict[str, Any]:
    text = """
classes:
  one: {means: the first, clears: reboot, codes: [gpu-off-bus], xids: [1, 3-4], sxids: [7]}
  two: {means: the second, clears: expiry}
xids:
  1: A_NAME; a100 h100; RESET_GPU; CONTACT_SUPPORT
  2: ANOTHER; unused; -; -
  3: A_THIRD; -; IGNORE; -
  4: A_FOURTH; a100 unused; IGNORE; CONTACT_SUPPORT
nvlink5: []
nvlink4: []
"""
    return {**read_yaml(text), **changes}


def test_a_catalogue_is_read_whole() -> None:
    found = parse_catalogue(data())
    assert dict(found.codes) == dict.fromkeys(
        ("gpu-off-bus", "xid:1", "xid:3", "xid:4", "sxid:7"), "one"
    )
    assert {name: (one.name, one.means, one.clears) for name, one in found.classes.items()} == {
        "one": ("one", "the first", ClearedBy.REBOOT),
        "two": ("two", "the second", ClearedBy.EXPIRY),
    }
    assert dict(found.published) == {
        "xid:1": Published("A_NAME", ("a100", "h100"), "RESET_GPU", "CONTACT_SUPPORT"),
        "xid:2": Published("ANOTHER", (), "", "", unused=True),
        "xid:3": Published("A_THIRD", (), "IGNORE", ""),
        "xid:4": Published("A_FOURTH", ("a100",), "IGNORE", "CONTACT_SUPPORT", unused=True),
    }


def test_a_code_in_two_classes_is_refused() -> None:
    twice = data(
        classes={
            "one": {"means": "", "clears": "reboot", "xids": ["1-3"]},
            "two": {"means": "", "clears": "expiry", "xids": [3]},
        }
    )
    with pytest.raises(ValueError, match="xid:3 is in two classes: one and two"):
        parse_catalogue(twice)


ANY = "." * 32


def entry(
    status: dict[int | str, str], *, before: str = ANY, after: str = ANY
) -> list[dict[str, Any]]:
    return [{"xid": 144, "unit": "U", "before_r575": before, "from_r575": after, "status": status}]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (entry({}, before="." * 31), "xid 144 U: a mask is not 32 of 0, 1 and ."),
        (entry({}, before="2" * 32), "xid 144 U: a mask is not 32 of 0, 1 and ."),
        (entry({}, after="." * 33), "xid 144 U: a mask is not 32 of 0, 1 and ."),
        (entry({1: "restart; fatal; -"}), "U: no action 'restart'"),
    ],
)
def test_a_table_of_registers_with_a_mistake_is_refused(
    bad: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        parse_nvlink5(bad)


@pytest.mark.parametrize(
    ("driver", "info", "status", "action"),
    [
        ("574.99", "0x00000001", "0x1", "reset"),
        ("575", "0x00000001", "0x1", None),
        ("575", "0x00000002", "0x1", "reset"),
        ("575", "0x00000002", "0x10", "reset"),  # one of several in one text
        ("575", "0x00000002", "0x11", "reset"),
        ("575", "0x00000002", "0x2", "ignore"),
        ("575", "0x00000002", "0x3", None),
        ("575", "0x00000002", None, None),
        ("575", None, "0x1", None),
        ("575", "0x00000002 ", "0x1", None),
        ("", "0x00000001", "0x1", None),  # the layouts do not both have it
        ("", "0x00000003", "0x1", "reset"),
        ("r575", "0x00000003", "0x1", "reset"),
        ("575", "0x00000003", "0x1", "reset"),
        ("", "0x00000003", "0x20", None),  # the layouts disagree
        ("574", "0x00000003", "0x20", "ignore"),
        ("575", "0x00000003", "0x20", None),  # two rows that disagree
    ],
)
def test_a_row_is_found_by_the_layout_of_the_drivers_branch(
    driver: str, info: str | None, status: str | None, action: str | None
) -> None:
    first, second = "." * 31 + "1", "." * 30 + "1."
    mixed = entry(
        {0x1: "reset; fatal; THEN", "0x10 0x11": "reset; fatal; -", 0x2: "ignore; minor; -"},
        before=first,
        after=second,
    )
    mixed += entry({0x20: "ignore; minor; -"}, before=first, after=second)
    mixed += entry({0x20: "reset; fatal; -"}, before="0" * 32, after=second)
    table = parse_nvlink5(mixed)
    details = {"intr_info": info, "error_status": status}
    given = {name: text for name, text in details.items() if text is not None}
    row = table.row("xid:144", given, driver)
    assert (row.action if row is not None else None) == action
    assert table.row("xid:145", given, driver) is None
    if action and status == "0x1":
        assert row == Row("U", "reset", "fatal", "THEN")
