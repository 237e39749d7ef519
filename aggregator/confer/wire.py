"""What replicas say, as protobuf and back. What comes in is checked and bounded, never repaired."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from aggregator.health.model import Status
from aggregator.policy.network.verdict import Edge, Finding, Verdict
from aggregator.quarantine.decide.admission import Held, Proposal
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
    Seen,
    Words,
)
from aggregator.quarantine.decide.signs import Sign
from sickbay.v1 import shards_pb2 as pb

#: Of one message and of one node; what we send stays far below.
MAX_NODES = 2_000
MAX_SEEN = 1_000
MAX_SIGNS = 1_000
MAX_CHECKS = 500
MAX_SUSPECTS = 1_000
MAX_CAUSES = 1_000
#: Characters.
MAX_NAME = 512
MAX_COMPONENT = 4_096
MAX_TEXT = 4_000
#: Ten years (seconds).
MAX_AGE = 10 * 365 * 86_400.0

_STATUS = {int(status): status for status in Status}


class WireError(ValueError):
    """A message that no replica of ours sends. The text names the field."""


# -- a replica to the leader ---------------------------------------------------------------------


def put_said(said: Said) -> pb.ShardMessage:
    if isinstance(said, Words):
        nodes = [_put_saying(one) for one in said.sayings]
        words = pb.Words(nodes=nodes, gone=said.gone, complete=said.complete)
        return pb.ShardMessage(words=words)
    if isinstance(said, Ask):
        return pb.ShardMessage(question=_put_ask(said))
    return pb.ShardMessage(beat=pb.Beat())


def read_said(message: pb.ShardMessage) -> Said:
    """Raises `WireError`."""
    match message.WhichOneof("body"):
        case "words":
            words = message.words
            _bounded("words.nodes", words.nodes, MAX_NODES)
            _bounded("words.gone", words.gone, MAX_NODES)
            return Words(
                tuple(_read_saying(one) for one in words.nodes),
                tuple(_name("words.gone", one) for one in words.gone),
                words.complete,
            )
        case "question":
            return _read_ask(message.question)
        case "beat":
            return Beat()
        case other:
            raise WireError(f"{other or 'nothing'}: not in its place")


def _put_saying(saying: Saying) -> pb.NodeWord:
    return pb.NodeWord(
        node=saying.node,
        reported=saying.reported,
        silent=saying.silent,
        speaking=saying.speaking,
        address=saying.address,
        traits=dict(saying.traits),
        checks=saying.checks,
        signs=[
            pb.NodeSign(what=one.what, component=one.component, age_s=one.since, acting=one.acting)
            for one in saying.signs
        ],
        sees=[
            pb.SeenComponent(
                check=check,
                component=component,
                status=int(status),  # type: ignore[arg-type]  # the same numbers, by contract
            )
            for check, component, status in saying.sees
        ],
    )


def _read_saying(word: pb.NodeWord) -> Saying:
    _bounded("signs", word.signs, MAX_SIGNS)
    _bounded("sees", word.sees, MAX_SEEN)
    _bounded("checks", word.checks, MAX_CHECKS)
    _bounded("traits", word.traits, MAX_CHECKS)
    return Saying(
        node=_name("node", word.node),
        reported=word.reported,
        silent=word.silent,
        speaking=word.speaking,
        address=_short("address", word.address),
        traits=_traits(word.traits),
        checks=_one_for_all(tuple(_name("checks", one) for one in word.checks)),
        signs=frozenset(
            Sign(
                _name("signs.what", one.what),
                _component(one.component),
                _age("signs.age_s", one.age_s),
                one.acting,
            )
            for one in word.signs
        ),
        sees=tuple(_read_seen(one) for one in word.sees),
    )


def _read_seen(seen: pb.SeenComponent) -> Seen:
    return _name("sees.check", seen.check), _component(seen.component), _status(seen.status)


def _put_ask(ask: Ask) -> pb.Question:
    proposal = ask.proposal
    return pb.Question(
        number=ask.number,
        node=proposal.node,
        incident=proposal.incident,
        pool=proposal.pool,
        action=proposal.action,
        suspects=[pb.Suspects(causes=one) for one in proposal.suspects],
        unsettled=proposal.unsettled,
        basis=proposal.basis.value,
    )


def _read_ask(question: pb.Question) -> Ask:
    _bounded("question.suspects", question.suspects, MAX_SUSPECTS)
    for one in question.suspects:
        _bounded("question.suspects.causes", one.causes, MAX_CAUSES)
    try:
        basis = Basis(question.basis)
    except ValueError:
        raise WireError("question.basis: unknown") from None
    proposal = Proposal(
        node=_name("question.node", question.node),
        incident=_name("question.incident", question.incident),
        pool=_short("question.pool", question.pool),
        action=_name("question.action", question.action),
        suspects=tuple(
            frozenset(_text("question.suspects.causes", ident) for ident in one.causes)
            for one in question.suspects
        ),
        unsettled=_text("question.unsettled", question.unsettled),
        basis=basis,
    )
    return Ask(question.number, proposal)


# -- the leader to a replica ---------------------------------------------------------------------


def put_answer(answer: Answer) -> pb.LeaderMessage:
    if isinstance(answer, Outlook):
        return pb.LeaderMessage(outlook=_put_outlook(answer))
    if isinstance(answer, Findings):
        found = [_put_finding(node, one) for node, one in answer.findings.items()]
        return pb.LeaderMessage(findings=pb.NetworkFindings(findings=found))
    if isinstance(answer, Decision):
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
    return pb.LeaderMessage(beat=pb.Beat())


def read_answer(message: pb.LeaderMessage) -> Answer:
    """Raises `WireError`."""
    match message.WhichOneof("body"):
        case "outlook":
            return _read_outlook(message.outlook)
        case "findings":
            _bounded("findings", message.findings.findings, MAX_NODES)
            return Findings(
                {_name("node", one.node): _read_finding(one) for one in message.findings.findings}
            )
        case "decision":
            return _read_decision(message.decision)
        case "beat":
            return Beat()
        case other:
            raise WireError(f"{other or 'nothing'}: not in its place")


def _put_outlook(outlook: Outlook) -> pb.Outlook:
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
        differing=outlook.doubt.differing,
        missing=outlook.doubt.missing,
        unjudged=outlook.doubt.network,
    )


def _read_outlook(outlook: pb.Outlook) -> Outlook:
    _bounded("outlook.causes", outlook.causes, MAX_CAUSES)
    _bounded("outlook.network", outlook.network, MAX_CAUSES)
    return Outlook(
        causes=tuple(_read_cause(one) for one in outlook.causes),
        network=tuple(_read_verdict(one) for one in outlook.network),
        reported=outlook.reported,
        doubt=Doubt(
            _text("outlook.differing", outlook.differing),
            _text("outlook.missing", outlook.missing),
            _text("outlook.unjudged", outlook.unjudged),
        ),
    )


def _read_cause(cause: pb.SharedCause) -> CommonCause:
    faded = _age("causes.faded_s", cause.faded_s) if cause.HasField("faded_s") else None
    return CommonCause(
        id=_text("causes.id", cause.id),
        scope=_name("causes.scope", cause.scope),
        what=_text("causes.what", cause.what),
        limit=_name("causes.limit", cause.limit),
        value=_text("causes.value", cause.value),
        reason=_text("causes.reason", cause.reason),
        nodes=cause.nodes,
        total=cause.total,
        sample=_names("causes.sample", cause.sample),
        since=_age("causes.age_s", cause.age_s),
        faded=faded,
    )


def _read_verdict(verdict: pb.NetworkVerdict) -> Verdict:
    return Verdict(
        kind=_name("network.kind", verdict.kind),
        name=_text("network.name", verdict.name),
        message=_text("network.message", verdict.message),
        since=_age("network.age_s", verdict.age_s),
        count=verdict.count,
        total=verdict.total,
        nodes=_names("network.nodes", verdict.nodes),
    )


def _put_finding(node: str, finding: Finding) -> pb.NetworkFinding:
    return pb.NetworkFinding(
        node=node,
        status=int(finding.status),  # type: ignore[arg-type]  # the same numbers, by contract
        reason=finding.reason,
        message=finding.message,
        age_s=finding.since,
        edges=[pb.NetworkEdge(observer=one.observer, target=one.target) for one in finding.edges],
    )


def _read_finding(finding: pb.NetworkFinding) -> Finding:
    _bounded("findings.edges", finding.edges, MAX_CHECKS)
    return Finding(
        status=_status(finding.status),
        reason=_short("findings.reason", finding.reason),
        message=_text("findings.message", finding.message),
        since=_age("findings.age_s", finding.age_s),
        edges=tuple(
            Edge(_short("edges.observer", one.observer), _short("edges.target", one.target))
            for one in finding.edges
        ),
    )


def _read_decision(decision: pb.Decision) -> Decision:
    held = None
    if decision.limit:
        held = Held(
            _name("decision.limit", decision.limit),
            _text("decision.value", decision.value),
            _text("decision.reason", decision.reason),
            _text("decision.cause", decision.cause),
        )
    return Decision(decision.number, held, _text("decision.failed", decision.failed))


# -- checking ------------------------------------------------------------------------------------


def _bounded(field: str, items: Sequence[object] | Mapping[str, str], most: int) -> None:
    if len(items) > most:
        raise WireError(f"{field}: {len(items)} of them, more than {most}")


def _name(field: str, text: str) -> str:
    if not text:
        raise WireError(f"{field}: empty")
    return sys.intern(_short(field, text))  # many nodes say the same


def _short(field: str, text: str) -> str:
    if len(text) > MAX_NAME:
        raise WireError(f"{field}: longer than {MAX_NAME} characters")
    return text


def _names(field: str, texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(_name(field, one) for one in texts)


def _component(text: str) -> str:
    if len(text) > MAX_COMPONENT:
        raise WireError(f"component: longer than {MAX_COMPONENT} characters")
    return sys.intern(text)


def _text(field: str, text: str) -> str:
    if len(text) > MAX_COMPONENT + MAX_TEXT:
        raise WireError(f"{field}: too long")
    return text


def _age(field: str, age: float) -> float:
    if not math.isfinite(age) or abs(age) > MAX_AGE:
        raise WireError(f"{field}: no age")
    return age


def _status(number: int) -> Status:
    found = _STATUS.get(number)
    if found is None:
        raise WireError(f"status: {number} is none")
    return found


def _traits(traits: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return _same(
        tuple(sorted((_name("traits", k), _short("traits", v)) for k, v in traits.items()))
    )


@lru_cache(maxsize=256)
def _same(traits: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """One object for all nodes that say the same."""
    return traits


@lru_cache(maxsize=256)
def _one_for_all(checks: tuple[str, ...]) -> frozenset[str]:
    return frozenset(checks)
