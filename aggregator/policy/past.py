"""What the snapshot's rings say of the past: how long, how often, over how many jobs. Pure.

Everything that is judged over time comes from here, so that an aggregator without memory judges as
one that has been there all day. The rings are bounded (docs/contract.md): what they no longer hold
counts for less, never for more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aggregator.health.model import Component, Fault, Status

#: The longest that a rule may look back (seconds): the rings hold no more.
LONGEST = 86_400.0
#: The fewest flaps that a rule may ask for.
LEAST_FLAPS = 2
#: The most flaps that a rule may ask for: each takes up to three of the ring's 64 transitions.
MOST_FLAPS = 20
#: The most jobs that a rule may ask for: each takes up to two of the ring's 32 occurrences.
MOST_JOBS = 15
#: The agent merges the occurrences of half a minute; jobs must lie further apart than that.
LEAST_APART = 60.0


@dataclass(frozen=True, slots=True)
class Flapping:
    """``since``: when the last flap that was one too many came. ``until``: when they are too old.

    Monotonic seconds.
    """

    since: float
    until: float


def failing(component: Component) -> tuple[float, float]:
    """Since when a failed component has not been seen well, and when its time began to count.

    A look that told nothing (unknown) between two failures neither ends the time nor counts to it:
    the second is the first moved on by what was unknown.
    """
    began, counted = component.since, component.since
    end = component.since
    for at, status in reversed(_told(component)[:-1]):
        if status is Status.FAILED:
            began, counted = at, counted - (end - at)
        elif status is not Status.UNKNOWN:
            break
        end = at
    return began, counted


def flapping(component: Component, flaps: int, within: float) -> Flapping | None:
    """The latest time of flapping: ``flaps`` changes from well to failed ``within`` seconds.

    Past and present: the caller compares ``until`` with its clock. None where there never were so
    many.
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
    """How often the ring saw the component change from well to failed."""
    return len(_failures(component))


def well_since(component: Component) -> float:
    """Since when a component that does not fail has been seen well.

    A failure that came and went between two messages is in the ring.
    """
    at = component.since
    for changed, status in reversed(_told(component)):
        if status is Status.FAILED:
            break
        if status is not Status.UNKNOWN:
            at = changed
    return at


def seen_well(component: Component) -> bool:
    """Whether it was well when it was last seen: what tells nothing now may have told before."""
    for _, status in reversed(_told(component)):
        if status is not Status.UNKNOWN:
            return status is not Status.FAILED
    return False


def _failures(component: Component) -> Sequence[float]:
    """When it changed from well to failed. Unknown is neither; what came first had no before."""
    starts, well = [], False
    for at, status in _told(component):
        if status is Status.FAILED:
            if well:
                starts.append(at)
            well = False
        elif status is not Status.UNKNOWN:
            well = True
    return starts


def _told(component: Component) -> Sequence[tuple[float, Status]]:
    """The transitions, with the present status as the last of them."""
    recent = component.recent
    if recent and recent[-1][1] is component.status:
        return recent
    return (*recent, (component.since, component.status))


def jobs(
    fault: Fault, others: Iterable[Fault], *, least: int, apart: float, within: float
) -> float | None:
    """When the fault had come in ``least`` jobs ``within`` seconds (monotonic); None: it has not.

    The ring knows no process, so what lies less than ``apart`` seconds after the last occurrence is
    taken for the same job. ``others`` are the same code on the node's other components: what came
    to several of them at about the same time is their common job's doing and does not count.
    """
    elsewhere = sorted(at for other in others for at in _occurrences(other))
    alone = [
        first
        for first, last in _runs(_occurrences(fault), apart)
        if not any(first - apart < at < last + apart for at in elsewhere)
    ]
    for first, latest in zip(alone, alone[least - 1 :], strict=False):
        if latest - first < within:
            return latest
    return None


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
