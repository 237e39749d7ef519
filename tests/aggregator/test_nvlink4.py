"""Xid 74: what the bits of its registers mean, and what follows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.health.model import ClearedBy
from aggregator.health.node import NodeHealth
from aggregator.policy.explain import Question, explain
from aggregator.policy.nvlink4 import parse_nvlink4
from aggregator.quarantine.decide.symptoms import is_ignored
from nodeagent.evidence.latch import Latch
from nodeagent.model import ClearedBy as NodeClearedBy
from nodeagent.model import FaultSighting
from tests.support.replica import POLICY, fault, hello


def registers(**set_bits: int) -> str:
    """The seven registers; ``r1=16`` sets bit 16 of the first."""
    found = [0] * 7
    for name, bit in set_bits.items():
        found[int(name[1]) - 1] |= 1 << bit
    return " ".join(f"{one:#x}" for one in found)


@pytest.mark.parametrize(
    ("told", "its_class", "action"),
    [
        (registers(r1=0), "nvlink-ignore", "observe"),
        (registers(r1=30, r5=20), "nvlink-ignore", "observe"),
        (registers(r1=16), "nvlink-cable", "cordon"),  # as in the line that NVIDIA's page has
        (registers(r1=22, r5=29), "nvlink-cable", "cordon"),
        (registers(r1=4), "nvlink", "cordon"),
        (registers(r1=0, r3=2), "nvlink", "cordon"),
        (registers(r1=0, r2=3), "nvlink", "cordon"),  # a bit without a meaning
        (registers(), "nvlink", "cordon"),
        ("", "nvlink", "cordon"),
        ("0x1 or so", "nvlink", "cordon"),
        ("0x1 " * 13, "nvlink", "cordon"),
    ],
)
def test_the_bits_decide_the_class(told: str, its_class: str, action: str) -> None:
    link = fault("xid:74", details={"registers": told}, cleared_by=ClearedBy.GPU_RESET)
    assert POLICY.catalogue.class_of(link, {}) == its_class
    assert is_ignored(link, NodeHealth(hello("n1")), POLICY) == (its_class == "nvlink-ignore")
    answer = explain(POLICY, Question("xid:74", details={"registers": told}))
    assert answer.rule is not None
    assert answer.rule.action == action


def test_only_xid_74_has_these_registers() -> None:
    other = fault("xid:79", details={"registers": registers(r1=0)})
    assert POLICY.catalogue.class_of(other, {}) == "fatal-node"


def test_explain_shows_what_the_bits_mean() -> None:
    answer = explain(POLICY, Question("xid:74", details={"registers": registers(r1=21, r5=26)}))
    assert "register 1: marginal signal" in answer.row
    assert "register 5: many corrected ECC errors" in answer.row


@given(st.lists(st.text("0123456789abcdefx ", max_size=12), max_size=9))
def test_no_text_of_registers_raises(words: list[str]) -> None:
    POLICY.catalogue.nvlink4.class_of("xid:74", {"registers": " ".join(words)})


def test_a_line_to_be_ignored_hides_none_before_or_after_it() -> None:
    for order in ((registers(r1=16), registers(r1=0)), (registers(r1=0), registers(r1=16))):
        latch = Latch(boot_id="boot-1", epoch="e")
        for number, told in enumerate(order):
            sighting = FaultSighting(
                code="xid:74",
                check="xid",
                component="GPU-1",
                message="",
                source="kmsg",
                source_seq=number,
                at=float(number),
                cleared_by=NodeClearedBy.GPU_RESET,
                historical=False,
                details={"link": str(number), "registers": told},
            )
            latch.apply([sighting], float(number))
        [entry] = latch.faults.values()
        assert entry.details["registers"].split()[0] == "0x10001"
        assert POLICY.catalogue.nvlink4.class_of("xid:74", entry.details) == "nvlink-cable"


def test_an_action_that_the_table_may_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="no action 'reset'"):
        parse_nvlink4([{"register": 1, "bits": [1], "action": "reset", "means": "x"}])
