"""One attempt of a repair: which one is under way, what proves it, and its words for people."""

from collections.abc import Mapping

from aggregator.cluster.port import RepairAttempt, RepairState
from aggregator.policy.repairs import REBOOT, REPLACE, TEST
from aggregator.quarantine.decide.held import Held

#: Texts of `status.repair` have at most this number of characters.
MOST_TEXT = 500
#: A step about an attempt that did not succeed is tried again after this long (seconds).
POLL_SOON = 3.0
#: The repairs of which the Node is the proof, whatever the repairer reports.
PROVED_BY_NODE = (REBOOT, REPLACE)

_STATE_IN_WORDS: Mapping[RepairState, str] = {
    RepairState.SUCCEEDED: "succeeded",
    RepairState.FAILED: "failed",
    RepairState.UNKNOWN: "has an unknown outcome",
    RepairState.CANCELLED: "was cancelled",
    RepairState.INCONCLUSIVE: "has no verdict about the node",
}


def attempt_name(attempt: RepairAttempt) -> str:
    return f"{attempt.repair} {attempt.profile}".rstrip()


def end_in_words(ended: RepairAttempt) -> str:
    """The attempt's end, for people."""
    if ended.state is RepairState.INCONCLUSIVE and ended.repair != TEST:
        return "was not begun"
    return _STATE_IN_WORDS[ended.state]


def attempt_details(attempt: RepairAttempt) -> dict[str, str]:
    """The details of events about an attempt."""
    details = {"repair": attempt.repair, "operation": attempt.operation}
    return details | ({"profile": attempt.profile} if attempt.profile else {})


def held_text(repair: str, held: Held) -> str:
    return f"{repair} is {held.text}"
