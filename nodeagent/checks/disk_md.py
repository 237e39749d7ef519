"""Software RAID (md): arrays that lost members, or all that they can do without.

Reasons: ``broken`` (more members are lost than the level does without: failed), ``inactive`` (it
was not started, for want of members as a rule: failed), ``degraded`` (a member is lost; it works,
and the next loss is one too many: degraded, also while it recovers), ``read-only`` (a person
stopped writes to it: degraded), ``no-sysfs`` (unknown). A resync of a whole array and a scrub are
ok. The component is the array ("md0"). An array that was never assembled has no name to report.
"""

from nodeagent.checks.base import CheckSpec, Off, Report
from nodeagent.model import Observation, Status
from nodeagent.sources.host import HostRoots
from nodeagent.sources.mdraid import Array, arrays

NAME = "disk-md"


def evaluate(array: Array) -> Observation:
    """Worst first. Pure."""
    status, reason, words = _verdict(array)
    what = f"{array.level or 'array'} of {array.members}: {words}"
    if array.faulty:
        what += f"; faulty: {', '.join(array.faulty)}"
    if array.action not in ("idle", "frozen"):
        what += f"; {array.action}" + ("" if array.done is None else f" {array.done:.0f} %")
    return Observation(NAME, array.name, status, reason, what)


def _verdict(array: Array) -> tuple[Status, str, str]:
    if array.state == "inactive":
        return Status.FAILED, "inactive", "not started"
    if array.broken:
        return Status.FAILED, "broken", _lost(array.missing or len(array.faulty))
    if array.missing:
        return Status.DEGRADED, "degraded", f"{array.missing} missing or not in sync"
    if array.state == "readonly":
        return Status.DEGRADED, "read-only", "set read-only"
    return Status.OK, "", array.state


def _lost(members: int) -> str:
    """The kernel counts no missing members of levels without redundancy (raid0, linear)."""
    if not members:
        return "a member is lost, and this level works without none"
    return "1 member is lost" if members == 1 else f"{members} members are lost"


class DiskMd:
    def __init__(self, machine: HostRoots) -> None:
        self._machine = machine

    async def run_check(self) -> Report:
        try:
            report = [evaluate(array) for array in arrays(self._machine)]
        except OSError as error:
            return [Observation(NAME, "", Status.UNKNOWN, "no-sysfs", str(error))]
        return report or Off("no md array")


SPEC = CheckSpec(
    name=NAME,
    sees="a software RAID array that lost members, is broken or was not started",
    source="/sys/block/md*/md",
    cost="0.2 ms of CPU every 60 s, and 0.1 ms for each array",
    blind_to="hardware RAID, LVM and ZFS; arrays that were never assembled; how good the data is "
    "(a scrub's mismatches)",
    deadline=5.0,
    build=lambda sources, _: DiskMd(sources.machine),
)
