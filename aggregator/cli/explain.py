"""`sickbay explain NODE`: why the node is in its state, what follows, and what a person can do.

Pure: made from the API's answer about one node, or from the cluster's own objects in its shape.
"""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

from aggregator.cli.attempts import BUSY
from aggregator.cli.render_nodes import startup_taint
from aggregator.cli.screen import Screen
from aggregator.cli.text_table import Answer, ago, clean, clock
from aggregator.cli.words import words_of
from aggregator.cluster.words import KUBERNETES

_MAY_COME_BACK = "the controller that removes it by the condition may set it again"

#: How evidence ends, by its sign.
_ENDS: Mapping[str, str] = {
    "reboot": "a reboot of the node",
    "gpu_reset": "a reset of the GPU, or a reboot",
    "expiry": "its time: it expires by itself",
    "operator": "a person's release, after the repair",
    "": "its check is healthy again",
}
_SILENT = (
    "See whether the agent runs on the node (systemctl status sickbay-agent, of a service), and "
    "check the node itself and the network from it to the aggregator."
)
_STATES: Mapping[str, str] = {
    "ok": "No evidence against the node is in force.",
    "silent": "Its agent is silent. Silence alone never leads to a quarantine.",
    "unknown": "Its health is not known. Unknown alone never leads to a quarantine.",
    "warning": "It has evidence that calls for no quarantine.",
}


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """Sentences. ``why``: the causes; ``follows``: the steps of sickbay; ``to_do``: of people."""

    node: str
    state: str
    why: tuple[str, ...]
    follows: tuple[str, ...]
    to_do: tuple[str, ...]

    def as_json(self) -> Answer:
        return asdict(self)


def explanation(answer: Answer, now: dt.datetime, how: str = "") -> NodeExplanation:
    """Of one node's answer. ``how``: the options of commands for this cluster."""
    return NodeExplanation(
        node=answer["node"],
        state=answer["state"],
        why=_unique(_why(answer, now)),
        follows=_unique(_follows(answer, now)),
        to_do=_unique(_to_do(answer, how)),
    )


def lines(made: Answer, _: Screen) -> Iterator[str]:
    """The explanation as text."""
    yield f"{clean(made['node'])} is {clean(made['state'])}."
    for title, key in (("WHY", "why"), ("WHAT FOLLOWS", "follows"), ("TO DO", "to_do")):
        yield f"\n{title}"
        for sentence in made[key] or ["No step is needed."]:
            yield f"  {clean(sentence)}"


def _unique(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for one in found if one))


def _why(answer: Answer, now: dt.datetime) -> Iterator[str]:
    quarantine = answer["quarantine"]
    if quarantine is not None:
        who = quarantine["requester"] or "a person, by hand"
        since = ago(quarantine["created_at"], now)
        reason = quarantine["reason"]
        yield f"Quarantine ({quarantine['action']}) of {who}, {since} ago: {reason}"
    for incident in answer["incidents"]:
        since = ago(incident["since"], now)
        summary = incident["summary"]
        yield f"Incident, {since} old, calls for {incident['action']}: {summary}"
        yield from map(_evidence, incident["evidence"])
    if quarantine is not None and not answer["incidents"]:
        yield from map(_evidence, quarantine["evidence"])
    new = _new_node(answer)
    if new is not None:
        yield f"A new node: {startup_taint(new)}."
    if not quarantine and not answer["incidents"]:
        yield _STATES.get(answer["state"], "")
        yield answer["why"]
    for one in answer["overruled"]:
        yield f"A person has overruled {one['code']} {one['component']}: it does not count."
    yield from (f"Requested by people: {one}" for one in answer.get("requests") or ())
    if answer["conflict"]:
        yield f"No action while two agents claim the node: {answer['conflict']}"
    if answer["foreign"]:
        yield f"Others at work: {answer['foreign']}"


def _evidence(one: Answer) -> str:
    rule = f" (rule {one['rule']})" if one["rule"] else ""
    state = (
        "over"
        if one["over"]
        else f"in force until {_ENDS.get(one['cleared_by'], one['cleared_by'])}"
    )
    lost = "; the agent no longer reports it" if one["lost"] else ""
    message = f": {one['message']}" if one["message"] else ""
    device = one["device"]
    component = f"{device} ({one['component']})" if device else one["component"]
    return f"- {one['code']} {component}".rstrip() + f"{rule}, {state}{lost}{message}"


def _mode(answer: Answer) -> str:
    """The pool and the mode."""
    mode, pool = answer["mode"], answer["pool"]
    if not mode:
        return ""
    of_pool = f" of pool {pool}" if pool else ""
    return f"Mode {mode}{of_pool} is the most that is done to the node without a person."


def _follows(answer: Answer, now: dt.datetime) -> Iterator[str]:
    quarantine, hold = answer["quarantine"], answer["hold"]
    yield _mode(answer)
    if hold is not None:
        yield f"Held by {hold['limit']} = {hold['value']}: {hold['reason']}"
    if answer["last_error"]:
        yield f"Its last step failed and is tried again: {answer['last_error']}"
    if quarantine is None:
        for incident in answer["incidents"]:
            yield f"{incident['kind']}: {incident['doing']}."
            yield _closing(incident)
        new, by_hand = _new_node(answer), _by_hand(answer)
        if new is not None:
            yield _of_new_node(new)
        elif by_hand:
            yield by_hand
        elif hold is None and not answer["incidents"]:
            yield "No step of sickbay follows."
        return
    yield words_of(quarantine).phases.get(
        quarantine["phase"], f"Its phase is {quarantine['phase']}."
    )
    yield from _drain(quarantine, answer["mode"], now)
    yield from _repair(quarantine["repair"])
    yield from _end(answer, quarantine)


def _new_node(answer: Answer) -> Answer | None:
    """The test of a node that has its startup taint."""
    found: Answer | None = answer["new_node"]
    return found if found is not None and found["tainted"] else None


def _by_hand(answer: Answer) -> str:
    """The test of a node in service that a person requests, or empty text."""
    found = answer["new_node"]
    if found is None or found["tainted"]:
        return ""
    test = found["test"]
    if test is not None and test["state"] in BUSY:
        return f"Test {test['profile']} of it is under way; work that comes ends it."
    if not found["requested"]:
        return ""
    waits = f": it waits, as {found['waits']}" if found["waits"] else ""
    return f"A person has requested a test of it ({found['requested']}){waits}."


def _of_new_node(found: Answer) -> str:
    if found["needs_person"]:
        return f"No test of it begins by itself any more: {found['waits']}"
    test = found["test"]
    if found["passed"]:
        return "Another controller removes its startup taint."
    if test is not None and test["state"] in BUSY:
        return f"Test {test['profile']} of it is under way."
    return f"Its test waits: {found['waits']}" if found["waits"] else "Its test begins next."


def _drain(quarantine: Answer, mode: str, now: dt.datetime) -> Iterator[str]:
    words = words_of(quarantine)
    if quarantine["action"] != "drain":
        yield words.stays
        return
    if mode not in ("", "drain"):
        yield words.mode_keeps.format(mode=mode)
    elif quarantine["phase"] == "Cordoned":
        yield "Its drain begins next."
    if quarantine["pods_remaining"]:
        left = quarantine["pods_remaining"]
        yield f"{words.count(left)} {'is' if left == 1 else 'are'} left."
    for one in quarantine["blockers"]:
        since = f" for {ago(one['since'], now)}" if one["since"] else ""
        yield f"Blocked{since} by {one['pod']}: {one['reason']}"
    if quarantine["phase"] == "Draining" and quarantine["deadline_at"]:
        yield f"The drain should end by {clock(quarantine['deadline_at'])} UTC."


def _repair(found: Answer | None) -> Iterator[str]:
    if found is None:
        return
    if found["ladder"]:
        yield f"Its rules name these repairs, mildest first: {', '.join(found['ladder'])}."
    for one in found["attempts"]:
        message = f": {one['message']}" if one["message"] else ""
        named = " ".join(filter(None, (one["repair"], one["profile"])))
        yield f"- {named} {one['state']}{message}"
    if found["requested"]:
        yield f"A person has requested {found['requested']}."
    if found["waits"]:
        yield f"The next repair waits: {found['waits']}"


def _end(answer: Answer, quarantine: Answer) -> Iterator[str]:
    """The event that ends the quarantine."""
    if quarantine["phase"] == "Releasing":
        yield quarantine["released_because"]
        return
    if quarantine["kind"] == "manual":
        yield "A person made it: it stays until a person ends it."
        return
    if quarantine["release_held"]:
        yield f"Its cause is over, and it is not released: {quarantine['release_held']}"
        return
    # In the object, evidence of a node is over later than in the aggregator's memory.
    found = [one for incident in answer["incidents"] for one in incident["evidence"]]
    signs = {
        _ENDS.get(one["cleared_by"], one["cleared_by"])
        for one in found or quarantine["evidence"]
        if not one["over"]
    }
    if signs:
        yield (
            f"It is released by itself after {' and '.join(sorted(signs))}, once every check has "
            "been healthy for some minutes."
        )
    for incident in answer["incidents"]:
        yield _closing(incident)


def _closing(incident: Answer) -> str:
    at = incident["closes_at"]
    if not at:
        return ""
    return f"Its evidence is over; the incident closes at {clock(at)} UTC if it stays so."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _to_do(answer: Answer, how: str) -> Iterator[str]:
    quarantine, hold = answer["quarantine"], answer["hold"]
    yield from (_sentence(one) for one in answer.get("unreadable") or ())
    if answer["state"] == "silent":
        yield _SILENT
    if answer["mode"] == "observe":  # no step of sickbay follows, so the remedy is first
        yield from (incident["advice"] for incident in answer["incidents"])
    if hold is not None:
        yield hold["advice"]
        if hold.get("documentation"):
            yield f"More about this hold: {hold['documentation']}"
    if quarantine is not None:
        yield quarantine["advice"]
    given = quarantine["advice"] if quarantine is not None else ""
    for incident in answer["incidents"]:
        remedy = incident["advice"].partition(". ")[0]
        if not (remedy and remedy in given):
            yield incident["advice"]
    new, node = _new_node(answer), answer["node"]
    acts = _acts_on(answer, how)
    if new is not None and new["needs_person"]:
        yield f"Repair the node and reboot it, or test it again: sickbay test {node}{acts}"
        again = "" if new["removes_taint"] else f" ({_MAY_COME_BACK})"
        yield f"To take it as it is: kubectl taint nodes {node} {new['taint']}-{again}"
    if quarantine is not None and "sickbay release" not in quarantine["advice"]:
        yield f"To end the quarantine now: sickbay release {node}{acts}"
    yield f"All that is known: sickbay node {node}{how}"


def _acts_on(answer: Answer, how: str) -> str:
    """The options of a command that acts. The file of a local cluster is not known here."""
    quarantine = answer["quarantine"]
    is_local = quarantine is not None and words_of(quarantine).kind != KUBERNETES.kind
    return " --local DATABASE" if is_local else how
