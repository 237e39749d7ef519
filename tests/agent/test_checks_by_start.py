"""Kernel records are given to the checks that want them, and to no check of another start."""

import pytest

from nodeagent.checks.by_start import ChecksByStart
from nodeagent.model import FaultSighting
from nodeagent.sources.kmsg import Record
from nodeagent.terminal.kmsg_file import _checks
from tests.agent.kernel_log import record
from tests.agent.test_forged_lines import LINES

CHECKS = _checks()


class Every:
    """A check without a start of its own, such as one of a site's."""

    first = frozenset({b""})
    after_name: frozenset[bytes] = frozenset()
    of_pci = False

    def read(self, record: Record) -> tuple[FaultSighting, ...]:
        del record
        return ()


def names(checks: ChecksByStart, text: bytes) -> list[str]:
    return [name for name, _ in checks.of(text)]


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_is_given_every_record_that_it_believes(name: str) -> None:
    checks = ChecksByStart(CHECKS)
    believed = [line for line in LINES if CHECKS[name].read(record(line))]
    assert believed
    assert [line for line in believed if name not in names(checks, line)] == []


def test_a_record_of_no_check_s_start_is_given_to_those_without_one() -> None:
    checks = ChecksByStart({**CHECKS, "Every": Every()})
    given = names(checks, b"usb 1-1: new high-speed USB device number 2 using xhci_hcd")
    assert given == ["Every"], "the others cost nothing"
    assert names(checks, b"") == given


def test_checks_are_asked_in_their_order() -> None:
    checks = ChecksByStart({"b": Every(), "xid": CHECKS["xid"], "a": Every()})
    assert names(checks, b"NVRM: Xid") == ["b", "xid", "a"]
    assert names(checks, b"x") == ["b", "a"]
