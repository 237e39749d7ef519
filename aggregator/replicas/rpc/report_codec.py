"""A replica's reports to the leader, as protobuf and back."""

from collections.abc import Mapping
from functools import lru_cache

from aggregator.quarantine.decide.admission import Proposal
from aggregator.quarantine.decide.replica_messages import (
    AdmissionRequest,
    KeepAlive,
    NodeReport,
    ReportBatch,
    Said,
    Seen,
)
from aggregator.quarantine.decide.symptoms import Symptom
from aggregator.quarantine.decide.uncertainty import EvidenceBasis
from aggregator.replicas.rpc.validation import (
    MAX_ASSIGNED,
    MAX_CAUSES,
    MAX_CHECKS,
    MAX_NODES,
    MAX_SEEN,
    MAX_SIGNS,
    MAX_SUSPECTS,
    InvalidReport,
    age,
    bounded,
    component,
    name,
    names,
    short,
    status,
    text,
)
from sickbay.v1 import shards_pb2 as pb


def encode_report(said: Said) -> pb.ShardMessage:
    if isinstance(said, ReportBatch):
        nodes = [_encode_node(one) for one in said.reports]
        batch = pb.ReportBatch(nodes=nodes, gone=said.gone, complete=said.complete)
        return pb.ShardMessage(report_batch=batch)
    if isinstance(said, AdmissionRequest):
        return pb.ShardMessage(question=_encode_question(said))
    return pb.ShardMessage(keep_alive=pb.KeepAlive())


def decode_report(message: pb.ShardMessage) -> Said:
    """Raises `InvalidReport`."""
    match message.WhichOneof("body"):
        case "report_batch":
            batch = message.report_batch
            bounded("report_batch.nodes", batch.nodes, MAX_NODES)
            bounded("report_batch.gone", batch.gone, MAX_NODES)
            return ReportBatch(
                tuple(_decode_node(one) for one in batch.nodes),
                tuple(name("report_batch.gone", one) for one in batch.gone),
                batch.complete,
            )
        case "question":
            return _decode_question(message.question)
        case "keep_alive":
            return KeepAlive()
        case other:
            raise InvalidReport(f"{other or 'nothing'}: not in its place")


def _encode_node(report: NodeReport) -> pb.NodeReport:
    return pb.NodeReport(
        node=report.node,
        reported=report.reported,
        silent=report.silent,
        speaking=report.speaking,
        address=report.address,
        traits=dict(report.traits),
        checks=report.checks,
        signs=[
            pb.NodeSign(what=one.what, component=one.component, age_s=one.since, acting=one.acting)
            for one in report.signs
        ],
        sees=[
            pb.SeenComponent(
                check=check,
                component=component,
                status=int(status),  # type: ignore[arg-type]  # the same numbers, by contract
            )
            for check, component, status in report.sees
        ],
        assigned=report.assigned,
    )


def _decode_node(report: pb.NodeReport) -> NodeReport:
    bounded("signs", report.signs, MAX_SIGNS)
    bounded("sees", report.sees, MAX_SEEN)
    bounded("assigned", report.assigned, MAX_ASSIGNED)
    bounded("checks", report.checks, MAX_CHECKS)
    bounded("traits", report.traits, MAX_CHECKS)
    return NodeReport(
        node=name("node", report.node),
        reported=report.reported,
        silent=report.silent,
        speaking=report.speaking,
        address=short("address", report.address),
        traits=_traits(report.traits),
        checks=_one_for_all(tuple(name("checks", one) for one in report.checks)),
        signs=frozenset(
            Symptom(
                name("signs.what", one.what),
                component(one.component),
                age("signs.age_s", one.age_s),
                one.acting,
            )
            for one in report.signs
        ),
        sees=tuple(_decode_seen(one) for one in report.sees),
        assigned=names("assigned", report.assigned),
    )


def _decode_seen(seen: pb.SeenComponent) -> Seen:
    return name("sees.check", seen.check), component(seen.component), status(seen.status)


def _encode_question(ask: AdmissionRequest) -> pb.Question:
    proposal = ask.proposal
    different = list(dict.fromkeys(proposal.suspects))  # each only once
    return pb.Question(
        number=ask.number,
        node=proposal.node,
        incident=proposal.incident,
        pool=proposal.pool,
        action=proposal.action,
        suspects=[pb.Suspects(causes=one) for one in different[:MAX_SUSPECTS]],
        unsettled=proposal.unsettled,
        basis=proposal.basis.value,
        policy_pool=proposal.policy_pool,
    )


def _decode_question(question: pb.Question) -> AdmissionRequest:
    bounded("question.suspects", question.suspects, MAX_SUSPECTS)
    for one in question.suspects:
        bounded("question.suspects.causes", one.causes, MAX_CAUSES)
    try:
        basis = EvidenceBasis(question.basis)
    except ValueError:
        raise InvalidReport("question.basis: unknown") from None
    proposal = Proposal(
        node=name("question.node", question.node),
        incident=name("question.incident", question.incident),
        pool=short("question.pool", question.pool),
        action=name("question.action", question.action),
        suspects=tuple(
            frozenset(text("question.suspects.causes", ident) for ident in one.causes)
            for one in question.suspects
        ),
        unsettled=text("question.unsettled", question.unsettled),
        basis=basis,
        policy_pool=short("question.policy_pool", question.policy_pool),
    )
    return AdmissionRequest(question.number, proposal)


def _traits(traits: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return _same(tuple(sorted((name("traits", k), short("traits", v)) for k, v in traits.items())))


@lru_cache(maxsize=4096)  # as many as there are racks, at least
def _same(traits: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """One object for all nodes with the same values."""
    return traits


@lru_cache(maxsize=256)
def _one_for_all(checks: tuple[str, ...]) -> frozenset[str]:
    return frozenset(checks)
