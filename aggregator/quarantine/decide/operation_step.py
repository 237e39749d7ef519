"""The next step of a node's operation, in a quarantine or in none. Pure."""

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggregator.cluster.port import RepairAttempt, RepairState

if TYPE_CHECKING:
    from aggregator.quarantine.decide.node_tests import NodeTest


class Do(enum.Enum):
    """The next step of a node's operation."""

    NOTHING = "nothing"
    ORDER = "order"  # begin an attempt: reserve it, make it durable, send the order
    RESEND = "resend"  # the order may not have been sent
    PROVE = "prove"  # look for the proof of the attempt under way
    END = "end"  # its time is over
    CANCEL = "cancel"
    EXHAUST = "exhaust"  # report that a person has to act


@dataclass(frozen=True, slots=True)
class NextOperation:
    """The next step, of which kind, why, and by which request of a person: the name of that.

    ``profile`` is that of a test. ``test``: of a node in no quarantine, the one that begins,
    without its times. With NOTHING ``because`` is why it does not begin now; empty: it is not due.
    """

    do: Do
    repair: str = ""
    because: str = ""
    request: str = ""
    profile: str = ""
    test: "NodeTest | None" = None


def under_way(
    last: RepairAttempt, now: float, ends: str = "", *, repeatable: bool = True, over: bool = False
) -> NextOperation:
    """The next step of one that may act. ``ends``: why it is to be taken back. ``repeatable``: its
    order is harmless a second time. ``over``: a person has ended it since it began, so it is not
    sent any more. ``now``: seconds by the clock that began it.
    """
    if ends and not over:
        return NextOperation(Do.CANCEL, last.repair, ends)
    if now >= last.deadline_at:
        return NextOperation(Do.END, last.repair, "its time is over")
    if last.state is RepairState.ORDERING and repeatable and not over:
        return NextOperation(Do.RESEND, last.repair)
    return NextOperation(Do.PROVE, last.repair)
