"""Mounts that must be there, and remote filesystems that answer.

Reasons: ``not-mounted`` (a mount that the configuration expects: failed), and of remote
filesystems ``hung`` (no answer to statvfs; failed after a minute), ``stale`` (the server forgot the
mount: failed), ``io-error`` and ``shut-down`` (the client gave up, or its process died: failed);
``probe-failed`` and ``no-mount-table``: unknown. The component is the mount point.

A remote filesystem that hangs is no evidence about this node while it hangs on others too: the
aggregator counts the observers. An expected mount that an automounter mounts on demand is ok.
"""

from collections.abc import Sequence

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.checks.disk_common import (
    absolute_paths,
    no_mount_table,
    without_space,
)
from nodeagent.model import Observation, Status
from nodeagent.sources.disk_probe import DiskProbe, Result, Space
from nodeagent.sources.host import HostRoots
from nodeagent.sources.mountinfo import Mount, MountTable, parse, under, watched

NAME = "disk-mounts"


def evaluate(mount: Mount, result: Result) -> Observation:
    """The verdict on a remote filesystem's answer. Pure."""
    if isinstance(result, Space):
        return Observation(NAME, mount.name, Status.OK, "", f"{mount.source} answers")
    return without_space(NAME, mount.name, result, f"{mount.source}: ")


class DiskMounts:
    """One outstanding question for each remote filesystem, shared with disk-space."""

    def __init__(
        self,
        machine: HostRoots,
        table: MountTable,
        probe: DiskProbe,
        expected: tuple[str, ...],
        exclude: Sequence[str],
    ) -> None:
        self._machine = machine
        self._table = table
        self._probe = probe
        self._expected = expected
        self._exclude = exclude

    async def run_check(self) -> Report:
        try:
            table = self._table.read(self._expected)
            report = self._missing(table)
        except OSError as error:
            return [no_mount_table(NAME, error)]
        remote = [m for m in watched(table, exclude=self._exclude) if m.remote]
        root = str(self._machine.root).rstrip("/")
        paths = {mount: root + mount.point for mount in remote}
        answers = await self._probe.space(list(paths.values()), apart=True)
        probed = [evaluate(mount, answers[path]) for mount, path in paths.items()]
        reported = {observation.component for observation in probed}
        report = [*probed, *(entry for entry in report if entry.component not in reported)]
        return report or Off("no remote filesystem, none expected")

    def _missing(self, table: Sequence[Mount]) -> list[Observation]:
        """A verdict on each expected mount. Raises OSError."""
        if not self._expected:
            return []
        there = {mount.point for mount in table}
        lacking = [point for point in self._expected if point not in there]
        on_demand = self._on_demand() if lacking else frozenset()
        report = []
        for point in self._expected:
            if point in there:
                report.append(Observation(NAME, point, Status.OK, "", "mounted"))
            elif point in on_demand:
                report.append(Observation(NAME, point, Status.OK, "", "mounted on demand"))
            else:
                message = "expected by the configuration, and not mounted"
                report.append(Observation(NAME, point, Status.FAILED, "not-mounted", message))
        return report

    def _on_demand(self) -> frozenset[str]:
        """The points where an automounter waits, which the table of disks leaves out."""
        raw = (self._machine.proc / "self/mountinfo").read_bytes()
        mounts = under(parse(raw), str(self._machine.root))
        return frozenset(mount.point for mount in mounts if mount.fstype == "autofs")


SPEC = CheckSpec(
    name=NAME,
    sees="an expected mount that is not there; a remote filesystem that hangs or refuses",
    source="/proc/self/mountinfo; statvfs and stat in a child process, shared with disk-space",
    cost="0.2 ms of CPU every 30 s; 12 ms with remote filesystems",
    blind_to="pod volumes; faults of a server that answers; whether the right thing is mounted",
    interval=30.0,
    build=lambda sources, options: DiskMounts(
        sources.machine, sources.mounts, sources.disk, options["expected"], options["exclude"]
    ),
    options=(
        Option(
            "expected",
            Kind.TEXTS,
            (),
            'mount points that every node must have, such as "/scratch"',
            absolute_paths,
        ),
        Option("exclude", Kind.TEXTS, (), "remote mount points to leave out, as shell patterns"),
    ),
)
