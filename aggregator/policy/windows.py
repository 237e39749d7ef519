"""The past by the snapshot's rings: how long, how often, over how many jobs. Pure.

Every evaluation over time uses this module, so that an aggregator without memory decides as one
that has been there all day. The rings are bounded (docs/contract.md): entries that they no longer
hold make a count lower, never higher.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

from aggregator.health.model import Component, Fault, Status

#: The longest that a rule may look back (seconds): the rings hold no more.
LONGEST = 86_400.0
#: The fewest flaps that a rule may require.
LEAST_FLAPS = 2
#: The most flaps that a rule may require: each takes up to three of the ring's 64 transitions.
MOST_FLAPS = 20
#: The most jobs or occurrences that a rule may require: each takes up to two of the ring's 32
#: entries.
MOST_JOBS = 15
#: The agent merges the occurrences of half a minute; jobs must lie further apart than that.
LEAST_APART = 60.0
#: Lines of one code on one component that come closer together (seconds) are one occurrence.
ONE_OCCURRENCE = 60.0
#: The longest time (seconds) for which a rule may require lines to continue: the ring holds as much
#: of any.
LONGEST_LASTING = 480.0
#: Faults of one component that come so close together (seconds) are of one event. The checks that
#: read the driver's verdict run every minute.
TOGETHER = 90.0


@dataclass(frozen=True, slots=True)
class Flapping:
    """``since``: when the last flap that was one too many came. ``until``: when they are too old.

    Monotonic seconds.
    """

    since: float
    until: float


#: The statuses that count for a rule about failures.
FAILURES = frozenset({Status.FAILED})


def failing(component: Component, bad: Collection[Status] = FAILURES) -> tuple[float, float]:
    """Since when a component has not been seen healthy, and when its time began to count.

    Its status is one of ``bad``. A result of unknown between two such neither ends the time nor
    counts to it: the second start is the first, moved on by the unknown time.
    """
    began, counted = component.since, component.since
    end = component.since
    for at, status in reversed(_transitions(component)[:-1]):
        if status in bad:
            began, counted = at, counted - (end - at)
        elif status is not Status.UNKNOWN:
            break
        end = at
    return began, counted


def flapping(component: Component, flaps: int, within: float) -> Flapping | None:
    """The latest time of flapping: ``flaps`` changes from healthy to failed ``within`` seconds.

    Past and present: the caller compares ``until`` with its clock. Returns None where there never
    were that many.
    """
    starts = _failures(component)
    found: Flapping | None = None
    for first, latest in zip(starts, starts[flaps - 1 :], strict=False):
        if latest - first >= within:
            continue
        since = found.since if found is not None and latest <= found.until else latest
        found = Flapping(since, first + within)
    return found


def failures(component: Component) -> int:
    """How often the ring saw the component change from healthy to failed."""
    return len(_failures(component))


def recurrences(
    component: Component, bad: Collection[Status], *, least: float, now: float, within: float
) -> Sequence[float]:
    """The ends of its failures of the last ``within`` seconds that lasted ``least`` or longer; one
    that lasts on ends now.
    """
    ends: list[float] = []
    began: float | None = None
    for at, status in _transitions(component):
        if status in bad:
            began = at if began is None else began
        elif status is not Status.UNKNOWN and began is not None:
            if at - began >= least:
                ends.append(at)
            began = None
    if began is not None and now - began >= least:
        ends.append(now)
    return [at for at in ends if at > now - within]


def well_since(component: Component, bad: Collection[Status] = FAILURES) -> float:
    """Since when a component whose status is none of ``bad`` has been seen healthy.

    A failure that came and went between two messages is in the ring.
    """
    at = component.since
    for changed, status in reversed(_transitions(component)):
        if status in bad:
            break
        if status is not Status.UNKNOWN:
            at = changed
    return at


def seen_well(component: Component, bad: Collection[Status] = FAILURES) -> bool:
    """Whether its last known status was none of ``bad``; an unknown status is skipped."""
    for _, status in reversed(_transitions(component)):
        if status is not Status.UNKNOWN:
            return status not in bad
    return False


def _failures(component: Component) -> Sequence[float]:
    """The times of its changes from healthy to failed. Unknown is neither, and the first entry is
    no change.
    """
    starts, well = [], False
    for at, status in _transitions(component):
        if status is Status.FAILED:
            if well:
                starts.append(at)
            well = False
        elif status is not Status.UNKNOWN:
            well = True
    return starts


def _transitions(component: Component) -> Sequence[tuple[float, Status]]:
    """The transitions, with the present status as the last of them."""
    recent = component.recent
    if recent and recent[-1][1] is component.status:
        return recent
    return (*recent, (component.since, component.status))


#: Occurrences of one code on all components of a node: (time, component), sorted.
Timeline = Sequence[tuple[float, str]]


def timeline(faults: Iterable[Fault]) -> Timeline:
    """When faults of one code came, and on which component."""
    return sorted((at, fault.component) for fault in faults for at in _occurrences(fault))


def jobs(
    fault: Fault, everywhere: Timeline, *, least: int, apart: float, within: float
) -> float | None:
    """When the fault had come in ``least`` jobs ``within`` seconds (monotonic), or None if it has
    not.

    The ring knows no process, so an occurrence less than ``apart`` seconds after the last is taken
    for the same job. ``everywhere`` is the same code on all components of the node: occurrences on
    several of them at about the same time belong to their common job and do not count.
    """
    alone = [
        first
        for first, last in _runs(_occurrences(fault), apart)
        if not _is_elsewhere(everywhere, fault.component, first - apart, last + apart)
    ]
    for first, latest in zip(alone, alone[least - 1 :], strict=False):
        if latest - first < within:
            return latest
    return None


def repeated(fault: Fault, *, least: int, within: float) -> float | None:
    """When the fault had occurred ``least`` times ``within`` seconds (monotonic), or None.

    An occurrence is all its lines without a pause of `ONE_OCCURRENCE`: one timeout may be logged
    for several channels, and one storm is many lines.
    """
    starts = [first for first, _ in _runs(_occurrences(fault), ONE_OCCURRENCE)]
    for first, latest in zip(starts, starts[least - 1 :], strict=False):
        if latest - first < within:
            return latest
    return None


def lasting(fault: Fault, *, least: float) -> float | None:
    """When the fault had been seen for this long (monotonic) without a pause, or None.

    A pause is `ONE_OCCURRENCE` without a line.
    """
    for first, last in _runs(_occurrences(fault), ONE_OCCURRENCE):
        if last - first >= least:
            return first + least
    return None


def latest_occurrence(fault: Fault) -> tuple[float, float]:
    """From when to when the fault was seen last (monotonic): its lines that are one occurrence."""
    return _runs(_occurrences(fault), ONE_OCCURRENCE)[-1]


def was_seen(fault: Fault, after: float, before: float) -> bool:
    """Whether the fault was seen between these times, both included."""
    return any(after <= at <= before for at in (*_occurrences(fault), fault.last_at))


def may_have_been_seen(fault: Fault, after: float, before: float) -> bool:
    """The same, with the occurrences that the ring no longer holds: each may have come at any time
    between the first and the oldest that is left.
    """
    forgotten = fault.first_at <= before and after < _occurrences(fault)[0]
    return forgotten or was_seen(fault, after, before)


def _is_elsewhere(everywhere: Timeline, component: str, after: float, before: float) -> bool:
    """Whether another component had it between these times.

    A fault's own occurrences are few, so this takes a few steps, for any number on others.
    """
    begin = bisect_right(everywhere, after, key=itemgetter(0))
    for at, which in islice(everywhere, begin, None):
        if at >= before:
            return False
        if which != component:
            return True
    return False


def _occurrences(fault: Fault) -> Sequence[float]:
    return fault.occurrences or tuple(sorted({fault.first_at, fault.last_at}))


def _runs(times: Iterable[float], apart: float) -> list[tuple[float, float]]:
    """First and last of each run of times without a gap of ``apart``."""
    runs: list[tuple[float, float]] = []
    for at in sorted(times):
        if runs and at - runs[-1][1] < apart:
            runs[-1] = (runs[-1][0], at)
        else:
            runs.append((at, at))
    return runs
