"""What a replica says to the leader, as protobuf and back."""

from collections.abc import Mapping
from functools import lru_cache

from aggregator.confer.checked import (
    MAX_CAUSES,
    MAX_CHECKS,
    MAX_NODES,
    MAX_SEEN,
    MAX_SIGNS,
    MAX_SUSPECTS,
    WireError,
    age,
    bounded,
    component,
    name,
    short,
    status,
    text,
)
from aggregator.quarantine.decide.admission import Proposal
from aggregator.quarantine.decide.doubt import Basis
from aggregator.quarantine.decide.sayings import Ask, Beat, Said, Saying, Seen, Words
from aggregator.quarantine.decide.signs import Sign
from sickbay.v1 import shards_pb2 as pb


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
            bounded("words.nodes", words.nodes, MAX_NODES)
            bounded("words.gone", words.gone, MAX_NODES)
            return Words(
                tuple(_read_saying(one) for one in words.nodes),
                tuple(name("words.gone", one) for one in words.gone),
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
    bounded("signs", word.signs, MAX_SIGNS)
    bounded("sees", word.sees, MAX_SEEN)
    bounded("checks", word.checks, MAX_CHECKS)
    bounded("traits", word.traits, MAX_CHECKS)
    return Saying(
        node=name("node", word.node),
        reported=word.reported,
        silent=word.silent,
        speaking=word.speaking,
        address=short("address", word.address),
        traits=_traits(word.traits),
        checks=_one_for_all(tuple(name("checks", one) for one in word.checks)),
        signs=frozenset(
            Sign(
                name("signs.what", one.what),
                component(one.component),
                age("signs.age_s", one.age_s),
                one.acting,
            )
            for one in word.signs
        ),
        sees=tuple(_read_seen(one) for one in word.sees),
    )


def _read_seen(seen: pb.SeenComponent) -> Seen:
    return name("sees.check", seen.check), component(seen.component), status(seen.status)


def _put_ask(ask: Ask) -> pb.Question:
    proposal = ask.proposal
    different = list(dict.fromkeys(proposal.suspects))  # that say the same count once
    return pb.Question(
        number=ask.number,
        node=proposal.node,
        incident=proposal.incident,
        pool=proposal.pool,
        action=proposal.action,
        suspects=[pb.Suspects(causes=one) for one in different[:MAX_SUSPECTS]],
        unsettled=proposal.unsettled,
        basis=proposal.basis.value,
    )


def _read_ask(question: pb.Question) -> Ask:
    bounded("question.suspects", question.suspects, MAX_SUSPECTS)
    for one in question.suspects:
        bounded("question.suspects.causes", one.causes, MAX_CAUSES)
    try:
        basis = Basis(question.basis)
    except ValueError:
        raise WireError("question.basis: unknown") from None
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
    )
    return Ask(question.number, proposal)


def _traits(traits: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return _same(tuple(sorted((name("traits", k), short("traits", v)) for k, v in traits.items())))


@lru_cache(maxsize=256)
def _same(traits: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """One object for all nodes that say the same."""
    return traits


@lru_cache(maxsize=256)
def _one_for_all(checks: tuple[str, ...]) -> frozenset[str]:
    return frozenset(checks)
