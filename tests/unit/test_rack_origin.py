"""The GPU from which the NVLink errors of one rack came."""

from dataclasses import replace

import pytest

from aggregator.policy.nvlink5 import Row
from aggregator.policy.rack_origin import PRECURSOR, Confidence, FabricSign, find_origin

SIGNAL = Row("NETIR_LINK_EVT/NETIR_LINK_DOWN", "reset", "link fatal", "INVESTIGATE_LINK_SI")
PEER = Row("NETIR_LINK_EVT/NETIR_LINK_DOWN", "reset", "link fatal", "INVESTIGATE_PEER_DEVICE")
ALONE = Row("NETIR/NETIR_INT", "reset", "link fatal", "SYMPATHETIC_REPORT_SOLO")
WARNING = Row("NETIR_BER_EVENT", "ignore", "non-fatal", "INVESTIGATE_LINK_SI_AND_CABLES")


def sign(node: str, code: str, at: float = 0.0, row: Row | None = None) -> FabricSign:
    return FabricSign(node, "GPU-0", code, at, row)


OTHERS = [sign(f"n{number}", "xid:145", 0.2 + number / 100) for number in range(1, 8)]


@pytest.mark.parametrize("row", [None, SIGNAL])
def test_the_only_149_among_145s_is_explicit(row: Row | None) -> None:
    found = find_origin([*OTHERS, sign("n9", "xid:149", 0.9, row)])
    assert (found.node, found.gpu, found.confidence) == ("n9", "GPU-0", Confidence.EXPLICIT)
    assert found.reason == "the only Xid 149; the 7 other nodes have Xid 145"


@pytest.mark.parametrize("row", [PEER, ALONE])
def test_a_149_whose_register_leads_elsewhere_is_likely_at_most(row: Row) -> None:
    found = find_origin([*OTHERS, sign("n9", "xid:149", 0.9, row)])
    assert (found.node, found.confidence) == ("n9", Confidence.LIKELY)
    assert row.then in found.reason


def test_a_149_without_registers_that_the_driver_calls_mild_is_likely_at_most() -> None:
    """Without its registers it may be the warning of a bad link, for which no node is taken."""
    mild = replace(sign("n9", "xid:149"), severity="non-fatal")
    found = find_origin([*OTHERS, mild])
    assert (found.node, found.confidence) == ("n9", Confidence.LIKELY)
    assert find_origin([*OTHERS, replace(mild, severity="fatal")]).confidence is Confidence.EXPLICIT


def test_an_origin_that_reports_late_is_explicit_and_one_that_is_silent_unknown() -> None:
    assert find_origin([*OTHERS, sign("n9", "xid:149", 60.0)]).confidence is Confidence.EXPLICIT
    assert find_origin(OTHERS).confidence is Confidence.UNKNOWN


def test_other_codes_of_the_others_leave_it_likely() -> None:
    found = find_origin([*OTHERS, sign("n2", "xid:74"), sign("n9", "xid:149")])
    assert found.confidence is Confidence.LIKELY


def test_two_nodes_with_a_149_are_none() -> None:
    found = find_origin([*OTHERS, sign("n8", "xid:149", 0.1), sign("n9", "xid:149", 0.2)])
    assert (found.node, found.confidence) == ("", Confidence.UNKNOWN)


def test_a_fatal_144_counts_and_another_does_not() -> None:
    fatal = replace(sign("n9", "xid:144"), severity="fatal")
    assert find_origin([*OTHERS, fatal]).node == "n9"
    assert find_origin([*OTHERS, replace(fatal, severity="non-fatal")]).node == ""


@pytest.mark.parametrize(
    "before", [sign("n3", PRECURSOR, -4e5), sign("n3", "xid:149", -4e5, WARNING)]
)
def test_without_a_149_the_link_with_earlier_errors_is_likely(before: FabricSign) -> None:
    found = find_origin([*OTHERS, before])
    assert (found.node, found.confidence) == ("n3", Confidence.LIKELY)
    elsewhere = replace(before, node="n99")  # it has no error of the event
    assert find_origin([*OTHERS, elsewhere]).node == ""


def test_of_several_149s_the_one_that_is_not_sent_to_the_other_end_is_likely() -> None:
    several = [sign("n1", "xid:149", 0.1, PEER), sign("n2", "xid:149", 0.1, PEER)]
    found = find_origin([*several, sign("n9", "xid:149", 0.9, SIGNAL)])
    assert (found.node, found.confidence) == ("n9", Confidence.LIKELY)
    assert find_origin([*several, sign("n9", "xid:149", 0.9)]).node == ""


def test_the_first_counts_if_it_is_more_than_a_second_early() -> None:
    assert find_origin([*OTHERS, sign("n9", "xid:145", -0.9)]).node == "n9"
    found = find_origin([*OTHERS, sign("n9", "xid:145", -0.7)])
    assert (found.node, found.text.partition(":")[0]) == ("", "origin unknown")
    look = replace(sign("n9", "gpu-fabric:x", -60.0), level=True)
    assert find_origin([*OTHERS, look]).node == ""


def test_no_signs_have_no_origin() -> None:
    assert find_origin([]).confidence is Confidence.UNKNOWN
