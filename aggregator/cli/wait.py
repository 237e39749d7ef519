"""`sickbay wait NODE --for ...`: return once the node's quarantine is where a script needs it."""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from aggregator.cli.durations import read_duration
from aggregator.cli.errors import CommandFailed
from aggregator.cli.text_table import clean
from aggregator.cli.words import phase_of, words_of

Quarantine = dict[str, Any]

GOALS = ("quarantined", "drained", "released")
_EVERY = 1.0


def duration(text: str) -> float:
    """Seconds of "90s", "10m" or "2h"."""
    seconds = read_duration(text, "smh")
    if not seconds:
        raise argparse.ArgumentTypeError(f'"{text[:100]}": expected a time such as 90s, 10m or 2h')
    return float(seconds)


def reached(goal: str, quarantine: Quarantine | None, *, was_there: bool) -> bool:
    """Whether the node is where it should be. ``was_there``: it had a quarantine before.

    Raises CommandFailed where it never gets there without another order.
    """
    if goal == "released":
        return quarantine is None
    if quarantine is None:
        if was_there:
            raise CommandFailed(f"its quarantine has ended: it does not get {goal}")
        return False
    phase = quarantine["phase"]
    if phase in {"Releasing", "Invalid"}:
        what = quarantine["message"] or quarantine["released_because"]
        raise CommandFailed(f"its quarantine is {phase}: it does not get {goal}: {clean(what)}")
    if goal == "quarantined":
        return phase in {"Cordoned", "Draining", "Drained"}
    if quarantine["action"] != "drain":
        raise CommandFailed("the action of its quarantine is cordon: it does not get drained")
    return bool(phase == "Drained")


def wait_for(
    goal: str,
    read: Callable[[], Quarantine | None],
    *,
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Quarantine | None:
    """The quarantine once the goal is reached. Raises CommandFailed: not within ``timeout``
    (seconds), or never.

    A poll that fails is repeated, unless it is the first: the connection may be lost for a time.
    """
    end, was_there, seen = clock() + timeout, False, False
    last: Quarantine | None = None
    trouble = ""
    while True:
        try:
            last = read()
            seen, trouble = True, ""
        except CommandFailed as error:
            if not seen:
                raise
            if not trouble:
                sys.stderr.write(f"sickbay: {clean(error)}; trying again\n")
            trouble = clean(error)
        if not trouble and reached(goal, last, was_there=was_there):
            return last
        was_there = was_there or last is not None
        if clock() >= end:
            raise CommandFailed(f"not {goal} within {timeout:g} s: {trouble or state(last)}")
        sleep(min(_EVERY, max(0.0, end - clock())))


def state(quarantine: Quarantine | None) -> str:
    """The quarantine in a few words."""
    if quarantine is None:
        return "it is not in quarantine; sickbay explain shows the reason"
    pods = quarantine["pods_remaining"]
    left = f", {words_of(quarantine).count(pods)} left" if pods else ""
    blocked = "".join(
        f", blocked by {one['pod']}: {one['reason']}" for one in quarantine["blockers"][:1]
    )
    error = quarantine.get("last_error", "")
    failed = f", its last step failed and is tried again: {error}" if error else ""
    return clean(f"{phase_of(quarantine)}{left}{blocked}{failed}")
