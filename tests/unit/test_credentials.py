"""Credentials: the nodes that they prove, and the refusals that may pass by themselves."""

import pytest

from aggregator.ingest.identity import (
    CallCredentials,
    Caller,
    Identity,
    IdentityError,
    Refusal,
    must_be_claimed,
)

MINE = Identity("n1", "uid-1", "pod-1", 99.0)


def test_credentials_speak_for_the_nodes_that_they_name_and_without_any_for_all() -> None:
    assert CallCredentials(MINE, ("n1", "n2")).claimed("n2") == Identity(
        "n2", "uid-1", "pod-1", 99.0
    )
    assert CallCredentials(MINE).claimed("n3").node == "n3"
    with pytest.raises(IdentityError, match=r"Hello claims node 'n3', and .* of node 'n1'") as said:
        CallCredentials(MINE, ("n1", "n2")).claimed("n3")
    assert said.value.refusal is Refusal.ANOTHER_NODE
    assert must_be_claimed(MINE, "n1") is MINE
    with pytest.raises(IdentityError, match=r"Hello claims node 'n2', and .* of node 'n1'"):
        must_be_claimed(MINE, "n2")


@pytest.mark.parametrize("refusal", list(Refusal))
def test_a_refusal_passes_where_we_lack_keys_and_is_proven_where_the_caller_is_known(
    refusal: Refusal,
) -> None:
    error = IdentityError(refusal, "so it is")
    assert str(error) == "so it is"
    assert error.passing == (refusal is Refusal.KEYS_UNAVAILABLE)
    known = {Refusal.OTHER_ACCOUNT, Refusal.NO_NODE, Refusal.ANOTHER_NODE}
    assert error.proven == (refusal in known)


@pytest.mark.parametrize(
    ("shown", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Bearer", None),
        ("Bearer ", None),
        ("Basic abc", None),
        ("", None),
        (None, None),
    ],
)
def test_a_token_is_shown_as_bearer(shown: str | None, token: str | None) -> None:
    caller = Caller("unix:", {} if shown is None else {"authorization": shown})
    if token is not None:
        assert caller.bearer() == token
        return
    with pytest.raises(IdentityError) as refused:
        caller.bearer()
    assert refused.value.refusal is Refusal.NO_CREDENTIALS
