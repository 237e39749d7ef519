"""The leader's answers to a replica, as protobuf and back."""

from aggregator.policy.network.verdict import Edge, Finding, NetworkVerdict
from aggregator.quarantine.decide.admission import Held
from aggregator.quarantine.decide.cause_search import CommonCause
from aggregator.quarantine.decide.replica_messages import (
    AdmissionDecision,
    Answer,
    FleetFindings,
    KeepAlive,
    LeaderFindings,
)
from aggregator.quarantine.decide.uncertainty import Uncertainty
from aggregator.replicas.rpc.validation import (
    MAX_CAUSES,
    MAX_CHECKS,
    MAX_NODES,
    InvalidReport,
    age,
    bounded,
    name,
    names,
    short,
    status,
    text,
)
from sickbay.v1 import shards_pb2 as pb


def encode_answer(answer: Answer) -> pb.LeaderMessage:
    if isinstance(answer, FleetFindings):
        return pb.LeaderMessage(outlook=_encode_outlook(answer))
    if isinstance(answer, LeaderFindings):
        found = [_encode_finding(node, one) for node, one in answer.findings.items()]
        return pb.LeaderMessage(findings=pb.NetworkFindings(findings=found))
    if isinstance(answer, AdmissionDecision):
        held = answer.held or Held("", "", "")
        decision = pb.Decision(
            number=answer.number,
            limit=held.limit,
            value=held.value,
            reason=held.reason,
            cause=held.cause,
            failed=answer.failed,
        )
        return pb.LeaderMessage(decision=decision)
    return pb.LeaderMessage(keep_alive=pb.KeepAlive())


def decode_answer(message: pb.LeaderMessage) -> Answer:
    """Raises `InvalidReport`."""
    match message.WhichOneof("body"):
        case "outlook":
            return _decode_outlook(message.outlook)
        case "findings":
            bounded("findings", message.findings.findings, MAX_NODES)
            return LeaderFindings(
                {name("node", one.node): _decode_finding(one) for one in message.findings.findings}
            )
        case "decision":
            return _decode_decision(message.decision)
        case "keep_alive":
            return KeepAlive()
        case other:
            raise InvalidReport(f"{other or 'nothing'}: not in its place")


def _encode_outlook(outlook: FleetFindings) -> pb.Outlook:
    return pb.Outlook(
        causes=[
            pb.SharedCause(
                id=one.id,
                scope=one.scope,
                what=one.what,
                limit=one.limit,
                value=one.value,
                reason=one.reason,
                nodes=one.nodes,
                total=one.total,
                sample=one.sample,
                age_s=one.since,
                faded_s=one.faded,
            )
            for one in outlook.causes
        ],
        network=[
            pb.NetworkVerdict(
                kind=one.kind,
                name=one.name,
                message=one.message,
                age_s=one.since,
                count=one.count,
                total=one.total,
                nodes=one.nodes,
            )
            for one in outlook.network
        ],
        reported=outlook.reported,
        differing=outlook.uncertainty.differing,
        missing=outlook.uncertainty.missing,
        unjudged=outlook.uncertainty.network,
        unsure=outlook.uncertainty.unsure,
    )


def _decode_outlook(outlook: pb.Outlook) -> FleetFindings:
    bounded("outlook.causes", outlook.causes, MAX_CAUSES)
    bounded("outlook.network", outlook.network, MAX_CAUSES)
    return FleetFindings(
        causes=tuple(_decode_cause(one) for one in outlook.causes),
        network=tuple(_decode_verdict(one) for one in outlook.network),
        reported=outlook.reported,
        uncertainty=Uncertainty(
            text("outlook.unsure", outlook.unsure),
            text("outlook.differing", outlook.differing),
            text("outlook.missing", outlook.missing),
            text("outlook.unjudged", outlook.unjudged),
        ),
    )


def _decode_cause(cause: pb.SharedCause) -> CommonCause:
    faded = age("causes.faded_s", cause.faded_s) if cause.HasField("faded_s") else None
    return CommonCause(
        id=text("causes.id", cause.id),
        scope=name("causes.scope", cause.scope),
        what=text("causes.what", cause.what),
        limit=name("causes.limit", cause.limit),
        value=text("causes.value", cause.value),
        reason=text("causes.reason", cause.reason),
        nodes=cause.nodes,
        total=cause.total,
        sample=names("causes.sample", cause.sample),
        since=age("causes.age_s", cause.age_s),
        faded=faded,
    )


def _decode_verdict(verdict: pb.NetworkVerdict) -> NetworkVerdict:
    return NetworkVerdict(
        kind=name("network.kind", verdict.kind),
        name=text("network.name", verdict.name),
        message=text("network.message", verdict.message),
        since=age("network.age_s", verdict.age_s),
        count=verdict.count,
        total=verdict.total,
        nodes=names("network.nodes", verdict.nodes),
    )


def _encode_finding(node: str, finding: Finding) -> pb.NetworkFinding:
    return pb.NetworkFinding(
        node=node,
        status=int(finding.status),  # type: ignore[arg-type]  # the same numbers, by contract
        reason=finding.reason,
        message=finding.message,
        age_s=finding.since,
        edges=[pb.NetworkEdge(observer=one.observer, target=one.target) for one in finding.edges],
    )


def _decode_finding(finding: pb.NetworkFinding) -> Finding:
    bounded("findings.edges", finding.edges, MAX_CHECKS)
    return Finding(
        status=status(finding.status),
        reason=short("findings.reason", finding.reason),
        message=text("findings.message", finding.message),
        since=age("findings.age_s", finding.age_s),
        edges=tuple(
            Edge(short("edges.observer", one.observer), short("edges.target", one.target))
            for one in finding.edges
        ),
    )


def _decode_decision(decision: pb.Decision) -> AdmissionDecision:
    held = None
    if decision.limit:
        held = Held(
            name("decision.limit", decision.limit),
            text("decision.value", decision.value),
            text("decision.reason", decision.reason),
            text("decision.cause", decision.cause),
        )
    return AdmissionDecision(decision.number, held, text("decision.failed", decision.failed))
