"""What replicas say survives the wire as it is, and what none of ours says does not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.confer.answers import put_answer, read_answer
from aggregator.confer.checked import WireError
from aggregator.confer.said import put_said, read_said
from aggregator.health.model import Status
from aggregator.policy.network.verdict import Edge, Finding, Verdict
from aggregator.quarantine.decide.admission import Held, Proposal, stopped
from aggregator.quarantine.decide.blame import CommonCause
from aggregator.quarantine.decide.doubt import Basis, Doubt
from aggregator.quarantine.decide.sayings import (
    Answer,
    Ask,
    Beat,
    Decision,
    Findings,
    Outlook,
    Said,
    Saying,
    Words,
    turn_outlook,
    turn_words,
)
from aggregator.quarantine.decide.signs import Sign
from sickbay.v1 import shards_pb2 as pb

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
name = text.filter(bool)
age = st.floats(-10, 1e6)
count = st.integers(0, 10_000)
sayings = st.builds(
    Saying,
    node=name,
    reported=st.booleans(),
    silent=st.booleans(),
    speaking=st.booleans(),
    address=text,
    traits=st.dictionaries(name, text, max_size=3).map(lambda found: tuple(sorted(found.items()))),
    checks=st.frozensets(name, max_size=4),
    signs=st.frozensets(st.builds(Sign, name, text, age, st.booleans()), max_size=3),
    sees=st.lists(st.tuples(name, text, st.sampled_from(Status)), max_size=3).map(tuple),
)
proposals = st.builds(
    Proposal,
    name,
    name,
    text,
    name,
    st.lists(st.frozensets(text, max_size=3), max_size=3, unique=True).map(tuple),
    text,
    st.sampled_from(Basis),
)
said = (
    st.builds(
        Words,
        st.lists(sayings, max_size=3).map(tuple),
        st.lists(name, max_size=3).map(tuple),
        st.booleans(),
    )
    | st.builds(Ask, count, proposals)
    | st.just(Beat())
)
causes = st.builds(
    CommonCause,
    text,
    name,
    text,
    name,
    text,
    text,
    count,
    count,
    st.lists(name, max_size=3).map(tuple),
    age,
    st.none() | age,
)
verdicts = st.builds(
    Verdict, name, text, text, age, count, count, st.lists(name, max_size=2).map(tuple)
)
findings = st.builds(
    Finding,
    st.sampled_from(Status),
    text,
    text,
    age,
    st.lists(st.builds(Edge, text, text), max_size=2).map(tuple),
)
answers = (
    st.builds(
        Outlook,
        st.lists(causes, max_size=2).map(tuple),
        st.lists(verdicts, max_size=2).map(tuple),
        count,
        st.builds(Doubt, text, text, text, text),
    )
    | st.builds(Findings, st.dictionaries(name, findings, max_size=3))
    | st.builds(Decision, count, st.none() | st.builds(Held, name, text, text, text), text)
    | st.just(Beat())
)


@given(said)
def test_what_a_replica_says_arrives_as_it_was_said(one: Said) -> None:
    assert read_said(pb.ShardMessage.FromString(put_said(one).SerializeToString())) == one


@given(answers)
def test_what_the_leader_answers_arrives_as_it_was_said(one: Answer) -> None:
    assert read_answer(pb.LeaderMessage.FromString(put_answer(one).SerializeToString())) == one


def test_that_all_is_stopped_can_be_told_however_long_the_reason_is() -> None:
    """Else a log that was pasted into a stop would end the replicas' streams again and again."""
    held = stopped("a pasted log " * 10_000)
    told = Decision(1, held, "")
    assert read_answer(put_answer(told)) == told
    assert held.reason.endswith("… (130,000 characters)")


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_times_are_ages_on_the_way_whatever_the_two_clocks_show(
    here: float, there: float, since: float
) -> None:
    """Whose clock says what makes no difference: an event is as old there as it is here."""
    words = Words((Saying("n", signs=frozenset({Sign("check:a", "", since, acting=True)})),))
    [arrived] = turn_words(turn_words(words, here), there).sayings
    [sign] = arrived.signs
    assert math.isclose(there - sign.since, here - since, abs_tol=1e-6)
    outlook = Outlook((CommonCause("c", "check", "", "l", "", "", 1, 1, (), since, since),))
    [cause] = turn_outlook(turn_outlook(outlook, here), there).causes
    assert cause.faded is not None
    assert math.isclose(there - cause.faded, here - since, abs_tol=1e-6)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.ShardMessage(), "nothing"),
        (pb.ShardMessage(introduction=pb.Introduction(name="r")), "introduction"),
        (pb.ShardMessage(words=pb.Words(nodes=[pb.NodeWord()])), "node: empty"),
        (pb.ShardMessage(words=pb.Words(gone=[""])), "words.gone: empty"),
        (
            pb.ShardMessage(
                words=pb.Words(
                    nodes=[pb.NodeWord(node="n", signs=[pb.NodeSign(what="a", age_s=math.nan)])]
                )
            ),
            "signs.age_s",
        ),
        (
            pb.ShardMessage(
                words=pb.Words(nodes=[pb.NodeWord(node="n", sees=[pb.SeenComponent(check="a")])])
            ),
            "status",
        ),
        (pb.ShardMessage(words=pb.Words(nodes=[pb.NodeWord(node="n" * 600)])), "node: longer"),
        (
            pb.ShardMessage(words=pb.Words(nodes=[pb.NodeWord(node="n")] * 3_000)),
            "words.nodes: 3000",
        ),
        (
            pb.ShardMessage(
                question=pb.Question(node="n", incident="i", action="drain", basis="hearsay")
            ),
            "basis",
        ),
    ],
)
def test_what_no_replica_of_ours_says_is_refused_by_its_field(
    message: pb.ShardMessage, field: str
) -> None:
    with pytest.raises(WireError, match=field):
        read_said(message)
