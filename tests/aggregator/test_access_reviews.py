"""The answers to reviews, as API servers with other authenticators give them too."""

import json
from typing import Any, cast

import pytest

from aggregator.cluster.kubernetes.access_reviews import KubeAccessReviews
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.cluster.port import Refused
from aggregator.cluster.users import Access, User


class Answers:
    """A transport that gives one answer, and keeps what it was asked."""

    def __init__(self, status: object) -> None:
        self.status = status
        self.asked: dict[str, Any] = {}

    async def request(
        self, method: str, path: str, lane: Priority, *, body: bytes, **_: object
    ) -> bytes:
        self.asked = {"method": method, "path": path, **json.loads(body)}
        return json.dumps({"status": self.status}).encode()


def reviews(answers: Answers) -> KubeAccessReviews:
    return KubeAccessReviews(cast("Transport", answers))


ALICE = {"username": "alice", "uid": "7", "groups": ["a"], "extra": {"scopes": ["read"]}}


async def test_a_user_is_taken_over_with_all_that_authorizers_read() -> None:
    answers = Answers({"authenticated": True, "user": ALICE})
    found = await reviews(answers).review_token("t", ())
    assert found == User("alice", ("a",), "7", (("scopes", ("read",)),))
    assert answers.asked["spec"] == {"token": "t"}
    answers = Answers({"allowed": True})
    assert await reviews(answers).review_access(found, Access("get", path="/metrics"))
    assert answers.asked["spec"] == {
        "user": "alice",
        "groups": ["a"],
        "uid": "7",
        "extra": {"scopes": ["read"]},
        "nonResourceAttributes": {"verb": "get", "path": "/metrics"},
    }


@pytest.mark.parametrize("named", [None, [], ["other"]])
async def test_an_authenticator_that_does_not_confirm_the_audience_proves_nothing(
    named: list[str] | None,
) -> None:
    answers = Answers({"authenticated": True, "user": ALICE, "audiences": named})
    assert await reviews(answers).review_token("t", ("sickbay-page",)) is None
    answers = Answers({"authenticated": True, "user": ALICE, "audiences": ["x", "sickbay-page"]})
    assert await reviews(answers).review_token("t", ("sickbay-page",)) is not None


@pytest.mark.parametrize(
    "status", [{}, {"authenticated": False, "user": ALICE}, {"authenticated": True, "user": {}}]
)
async def test_an_answer_without_a_user_proves_nothing(status: object) -> None:
    assert await reviews(Answers(status)).review_token("t", ()) is None


@pytest.mark.parametrize("status", [{}, {"allowed": False}, {"allowed": True, "denied": True}])
async def test_a_right_that_is_not_plainly_given_is_none(status: object) -> None:
    assert not await reviews(Answers(status)).review_access(User("a"), Access("list"))


async def test_an_answer_of_another_shape_is_an_error_and_no_right() -> None:
    with pytest.raises(Refused):
        await reviews(Answers("yes")).review_access(User("a"), Access("list"))
