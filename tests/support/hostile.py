"""Deltas of an agent that does its worst within the protocol: each is small, or as large as may be.

Only the wire protocol bounds its actions: it has its node's own good token, keeps to the rate at
which it is read, and may use any name. Used by the tests of what one node may cost, and by the load
generator `tests.aggregator.flooding_agent`.
"""

from collections.abc import Callable, Iterator

from aggregator.health.model import Cleared, ClearedBy, Component, Delta, Fault, Lost, Status

#: Kinds of hostility, by name: each makes the delta with this number.
Kind = Callable[[int], Delta]


def failed(check: str, component: str, reason: str = "full", message: str = "") -> Component:
    return Component(check, component, Status.FAILED, reason, message, since=0.0)


def latched(code: str, component: str, number: int) -> Fault:
    return Fault(
        code=code,
        check="xid",
        component=component,
        message="x" * 200,
        boot_id="boot-1",
        source="kmsg",
        source_seq=number,
        first_at=0.0,
        last_at=0.0,
        count=1 + number,
        cleared_by=ClearedBy.REBOOT,
        occurrences=tuple(-float(n) for n in range(8, 0, -1)),
    )


def new_checks(number: int) -> Delta:
    """Failed components of checks that no rule knows, others each time."""
    return Delta(components=tuple(failed(f"c{number}-{n}", "x") for n in range(1_000)))


def shared_targets(number: int) -> Delta:
    """Targets that many nodes might look at."""
    return Delta(components=tuple(failed("reach", f"t{number}-{n}") for n in range(1_000)))


def full_disks(number: int) -> Delta:
    """As much as a node may hold, of a check on which a rule acts; the words differ each time."""
    return Delta(
        components=tuple(
            failed("disk-space", f"/mnt/{n}", message=f"{number} of {n}") for n in range(2_000)
        )
    )


def flapping_disks(number: int) -> Delta:
    """The same disks, well and failed in turn."""
    status = Status.FAILED if number % 2 else Status.OK
    return Delta(
        components=tuple(
            Component("disk-space", f"/mnt/{n}", status, "full", "", 0.0) for n in range(2_000)
        )
    )


def new_faults(number: int) -> Delta:
    """Faults on which rules act, on other components each time."""
    return Delta(faults=tuple(latched("xid:79", f"G{number}-{n}", number) for n in range(500)))


def counted_faults(number: int) -> Delta:
    """One code on very many components, over and over: rules count jobs by these."""
    return Delta(faults=tuple(latched("xid:31", f"G{n}", number) for n in range(1_000)))


def losses(number: int) -> Delta:
    """Evidence that was lost, with other words and sources each time."""
    return Delta(lost=tuple(Lost(f"s{number}-{n}", 1, "l" * 900) for n in range(256)))


def signs(number: int) -> Delta:
    """Positive signs of no fault, and components gone that never were there."""
    return Delta(
        cleared=tuple(Cleared("", f"G{number}-{n}", "gpu-reset") for n in range(256)),
        gone=tuple(("disk-space", f"/gone/{number}-{n}") for n in range(1_000)),
    )


KINDS: dict[str, Kind] = {
    "new_checks": new_checks,
    "shared_targets": shared_targets,
    "full_disks": full_disks,
    "flapping_disks": flapping_disks,
    "new_faults": new_faults,
    "counted_faults": counted_faults,
    "losses": losses,
    "signs": signs,
}


def all_kinds() -> Iterator[Delta]:
    """One of each in turn, without end."""
    number = 0
    while True:
        for kind in KINDS.values():
            yield kind(number)
        number += 1
