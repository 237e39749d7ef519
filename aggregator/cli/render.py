"""The output of each reading command, made from the API's answer. Pure."""

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aggregator.cli.text_table import ago, clean, clock, evidence, pairs, table
from aggregator.quarantine.decide.node_marks import STILL_SCHEDULABLE

Answer = dict[str, Any]

_FROZEN = "THE REPLICA YOU ASK DOES NOT KNOW THE OTHER REPLICAS, and takes no action"
_UNSEEN = "THE CLUSTER CAN'T BE SEEN"
_IN_COMPANY = "THIS REPLICA WAITS FOR OTHERS"


#: So many names fit in one line.
_FEW = 5


@dataclass(frozen=True, slots=True)
class Screen:
    """The output device, and the time. ``width`` in characters; 0: a pipe, where no line is cut."""

    now: dt.datetime
    width: int = 0


def status(fleet: Answer, screen: Screen) -> Iterator[str]:
    """The fleet at a glance."""
    yield clean(fleet["headline"])
    yield f"mode {fleet['mode']}, {fleet['attached']} agents attached, sickbay {fleet['version']}"
    unseen = f"{_IN_COMPANY}, and does nothing" if fleet.get("in_company") else _UNSEEN
    yield from _said(
        fleet,
        {
            "stop": "STOPPED BY A PERSON",
            "view_lost": unseen,
            "waiting_for_quorum": "WAITING FOR THE AGENTS",
            "cooling": "COOLING DOWN, no new quarantine is admitted",
            "clock_doubt": "ITS CLOCK IS DOUBTED, actions that can't be undone wait",
            "frozen": _FROZEN,
            "differing": "THE REPLICAS DIFFER, no new quarantine is admitted",
            "incomplete": "THE REPLICAS HAVE NOT TOLD EACH OTHER EVERYTHING, little is admitted",
        },
    )
    frozen = fleet.get("frozen")
    for one in fleet.get("replicas", ()):
        if one["trouble"] and one["nodes"]:
            yield f"{clean(one['name'])} {clean(one['trouble'])}: {_only_last_known(one)}"
    yield from _said(
        fleet,
        {
            "history_trouble": "THE PAST IS NOT KEPT, all else goes on",
            "alert_trouble": "ALERTS DO NOT GET OUT, all else goes on",
        },
    )
    for cause in fleet["causes"]:
        yield f"COMMON CAUSE ({cause['scope']}): {clean(cause['reason'])}"
        yield f"  to do: {clean(cause['advice'])}"
    for reason in fleet["not_ready"]:
        if reason != fleet["view_lost"] and (not frozen or frozen not in reason):  # said above
            yield f"NOT READY: {clean(reason)}"
    held = fleet["counts"].get("held", 0)  # the other holds are of drains that have begun
    yield ""
    yield table(["STANDING", "NODES"], fleet["counts"].items())
    yield ""
    yield table(
        ["WHAT", "NOW", "SEE"],
        [
            ("incidents", fleet["incidents"], "sickbay incidents"),
            ("quarantines", fleet["quarantines"], "sickbay quarantines"),
            ("held back", held, "sickbay nodes --standing held"),
            ("drains held", fleet["held"] - held, "sickbay quarantines"),
            ("release held", fleet["release_held"], "sickbay quarantines"),
            ("exempt", fleet["exempt"], "sickbay nodes --exempt"),
            ("silent agents", fleet["silent"], "sickbay nodes --standing silent"),
            ("never heard", fleet["never_heard"], "sickbay nodes --standing unknown"),
        ],
    )
    if fleet["limits"]:
        yield ""
        yield table(
            ["LIMIT", "USED", "OF", ""],
            [
                (
                    one["name"],
                    "" if one["used"] is None else one["used"],
                    one["value"] if one["most"] is None else one["most"],
                    f"{'FULL: ' if one['full'] else ''}{one['text']}",
                )
                for one in fleet["limits"]
            ],
            screen.width,
        )


def _said(fleet: Answer, labels: Mapping[str, str]) -> Iterator[str]:
    """Of the fields that say why something is not as it should be, each one that is set, with its
    label.
    """
    for name, label in labels.items():
        if fleet.get(name):
            yield f"{label}: {clean(fleet[name])}"


def _only_last_known(replica: Answer) -> str:
    since = f" ({clock(replica['last_answer'])} UTC)" if replica["last_answer"] else ""
    return f"its {replica['nodes']} nodes are only last known{since}"


def replicas(answer: Answer, screen: Screen) -> Iterator[str]:
    """The aggregator's replicas."""
    if answer["frozen"]:
        yield f"{_FROZEN}: {clean(answer['frozen'])}"
    if answer["differing"]:
        yield f"THEY DIFFER, no new quarantine is admitted: {clean(answer['differing'])}"
    if not answer["items"]:
        yield "The replica you ask knows of no other."
        return
    yield table(
        ["REPLICA", "ROLE", "NODES", "AGENTS", "VERSION", "POLICY", "ANSWERED", "STATE"],
        [
            (
                one["name"],
                " ".join(word for word in ("leads", "here") if one[word]),
                one["nodes"],
                "" if one["trouble"] else one["attached"],
                one["version"],
                one["policy"][:12],
                _answered(one, screen),
                one["trouble"] or "; ".join(one["not_ready"]) or "answers",
            )
            for one in answer["items"]
        ],
        screen.width,
    )


def _answered(one: Answer, screen: Screen) -> str:
    if not one["trouble"]:
        return "now"
    return ago(one["last_answer"], screen.now) if one["last_answer"] else "never"


def nodes(page: Answer, screen: Screen, *, asked: bool = False) -> Iterator[str]:
    """Nodes in lines. ``asked``: for some of them alone."""
    if not page["items"]:
        yield "No node stands so." if asked else "No node is known yet."
        return
    yield table(
        ["NODE", "STANDING", "AGENT", "HEARD", "WHY"],
        [
            (
                one["node"],
                one["standing"],
                one["agent"],
                ago(one["last_heard"], screen.now),
                one["why"],
            )
            for one in page["items"]
        ],
        screen.width,
    )


def quarantines(answer: Answer, screen: Screen) -> Iterator[str]:
    """The list of quarantined nodes."""
    if answer.get("view_lost"):
        of_it = f"{_UNSEEN}, the state shown here may be old"
        if answer.get("in_company"):
            of_it = f"{_IN_COMPANY}, and knows nothing of the cluster"
        yield f"{of_it}: {clean(answer['view_lost'])}"
    marked = answer.get("marked_only") or []
    if marked:
        few = ", ".join(marked[:_FEW]) + (", ..." if len(marked) > _FEW else "")
        yield (
            f"{len(marked)} marked by sickbay, without a Quarantine that is known: {few}. "
            f"Why: sickbay node {marked[0]}"
        )
    if not answer["items"]:
        if marked:
            return
        # An aggregator that never saw the cluster knows of none, and a person would believe it.
        known = " is known to be" if answer.get("view_lost") else " is"
        yield f"No node{known} in quarantine."
        return
    rows = []
    for one in answer["items"]:
        blocked = "".join(f"; blocked by {item['pod']}" for item in one["blockers"][:1])
        failing = f"; {one['last_error']}" if one["last_error"] else ""
        failing += f"; not released: {one['release_held']}" if one["release_held"] else ""
        failing += f"; {one['override']}" if one["override"] else ""
        failing += f"; {one['unmarked']}" if one.get("unmarked") else ""
        failing += (
            f"; {one['uncordoned']}" if one["uncordoned"].startswith(STILL_SCHEDULABLE) else ""
        )
        gone = one.get("node_absent_since")
        failing += f"; its Node is gone for {ago(gone, screen.now)}" if gone else ""
        pods = "" if one["pods_remaining"] is None else one["pods_remaining"]
        since = ago(one["phase_since"] or one["created_at"], screen.now)
        rows.append(
            (
                one["node"],
                one["action"],
                one["phase"],
                since,
                pods,
                one["requester"],
                f"{one['reason']}{blocked}{failing}",
            )
        )
    yield table(["NODE", "ACTION", "PHASE", "SINCE", "PODS", "BY", "REASON"], rows, screen.width)


def lemons(answer: Answer, screen: Screen) -> Iterator[str]:
    """Nodes that come back again and again."""
    if answer["trouble"]:
        yield f"THEY CAN'T BE LOOKED FOR NOW: {clean(answer['trouble'])}"
    if not answer["items"]:
        yield "No node is a lemon."
        return
    yield table(
        ["NODE", "QUARANTINES", "CODES", "DAYS", "RETURNS", "LAST", "WHICH CODES"],
        [
            (
                one["node"],
                one["quarantines"],
                len(one["codes"]),
                one["days"],
                one["returns"],
                ago(one["last"], screen.now),
                " ".join(one["codes"]),
            )
            for one in answer["items"]
        ],
        screen.width,
    )


def incidents(answer: Answer, screen: Screen) -> Iterator[str]:
    """The open incidents."""
    if not answer["items"]:
        yield "No fault is known."
        return
    yield table(
        ["NODE", "KIND", "CALLS FOR", "SINCE", "STATE", "WHAT"],
        [
            (
                one["node"],
                one["kind"],
                one["action"],
                ago(one["since"], screen.now),
                one["doing"],
                one["summary"],
            )
            for one in answer["items"]
        ],
        screen.width,
    )
    if answer["total"] > len(answer["items"]):
        yield f"and {answer['total'] - len(answer['items'])} more (--limit)"


def history(answer: Answer, _: Screen) -> Iterator[str]:
    """The events, the latest last, as in a log."""
    if answer["trouble"]:
        yield f"Some may be missing: {clean(answer['trouble'])}"
    if not answer["items"]:
        yield "No transition is recorded."
    for one in reversed(answer["items"]):
        yield event(one)


def event(one: Answer) -> str:
    """One thing that happened."""
    return f"{clock(one['at'])}  {clean(one['kind']):<21} {clean(one['summary'])}"


def _read(one: Answer, screen: Screen) -> str:
    """The age of the Node object as read; an older aggregator does not report it."""
    at = one.get("read_at")
    return f"{ago(at, screen.now)} ago" if at else ""


def node(one: Answer, screen: Screen) -> Iterator[str]:
    """One node's details."""
    heard = (
        f" (last heard {ago(one['last_heard'], screen.now)} ago)"
        if one["agent"] == "silent"
        else ""
    )
    yield pairs(
        [
            ("node", one["node"]),
            ("standing", one["standing"]),
            ("why", one["why"]),
            ("agent", one["agent"] + heard),
            ("replica", one.get("replica", "")),
            ("only last known", _known(one, screen)),
            ("version", one["agent_version"]),
            ("boot", one["boot_id"]),
            ("conflict", one["conflict"]),
            ("others at work", one["foreign"]),
            ("node read", _read(one, screen)),
            ("last error", one["last_error"]),
            # An aggregator of the version before calls them "wishes".
            ("asked by people", "; ".join(one.get("requests") or one.get("wishes") or [])),
            ("overruled", ", ".join(f"{o['code']} {o['component']}" for o in one["overruled"])),
        ]
    )
    yield from _quarantine(one["quarantine"], screen)
    if one["hold"]:
        yield f"\nHELD by {clean(one['hold']['limit'])}: {clean(one['hold']['reason'])}"
        yield f"  to do: {clean(one['hold']['advice'])}"
    for incident in one["incidents"]:
        yield (
            f"\nINCIDENT ({incident['action']}, {ago(incident['since'], screen.now)} old): "
            + clean(incident["summary"])
        )
        yield f"  evidence: {clean(evidence(incident['evidence']))}"
        yield f"  to do: {clean(incident['advice'])}"
    if one["faults"]:
        rows = [
            (
                fault["code"],
                fault["component"],
                fault["count"],
                ago(fault["last_at"], screen.now),
                fault["cleared_by"],
                _marks(fault) + fault["message"],
            )
            for fault in one["faults"]
        ]
        yield "\n" + table(
            ["FAULT", "COMPONENT", "TIMES", "LAST", "CLEARED BY", "MESSAGE"], rows, screen.width
        )
    if one["components"]:
        parts = [
            (
                part["check"],
                part["component"],
                part["status"],
                ago(part["since"], screen.now),
                part["message"] or part["reason"],
            )
            for part in one["components"]
        ]
        yield "\n" + table(["CHECK", "COMPONENT", "STATUS", "SINCE", "SAYS"], parts, screen.width)
    yield ""
    told = {"items": one["timeline"][:30], "trouble": one["timeline_trouble"]}
    yield from history(told, screen)


def _known(one: Answer, screen: Screen) -> str:
    at = one.get("last_known")
    return f"{clock(at)} UTC, {ago(at, screen.now)} ago; see: sickbay replicas" if at else ""


def _marks(fault: Answer) -> str:
    past = "[earlier boot] " if fault["historical"] else ""
    return past + ("[missing, in force] " if fault["missing"] else "")


def _quarantine(one: Answer | None, screen: Screen) -> Iterator[str]:
    if one is None:
        return
    yield f"\nQUARANTINE ({one['action']}, {one['phase']}): {clean(one['reason'])}"
    yield f"  asked for by {clean(one['requester'] or 'a person, by hand')}, " + (
        "pods not counted"
        if one["pods_remaining"] is None
        else f"{one['pods_remaining']} pods left"
    )
    if one["release_held"]:
        yield f"  not released: {clean(one['release_held'])}"
    if one["override"]:
        yield f"  overridden: {clean(one['override'])}"
    if one.get("node_absent_since"):
        yield f"  its Node is gone since {one['node_absent_since']}: not counted by any limit"
    if one["uncordoned"]:
        yield f"  {clean(one['uncordoned'])}"
    if one.get("unmarked"):
        yield f"  marks missing: {clean(one['unmarked'])}"
    if one["message"]:
        yield f"  {clean(one['message'])}"
    if one["deadline_at"] and one["phase"] == "Draining":
        yield f"  its drain should end by {clean(one['deadline_at'])}"
    if one["pre_evict"]:
        yield f"  drain.pre_evict: {clean(one['pre_evict'])}"
    for blocker in one["blockers"]:
        since = f" for {ago(blocker['since'], screen.now)}" if blocker["since"] else ""
        yield f"  blocked{since}: {clean(blocker['pod'])}: {clean(blocker['reason'])}"
    yield f"  to do: {clean(one['advice'])}"
