"""The output of commands about nodes, made from the API's answer. Pure."""

from collections.abc import Iterator, Sequence

from aggregator.cli import render
from aggregator.cli.render import TO_DO, UNSEEN
from aggregator.cli.screen import Screen
from aggregator.cli.text_table import (
    Answer,
    Cell,
    age,
    ago,
    clean,
    clock,
    evidence,
    labelled,
    listed,
    pairs,
)
from aggregator.cli.words import phase_of, words_of
from aggregator.cluster.node_names import TEST_CONDITION
from aggregator.cluster.port import STILL_SCHEDULABLE

#: This number of names fits in one line.
_FEW = 5


def nodes(page: Answer, screen: Screen, *, empty: str = "No node is known yet.") -> Iterator[str]:
    """Nodes in lines. ``empty``: the text where there is none."""
    if not page["items"]:
        yield empty
        return
    wide: dict[str, Cell] = {"REQUESTS": lambda one: "; ".join(one["requests"])}
    columns: dict[str, Cell] = {
        "NODE": "node",
        "STATE": "state",
        "AGENT": "agent",
        "SEEN": age("last_seen", screen),
        **(wide if screen.wide else {}),
        "WHY": "why",
    }
    yield listed(page["items"], columns, screen)


def quarantines(answer: Answer, screen: Screen) -> Iterator[str]:
    """The list of quarantined nodes."""
    if answer.get("view_lost"):
        of_it = f"{UNSEEN}, the state shown here may be old"
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
    wide: dict[str, Cell] = {
        "KIND": "kind",
        "CREATED": lambda one: _clock(one["created_at"]),
        "DEADLINE": lambda one: _clock(one["deadline_at"]),
        "INCIDENT": "incident",
    }
    columns: dict[str, Cell] = {
        "NODE": "node",
        "ACTION": "action",
        "PHASE": phase_of,
        "SINCE": lambda one: ago(one["phase_since"] or one["created_at"], screen.now),
        words_of(answer["items"][0]).many.upper(): "pods_remaining",
        "BY": "requester",
        **(wide if screen.wide else {}),
        "REASON": lambda one: "; ".join([one["reason"], *_hindrances(one, screen)]),
    }
    yield listed(answer["items"], columns, screen)


def _hindrances(one: Answer, screen: Screen) -> Iterator[str]:
    """The reasons against its next step, and other oddities."""
    yield from (f"blocked by {item['pod']}" for item in one["blockers"][:1])
    yield from filter(None, (one["last_error"],))
    if one["release_held"]:
        yield f"not released: {one['release_held']}"
    yield from filter(None, (one["override"], one.get("unmarked")))
    if one["uncordoned"].startswith(STILL_SCHEDULABLE):
        yield one["uncordoned"]
    if gone := one.get("node_absent_since"):
        yield f"its Node is gone for {ago(gone, screen.now)}"


def _clock(at: str | None) -> str | None:
    return f"{clock(at)} UTC" if at else None


def _read(one: Answer, screen: Screen) -> str:
    """The age of the Node object as read."""
    at = one["read_at"]
    return f"{ago(at, screen.now)} ago" if at else ""


def node(one: Answer, screen: Screen) -> Iterator[str]:
    """One node's details."""
    last_seen = (
        f" (last seen {ago(one['last_seen'], screen.now)} ago)" if one["agent"] == "silent" else ""
    )
    yield pairs(
        [
            ("node", one["node"]),
            ("state", one["state"]),
            ("why", one["why"]),
            ("agent", one["agent"] + last_seen),
            ("version", one["agent_version"]),
            ("boot", one["boot_id"]),
            ("pool", one["pool"]),
            ("mode", one["mode"]),
            ("conflict", one["conflict"]),
            ("others at work", one["foreign"]),
            ("node read", _read(one, screen)),
            ("last error", one["last_error"]),
            ("requests", "; ".join(one["requests"])),
            ("unreadable", "; ".join(one["unreadable"])),
            ("overruled", ", ".join(f"{o['code']} {o['component']}" for o in one["overruled"])),
        ]
    )
    yield from _quarantine(one["quarantine"], screen)
    if one.get("new_node"):
        yield from new_node(one["node"], one["new_node"])
    if one["hold"]:
        yield f"\nHELD by {clean(one['hold']['limit'])}: {clean(one['hold']['reason'])}"
        yield from labelled(one["hold"], TO_DO, "  ")
    for incident in one["incidents"]:
        yield (
            f"\nINCIDENT ({incident['action']}, {ago(incident['since'], screen.now)} old): "
            + clean(incident["summary"])
        )
        yield f"  evidence: {clean(evidence(incident['evidence']))}"
        yield f"  to do: {clean(incident['advice'])}"
    if one["faults"]:
        columns: dict[str, Cell] = {
            "FAULT": "code",
            "COMPONENT": "component",
            "TIMES": "count",
            "LAST": age("last_at", screen),
            "CLEARED BY": "cleared_by",
            "MESSAGE": lambda fault: _marks(fault) + fault["message"],
        }
        yield "\n" + listed(one["faults"], columns, screen)
    yield from _components(one["components"], screen)
    yield ""
    past = {"items": one["timeline"][:30], "trouble": one["timeline_trouble"]}
    yield from render.history(past, screen)


def _components(components: Sequence[Answer], screen: Screen) -> Iterator[str]:
    """Those that are ok as their number alone: a node of eight GPUs has sixty and more."""
    found = [one for one in components if screen.wide or one["status"] != "ok"]
    if found:
        columns: dict[str, Cell] = {
            "CHECK": "check",
            "COMPONENT": "component",
            "STATUS": "status",
            "SINCE": age("since", screen),
            "MESSAGE": lambda one: one["message"] or one["reason"],
        }
        yield "\n" + listed(found, columns, screen)
    if len(found) < len(components):
        yield f"\ncomponents that are ok: {len(components) - len(found)} (-o wide shows them)"


def new_node(name: str, found: Answer) -> Iterator[str]:
    """The test of a new or an idle node, and what keeps the next one from beginning."""
    test = found["test"]
    if found["tainted"]:
        yield f"\nNEW NODE: {clean(startup_taint(found))}"
    if found.get("reason") == "idle":
        yield "\nIDLE NODE: its last periodic test"
    if found.get("reason") == "by-hand":
        yield "\nTEST BY HAND: of a node in service"
    if test is not None:
        message = f": {test['message']}" if test["message"] else ""
        yield clean(f"  test {test['profile']} {test['state']}{message} ({test['operation']})")
    if found["needs_person"]:
        yield f"  no test begins by itself any more: {clean(found['waits'])}"
        yield f"  to do: repair and reboot it, or: sickbay test {clean(name)}"
    elif found["waits"]:
        yield f"  the test waits: {clean(found['waits'])}"


def startup_taint(found: Answer) -> str:
    """The state of the startup taint."""
    taint = found["taint"]
    if found["passed"]:
        return (
            f"it has passed its test, and its taint {taint} is left to another controller, which "
            f"removes it by the condition {TEST_CONDITION}"
        )
    keeps = f"it keeps its taint {taint} until it has passed its test"
    if found["removes_taint"]:
        return keeps
    return f"{keeps}, and another controller removes it then, by the condition {TEST_CONDITION}"


def repairs(found: Answer, screen: Screen) -> Iterator[str]:
    """A node's ladder, its attempts and what holds the next one."""
    if found["mode"]:
        rungs = [
            rung if rung in found["repairers"] else f"{rung} (no repairer)"
            for rung in found["ladder"]
        ]
        yield f"ladder: {clean(', '.join(rungs) or 'none')}; repair.mode {clean(found['mode'])}"
    if found["attempts"]:
        columns: dict[str, Cell] = {
            "REPAIR": lambda one: " ".join(filter(None, (one["repair"], one.get("profile")))),
            "STATE": "state",
            "BEGAN": age("began_at", screen),
            "ENDED": age("ended_at", screen),
            "BY": lambda one: one["request"] or "ladder",
            "MESSAGE": "message",
        }
        yield listed(found["attempts"], columns, screen)
    if found.get("requested"):
        yield f"requested by hand: {clean(found['requested'])}"
    if found["waits"]:
        yield f"next: {clean(found['waits'])}"


def _marks(fault: Answer) -> str:
    past = "[earlier boot] " if fault["historical"] else ""
    return past + ("[missing, in force] " if fault["missing"] else "")


def _quarantine(one: Answer | None, screen: Screen) -> Iterator[str]:
    if one is None:
        return
    reason = one["reason"]
    yield f"\nQUARANTINE ({one['action']}, {phase_of(one)}): {clean(reason)}"
    words, left = words_of(one), one["pods_remaining"]
    yield f"  requested by {clean(one['requester'] or 'a person, by hand')}, " + (
        f"{words.many} not counted" if left is None else f"{words.count(left)} left"
    )
    yield from labelled(one, {"release_held": "not released", "override": "overridden"}, "  ")
    if one.get("node_absent_since"):
        gone = _clock(one["node_absent_since"])
        yield f"  its Node is gone since {gone}: not counted by any limit"
    yield from labelled(one, {"uncordoned": "", "unmarked": "marks missing", "message": ""}, "  ")
    if one["deadline_at"] and one["phase"] == "Draining":
        yield f"  its drain should end by {_clock(one['deadline_at'])}"
    yield from labelled(one, {"pre_evict": "drain.pre_evict"}, "  ")
    for blocker in one["blockers"]:
        since = f" for {ago(blocker['since'], screen.now)}" if blocker["since"] else ""
        yield f"  blocked{since}: {clean(blocker['pod'])}: {clean(blocker['reason'])}"
    if one.get("repair"):
        text = "\n".join(repairs(one["repair"], screen))
        yield from (f"  {line}" for line in text.split("\n"))
    yield f"  to do: {clean(one['advice'])}"
