"""The API server's refusals, as kube-apiserver 1.36 words them, and the error each becomes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.errors import Failure, parse_failure
from aggregator.cluster.kubernetes.evictions import read_refusal
from aggregator.cluster.port import (
    AdmissionFailed,
    AdmissionRefused,
    ClusterError,
    Conflict,
    Evicted,
    NotFound,
    Refused,
    Unreachable,
)
from tests.support.present import of_type


def status(code: int, reason: str, message: str, causes: Sequence[dict[str, str]]) -> bytes:
    body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    body |= {"message": message, "reason": reason, "code": code}
    if causes:
        body["details"] = {"causes": list(causes)}
    return json.dumps(body).encode()


def failure(
    code: int,
    headers: Mapping[str, str] | None = None,
    *,
    reason: str = "",
    message: str = "no",
    causes: Sequence[dict[str, str]] = (),
) -> Failure:
    return parse_failure("POST /x", code, headers or {}, status(code, reason, message, causes))


UID = {"reason": "FieldValueInvalid", "message": "field is immutable", "field": "metadata.uid"}
BUDGET = {
    "reason": "DisruptionBudget",
    "message": "The disruption budget db needs 3 healthy pods and has 3 currently",
}


@pytest.mark.parametrize(
    ("code", "causes", "error"),
    [
        (400, [], Refused),
        (401, [], Refused),
        (403, [], Refused),
        (404, [], NotFound),
        (405, [], Refused),
        (409, [], Conflict),
        (410, [], Unreachable),
        (422, [UID], Conflict),
        (422, [{"reason": "FieldValueInvalid", "field": "spec.action"}], Refused),
        (422, [], Refused),
        (429, [], Unreachable),
        (500, [], Unreachable),
        (503, [], Unreachable),
        (504, [], Unreachable),
    ],
)
def test_each_refusal_has_its_error_and_keeps_the_servers_words(
    code: int, causes: list[dict[str, str]], error: type[ClusterError]
) -> None:
    raised = failure(code, message="because I say so", causes=causes).error()
    assert type(raised) is error
    assert "POST /x" in str(raised)
    assert "because I say so" in str(raised)
    assert raised.status == code


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, None), ("1", 1.0), ("86400", 60.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 1.0)],
)
def test_retry_after_is_read_and_bounded(header: str | None, seconds: float | None) -> None:
    headers = {} if header is None else {"Retry-After": header}
    assert failure(429, headers).error().retry_after == seconds


def test_a_proxys_page_is_quoted() -> None:
    page = b"<html>\n<h1>502 Bad Gateway</h1>" + b"x" * 5000
    raised = of_type(parse_failure("GET /x", 502, {}, page).error(), Unreachable)
    assert "Bad Gateway" in str(raised)
    assert len(str(raised)) < 500


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"\xff\xfe", b'{"details": {"causes": null}}', b'{"a":' + 9_999 * b"["],
)
def test_no_body_is_too_odd(body: bytes) -> None:
    assert isinstance(parse_failure("GET /x", 500, {}, body).error(), Unreachable)


def test_a_budget_in_the_way_blocks_the_pod_and_is_no_overload() -> None:
    refused = failure(429, reason="TooManyRequests", causes=[BUDGET])
    assert refused.of_a_budget
    result = read_refusal(refused)
    assert result.outcome is Evicted.BLOCKED
    assert "budget db needs 3 healthy" in result.message


def test_an_overloaded_server_is_no_budget() -> None:
    refused = failure(429, {"Retry-After": "1"}, reason="TooManyRequests")
    assert not refused.of_a_budget
    with pytest.raises(Unreachable) as raised:
        read_refusal(refused)
    assert raised.value.retry_after == 1.0


def test_another_500_is_not_taken_for_two_budgets() -> None:
    with pytest.raises(Unreachable):
        read_refusal(failure(500, message="etcdserver: request timed out"))


def test_a_pod_of_an_ending_namespace_is_blocked_and_not_forbidden() -> None:
    ending = {"reason": "NamespaceTerminating", "message": "namespace x is being terminated"}
    assert read_refusal(failure(403, causes=[ending])).outcome is Evicted.BLOCKED
    forbidden = read_refusal(failure(403, message="pods may not be evicted here"))
    assert forbidden.outcome is Evicted.REJECTED
    assert "403" in forbidden.message
    assert "pods may not be evicted here" in forbidden.message


@pytest.mark.parametrize("code", [400, 401, 403, 404, 409, 422, 429])
def test_what_admission_denies_is_a_refusal_whatever_its_code(code: int) -> None:
    denied = failure(code, message='admission webhook "x" denied the request: no')
    assert read_refusal(denied).outcome is Evicted.REJECTED
    assert type(denied.error()) is AdmissionRefused, "it is neither gone nor changed"


def test_a_webhook_that_cannot_be_called_may_pass_and_is_about_the_pod() -> None:
    down = failure(500, message='Internal error occurred: failed calling webhook "x": refused')
    assert read_refusal(down).outcome is Evicted.FAILING
    assert type(down.error()) is AdmissionFailed, "nothing was stored"


@pytest.mark.parametrize("code", [401, 408, 410, 429, 500, 503])
def test_what_is_about_every_request_is_no_pods_state(code: int) -> None:
    with pytest.raises(ClusterError):
        read_refusal(failure(code))


@pytest.mark.parametrize("name", ["", "/", "//"])
def test_no_name_reaches_the_path_of_all_objects(name: str) -> None:
    """The API server takes such a path for the list's: to delete that is to delete all of them."""
    for path in (paths.node, paths.quarantine, paths.pods, paths.record):
        with pytest.raises(Refused, match="is no object's name"):
            path(name)
    with pytest.raises(Refused, match="is no object's name"):
        paths.pod("default", name)
