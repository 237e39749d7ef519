"""A failed request to the cluster's API as a repairer's answer."""

from aggregator.cluster.port import ClusterError, GuardRefused, GuardUnreadable, Unreachable
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer

_GRANT = "grant it as in docs/repair.md (section Rights)"
#: The server turned the request away before it did anything.
_TURNED_AWAY = 429
_WHO, _MAY_NOT = 401, 403


def answer_of(error: ClusterError, *, sent: bool) -> RepairAnswer:
    """``sent``: the request was one that acts, so that without an answer its outcome is open. An
    error of its guard is raised.

    A right or a kind that is missing is FAILED, and not NOT_SENT: the order would be repeated until
    its deadline, and a repairer that works is further up the ladder.
    """
    text = str(error)
    if isinstance(error, GuardRefused | GuardUnreadable):
        raise error
    if isinstance(error, Unreachable):
        open_end = sent and error.status != _TURNED_AWAY
        return RepairAnswer(AnswerState.UNSURE if open_end else AnswerState.NOT_SENT, text)
    if error.status == _WHO:  # credentials that are being rotated
        return RepairAnswer(AnswerState.NOT_SENT, text)
    if error.status == _MAY_NOT:
        return RepairAnswer(AnswerState.FAILED, f"{text} ({_GRANT})")
    return RepairAnswer(AnswerState.FAILED, text)


def clean_up_of(error: ClusterError) -> RepairAnswer:
    """NOT_SENT: what is left may be removed later. FAILED: it stays."""
    passing = isinstance(error, Unreachable) or error.status in (_WHO, 409)
    return RepairAnswer(AnswerState.NOT_SENT if passing else AnswerState.FAILED, str(error))
