"""The verdict of a test's Job about its node. Pure.

Only a program's own exit code is a verdict: the Job's record and the one pod's must agree on it.
All other ends (deleted, evicted, out of memory, no image, no room, a deadline, two pods) are no
evidence about the node.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from aggregator.config.field_path import read_condition, read_entries, read_field
from aggregator.config.job import CONTAINER
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer
from aggregator.repairers.job_manifest import FAILED, PASSED
from aggregator.runtime.text import visible

#: The kubelet keeps as much of a termination message (bytes).
_MOST_MESSAGE = 4096
_MOST_TEXT = 300
_BY_EXIT_CODE = "PodFailurePolicy"
#: The container runtime's reasons of a program that ended by itself.
_ENDED_ITSELF = {PASSED: ("Completed", ""), FAILED: ("Error", "")}


def verdict(
    job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], node: str
) -> RepairAnswer | None:
    """None while the test runs."""
    complete, failed = (read_condition(job, kind, "True") for kind in ("Complete", "Failed"))
    if complete is None and failed is None:
        return None
    ended = sum(_count(job, "status", name) for name in ("succeeded", "failed"))
    if not pods:
        return no_verdict(_joined(_words(failed), "its pod is gone"))
    if len(pods) > 1 or ended > 1:
        return no_verdict(f"its Job has had {max(len(pods), ended)} pods; expected one")
    [pod] = pods
    code, message = _exit_of(pod, node)
    if code is None or ended != 1:
        why = message if code is None else "its Job counts no pod that ended"
        return no_verdict(_joined(_words(failed), why))
    if code == PASSED and complete is not None:
        return RepairAnswer(AnswerState.DONE, _with("passed", message))
    by_code = failed is not None and failed.get("reason") == _BY_EXIT_CODE
    if code == FAILED and by_code:
        return RepairAnswer(AnswerState.FAILED, _with("failed", message))
    return no_verdict(_with(f"exit code {code}", message or _words(failed)))


def why_waiting(pods: Sequence[Mapping[str, Any]]) -> str:
    """The reason why the pod does not run, in words; empty: it runs, or there is none yet."""
    for pod in pods:
        scheduled = read_condition(pod, "PodScheduled", "False")
        if scheduled is not None:
            return _words(scheduled)
        waiting = read_field(_container(pod), ("state", "waiting"))
        if isinstance(waiting, Mapping):
            return _words(waiting)
    return ""


def is_over(pod: Mapping[str, Any]) -> bool:
    """Whether none of its programs runs any more."""
    return read_field(pod, ("status", "phase")) in ("Succeeded", "Failed")


def _exit_of(pod: Mapping[str, Any], node: str) -> tuple[int | None, str]:
    """The exit code of a program that ended by itself, with its message; None with the reason."""
    where = read_field(pod, ("spec", "nodeName"))
    if where and where != node:
        return None, f"its pod was on node {visible(str(where), _MOST_TEXT)}"
    if read_field(pod, ("metadata", "deletionTimestamp")):
        return None, "its pod was deleted"
    disrupted = read_condition(pod, "DisruptionTarget", "True")
    if disrupted is not None:
        return None, f"its pod was disrupted: {_words(disrupted)}"
    if read_field(pod, ("status", "reason")):
        return None, _words(pod["status"])
    container = _container(pod)
    if container is None:
        return None, why_waiting([pod]) or "its program did not begin"
    if _count(container, "restartCount"):
        return None, "its program ran more than once"
    ended = read_field(container, ("state", "terminated"))
    if not isinstance(ended, Mapping):
        return None, why_waiting([pod]) or "its program did not end"
    code, reason = ended.get("exitCode"), str(ended.get("reason") or "")
    message = _shown(ended.get("message"))
    if not isinstance(code, int) or isinstance(code, bool):
        return None, "its pod reports no exit code"
    if code in _ENDED_ITSELF and reason not in _ENDED_ITSELF[code]:
        return None, f"exit code {code} ({visible(reason, 60)})"
    return code, message


def _container(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found = read_entries(pod, ("status", "containerStatuses"))
    return next((one for one in found if one.get("name") == CONTAINER), None)


def _count(content: Mapping[str, Any], *path: str) -> int:
    found = read_field(content, path)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def _words(status: Mapping[str, Any] | None) -> str:
    words = [str((status or {}).get(name) or "") for name in ("reason", "message")]
    return visible(": ".join(word for word in words if word), _MOST_TEXT)


def _shown(message: Any) -> str:
    return visible(message[:_MOST_MESSAGE], _MOST_TEXT) if isinstance(message, str) else ""


def _with(text: str, message: str) -> str:
    return f"{text}: {message}" if message else text


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def no_verdict(why: str) -> RepairAnswer:
    return RepairAnswer(AnswerState.INCONCLUSIVE, f"no verdict about the node: {why}")
