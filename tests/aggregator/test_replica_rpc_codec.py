"""A replica's message survives the wire as it is, and a foreign message does not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.health.model import Status
from aggregator.policy.network.verdict import Edge, Finding, NetworkVerdict
from aggregator.quarantine.decide.admission import Held, Proposal, stopped
from aggregator.quarantine.decide.cause_search import CommonCause
from aggregator.quarantine.decide.replica_messages import (
    AdmissionDecision,
    AdmissionRequest,
    Answer,
    FleetFindings,
    KeepAlive,
    LeaderFindings,
    NodeReport,
    ReportBatch,
    Said,
    rebase_batch_ages,
    rebase_outlook_ages,
)
from aggregator.quarantine.decide.symptoms import Symptom
from aggregator.quarantine.decide.uncertainty import EvidenceBasis, Uncertainty
from aggregator.replicas.rpc.answer_codec import decode_answer, encode_answer
from aggregator.replicas.rpc.report_codec import decode_report, encode_report
from aggregator.replicas.rpc.validation import InvalidReport
from sickbay.v1 import shards_pb2 as pb

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
name = text.filter(bool)
age = st.floats(-10, 1e6)
count = st.integers(0, 10_000)
reports = st.builds(
    NodeReport,
    node=name,
    reported=st.booleans(),
    silent=st.booleans(),
    speaking=st.booleans(),
    address=text,
    traits=st.dictionaries(name, text, max_size=3).map(lambda found: tuple(sorted(found.items()))),
    checks=st.frozensets(name, max_size=4),
    signs=st.frozensets(st.builds(Symptom, name, text, age, st.booleans()), max_size=3),
    sees=st.lists(st.tuples(name, text, st.sampled_from(Status)), max_size=3).map(tuple),
    assigned=st.lists(name, max_size=3).map(tuple),
)
proposals = st.builds(
    Proposal,
    name,
    name,
    text,
    name,
    st.lists(st.frozensets(text, max_size=3), max_size=3, unique=True).map(tuple),
    text,
    st.sampled_from(EvidenceBasis),
    text,
)
said = (
    st.builds(
        ReportBatch,
        st.lists(reports, max_size=3).map(tuple),
        st.lists(name, max_size=3).map(tuple),
        st.booleans(),
    )
    | st.builds(AdmissionRequest, count, proposals)
    | st.just(KeepAlive())
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
    NetworkVerdict, name, text, text, age, count, count, st.lists(name, max_size=2).map(tuple)
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
        FleetFindings,
        st.lists(causes, max_size=2).map(tuple),
        st.lists(verdicts, max_size=2).map(tuple),
        count,
        st.builds(Uncertainty, text, text, text, text),
    )
    | st.builds(LeaderFindings, st.dictionaries(name, findings, max_size=3))
    | st.builds(AdmissionDecision, count, st.none() | st.builds(Held, name, text, text, text), text)
    | st.just(KeepAlive())
)


@given(said)
def test_what_a_replica_says_arrives_as_it_was_said(one: Said) -> None:
    assert decode_report(pb.ShardMessage.FromString(encode_report(one).SerializeToString())) == one


@given(answers)
def test_what_the_leader_answers_arrives_as_it_was_said(one: Answer) -> None:
    assert decode_answer(pb.LeaderMessage.FromString(encode_answer(one).SerializeToString())) == one


def test_that_all_is_stopped_can_be_told_however_long_the_reason_is() -> None:
    """Otherwise a log that was pasted into a stop would end the replicas' streams repeatedly."""
    held = stopped("a pasted log " * 10_000)
    told = AdmissionDecision(1, held, "")
    assert decode_answer(encode_answer(told)) == told
    assert held.reason.endswith("… (130,000 characters)")


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_times_are_ages_on_the_way_whatever_the_two_clocks_show(
    here: float, there: float, since: float
) -> None:
    """The clocks of the two sides make no difference: an event is as old there as it is here."""
    words = ReportBatch(
        (NodeReport("n", signs=frozenset({Symptom("check:a", "", since, acting=True)})),)
    )
    [arrived] = rebase_batch_ages(rebase_batch_ages(words, here), there).reports
    [sign] = arrived.signs
    assert math.isclose(there - sign.since, here - since, abs_tol=1e-6)
    outlook = FleetFindings((CommonCause("c", "check", "", "l", "", "", 1, 1, (), since, since),))
    [cause] = rebase_outlook_ages(rebase_outlook_ages(outlook, here), there).causes
    assert cause.faded is not None
    assert math.isclose(there - cause.faded, here - since, abs_tol=1e-6)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.ShardMessage(), "nothing"),
        (pb.ShardMessage(introduction=pb.Introduction(name="r")), "introduction"),
        (pb.ShardMessage(report_batch=pb.ReportBatch(nodes=[pb.NodeReport()])), "node: empty"),
        (pb.ShardMessage(report_batch=pb.ReportBatch(gone=[""])), "report_batch.gone: empty"),
        (
            pb.ShardMessage(
                report_batch=pb.ReportBatch(
                    nodes=[pb.NodeReport(node="n", signs=[pb.NodeSign(what="a", age_s=math.nan)])]
                )
            ),
            "signs.age_s",
        ),
        (
            pb.ShardMessage(
                report_batch=pb.ReportBatch(
                    nodes=[pb.NodeReport(node="n", sees=[pb.SeenComponent(check="a")])]
                )
            ),
            "status",
        ),
        (
            pb.ShardMessage(report_batch=pb.ReportBatch(nodes=[pb.NodeReport(node="n" * 600)])),
            "node: longer",
        ),
        (
            pb.ShardMessage(report_batch=pb.ReportBatch(nodes=[pb.NodeReport(node="n")] * 3_000)),
            "report_batch.nodes: 3000",
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
    with pytest.raises(InvalidReport, match=field):
        decode_report(message)
