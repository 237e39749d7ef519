"""The output of commands about the fleet, made from the API's answer. Pure."""

from collections.abc import Iterator

from aggregator.cli.screen import Screen
from aggregator.cli.text_table import (
    Answer,
    Cell,
    age,
    clean,
    clock,
    evidence,
    labelled,
    listed,
    table,
)
from aggregator.runtime.text import counted

_LEASE_LOST = "THE CONTROLLER MAY NOT ACT, and no action is taken"
#: The next step of a person, and where to read more.
TO_DO = {"advice": "to do", "documentation": "more"}
UNSEEN = "THE CLUSTER CAN'T BE SEEN"


def status(fleet: Answer, screen: Screen) -> Iterator[str]:
    """The fleet at a glance."""
    yield clean(fleet["headline"])
    yield (
        f"mode {fleet['mode']}, {counted(fleet['attached'], 'agent')} attached, "
        f"sickbay {fleet['version']}"
    )
    for pool in fleet["pools"]:
        if pool["mode"] != fleet["mode"]:
            yield f"mode {pool['mode']} in pool {pool['name']}, {counted(pool['nodes'], 'node')}"
    yield from labelled(
        fleet,
        {
            "stop": "STOPPED BY A PERSON",
            "view_lost": UNSEEN,
            "waiting_for_quorum": "WAITING FOR THE AGENTS",
            "cooling": "COOLING DOWN, no new quarantine is admitted",
            "clock_doubt": "ITS CLOCK IS DOUBTED, actions that can't be undone wait",
            "lease_lost": _LEASE_LOST,
        },
    )
    yield from labelled(
        fleet,
        {
            "history_trouble": "THE PAST IS NOT KEPT, all else goes on",
            "alert_trouble": "ALERTS DO NOT GET OUT, all else goes on",
            "alerts_given_up": "DELIVERIES OF ALERTS WERE GIVEN UP (sickbay alert list)",
        },
    )
    for cause in fleet["causes"]:
        yield f"COMMON CAUSE ({cause['scope']}): {clean(cause['reason'])}"
        yield from labelled(cause, TO_DO, "  ")
    for reason in fleet["not_ready"]:
        if reason not in (fleet["view_lost"], fleet.get("lease_lost")):  # printed above
            yield f"NOT READY: {clean(reason)}"
    yield ""
    yield table(["STATE", "NODES"], fleet["counts"].items(), colour=screen.colour)
    yield ""
    yield table(
        ["WHAT", "NOW", "SEE"],
        [
            ("incidents", fleet["incidents"], "sickbay incidents"),
            ("quarantines", fleet["quarantines"], "sickbay quarantines"),
            ("held back", fleet["counts"].get("held", 0), "sickbay nodes --state held"),
            ("drains held", fleet.get("drains_held", 0), "sickbay quarantines"),
            ("release held", fleet["release_held"], "sickbay quarantines"),
            *_repairs(fleet),
            *_untested(fleet),
            ("exempt", fleet["exempt"], "sickbay nodes --exempt"),
            ("silent agents", fleet["silent"], "sickbay nodes --state silent"),
            ("never seen", fleet["never_seen"], "sickbay nodes --state unknown"),
        ],
    )
    if fleet["limits"]:
        yield ""
        columns: dict[str, Cell] = {
            "LIMIT": "name",
            "USED": "used",
            "OF": lambda one: one["value"] if one["most"] is None else one["most"],
            "": lambda one: f"{'FULL: ' if one['full'] else ''}{one['text']}",
        }
        yield listed(fleet["limits"], columns, screen)


def _repairs(fleet: Answer) -> Iterator[tuple[str, int, str]]:
    """A row while there are some."""
    running = fleet["repairs"]
    if running:
        yield "repairs under way", len(running), f"sickbay repair {clean(running[0]['node'])}"


def _untested(fleet: Answer) -> Iterator[tuple[str, int, str]]:
    """A row while there are new nodes."""
    if fleet["untested"]:
        yield "new, not tested", fleet["untested"], "sickbay nodes --untested"


def replicas(answer: Answer, screen: Screen) -> Iterator[str]:
    """The aggregator's replicas."""
    if answer["lease_lost"]:
        yield f"{_LEASE_LOST}: {clean(answer['lease_lost'])}"
    if not answer["items"]:
        yield "There is one replica."
        return
    columns: dict[str, Cell] = {
        "REPLICA": "name",
        "ROLE": lambda one: "controller" if one["controller"] else "gateway",
        "VERSION": "version",
    }
    yield listed(answer["items"], columns, screen)


def alerts(answer: Answer, screen: Screen) -> Iterator[str]:
    """The routes of alerts, then the dead letters."""
    if not answer["items"]:
        yield "No alert is sent: the configuration has no route (docs/alerts.md)."
        return
    routes: dict[str, Cell] = {
        "ROUTE": "name",
        "RECEIVER": lambda one: f"{one['kind']} {one['receiver']}".strip(),
        "WAITING": "waiting",
        "DELIVERED": "delivered",
        "GIVEN UP": "given_up",
        "DEAD LETTERS": "dead",
        "STATE": lambda one: one["problem"] or "delivers",
    }
    yield listed(answer["items"], routes, screen)
    if answer["dead_letters"]:
        letters: dict[str, Cell] = {
            "GIVEN UP": age("at", screen),
            "ROUTE": "route",
            "ALERTS": "alerts",
            "BECAUSE": "because",
            "SUMMARY": lambda one: "; ".join(one["summaries"]),
        }
        yield ""
        yield listed(answer["dead_letters"], letters, screen)


def lemons(answer: Answer, screen: Screen) -> Iterator[str]:
    """Nodes that come back again and again."""
    if answer["trouble"]:
        yield f"THE SEARCH FOR LEMONS FAILS NOW: {clean(answer['trouble'])}"
    if not answer["items"]:
        yield "No node is a lemon."
        return
    columns: dict[str, Cell] = {
        "NODE": "node",
        "QUARANTINES": "quarantines",
        "CODES": lambda one: len(one["codes"]),
        "DAYS": "days",
        "RETURNS": "returns",
        "LAST": age("last", screen),
        "WHICH CODES": lambda one: " ".join(one["codes"]),
    }
    yield listed(answer["items"], columns, screen)


def incidents(answer: Answer, screen: Screen) -> Iterator[str]:
    """The open incidents."""
    if not answer["items"]:
        yield "No incident is open."
        return
    wide: dict[str, Cell] = {"ID": "id", "EVIDENCE": lambda one: evidence(one["evidence"])}
    columns: dict[str, Cell] = {
        "NODE": "node",
        "KIND": "kind",
        "CALLS FOR": "action",
        "SINCE": age("since", screen),
        "STATE": "doing",
        **(wide if screen.wide else {}),
        "WHAT": "summary",
    }
    yield listed(answer["items"], columns, screen)
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


def cluster_status(answer: Answer, screen: Screen) -> Iterator[str]:
    """The cluster's own knowledge, while no aggregator answers."""
    yield f"THE AGGREGATOR DOES NOT ANSWER: {clean(answer['trouble'])}"
    if answer["pods"] and all(one["why"] for one in answer["pods"]):
        yield "None is ready: no new quarantine begins, and those in force stay as they are."
    if answer["stop"]:
        yield f"STOPPED BY A PERSON: {clean(answer['stop'])}"
    elif answer["stop"] is None:
        yield "The stop switch can't be read."
    if answer["pods"]:
        yield ""
        columns: dict[str, Cell] = {
            "POD": "name",
            "READY": lambda one: "no" if one["why"] else "yes",
            "PHASE": "phase",
            "RESTARTS": "restarts",
            "WHY": "why",
        }
        yield listed(answer["pods"], columns, screen)
    yield ""
    phases = [(f"quarantines, {name}", count) for name, count in answer["phases"].items()]
    rows = phases or [("quarantines", answer["quarantines"])]
    yield table(["WHAT", "NOW", "SEE"], [(*row, "sickbay quarantines") for row in rows])
