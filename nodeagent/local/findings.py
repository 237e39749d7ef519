"""The findings about this node now, for the command line: the running agent's, or of one look.

The JSON of ``sickbay-agent check -o json`` is ``Findings.as_json``; docs/agent.md describes it.
Keys are only added. Ages are seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from nodeagent.dataclass import dataclass
from nodeagent.model import CheckInfo, ClearedBy, Status

if TYPE_CHECKING:  # a client command of the agent needs no latch
    from nodeagent.evidence.latch import Latch

#: From best to worst. Unknown is no sickness, so it ranks below a component that is degraded.
SEVERITY: Mapping[Status, int] = {
    Status.OK: 0,
    Status.UNKNOWN: 1,
    Status.DEGRADED: 2,
    Status.FAILED: 3,
}


@dataclass(frozen=True, slots=True)
class Result:
    """One component by one check. ``age_seconds`` None: seen just now, and not since when."""

    check: str
    component: str
    status: Status
    reason: str = ""
    message: str = ""
    age_seconds: float | None = None


#: Faults that last until a reset, a boot or a person's word, and of which none is due: the shipped
#: policy observes them. A Slurm node that was drained for one would lose work that still runs.
OBSERVED = frozenset(
    {"kernel-oops:bug", "kernel-oops:oops", "kernel-oops:panic", "disk-io:suspended"}
    | {"gpu-off-bus", "ecc-uncorrectable"}  # gpu-inventory and the Xid show what came of it
    | {f"xid:{code}" for code in (61, 63, 65, 73, 81, 87, 90, 91, 94, 138, 171, 172)}
    | {f"xid:{code}" for code in (*range(111, 119), *range(122, 126))}
)
#: The same for one occurrence.
DISPUTED = "xid:109"
#: Checks whose failures the shipped policy observes, each with the reasons on which it acts or that
#: come from the site's own options alone. A server that fails would drain each Slurm node, and one
#: that is worn still works.
_OBSERVED_CHECKS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        (
            *("clock", "container-runtime", "disk-ext4", "disk-md", "dns", "gpu-ecc", "gpu-fabric"),
            *("gpu-nvlink", "gpu-pages", "kubelet", "net-tables", "peers", "pod-network"),
            *("processes", "reach"),
        ),
        frozenset(),
    ),
    "disk-mounts": frozenset({"not-mounted"}),
    "disk-nvme": frozenset({"dead", "read-only"}),
    "disk-write": frozenset({"corrupt", "io-error", "read-only"}),
    "infiniband": frozenset({"link-down", "missing", "never-up", "slow"}),
    "nic-health": frozenset({"slow"}),
}


@dataclass(frozen=True, slots=True)
class Latched:
    """A fault that happened and has not ended yet."""

    code: str
    check: str
    component: str
    message: str
    count: int
    first_age_seconds: float
    last_age_seconds: float
    cleared_by: ClearedBy
    historical: bool = False
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        """The fault's status for ``check``'s exit code alone; policy is the aggregator's.

        A fault that ends by time alone (an application's fault) or that requires no action (a
        contained error) is degraded. One that an earlier agent may have dealt with is no fault of
        today.
        """
        if self.historical:
            return Status.OK
        mild = self.cleared_by is ClearedBy.EXPIRY or self.code in OBSERVED
        mild |= self.code == DISPUTED and self.count < 2
        return Status.DEGRADED if mild else Status.FAILED


@dataclass(frozen=True, slots=True)
class Findings:
    """``source`` is "agent" (its latch: faults count) or "probe" (one look, here and now)."""

    node: str
    source: str
    results: Sequence[Result]
    faults: Sequence[Latched] = ()
    checks: Sequence[CheckInfo] = ()
    notes: Sequence[str] = ()

    @property
    def worst(self) -> Status:
        """The worst of results and faults; ok when there are none."""
        return max((item.status for item in self.ranked()), key=rank, default=Status.OK)

    def of_this_node(self) -> "Findings":
        """The same with failed as degraded where the shipped policy only observes it: a server or a
        path may be the cause, which the aggregator alone can see, or work goes on.
        """
        return replace(self, results=[_of_this_node(each) for each in self.results])

    def ranked(self) -> list[Result | Latched]:
        """Faults and results, worst first; faults first among equals."""
        everything: list[Result | Latched] = [*self.faults, *self.results]
        return sorted(everything, key=lambda item: -rank(item.status))

    def as_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "source": self.source,
            "status": self.worst.name.lower(),
            "results": [_as_json(r) for r in self.ranked() if isinstance(r, Result)],
            "faults": [_as_json(f) for f in self.ranked() if isinstance(f, Latched)],
            "checks": [_check_json(check) for check in self.checks],
            "notes": list(self.notes),
        }


def _of_this_node(result: Result) -> Result:
    acting = _OBSERVED_CHECKS.get(result.check)
    is_observed = acting is not None and result.reason not in acting
    is_failed = result.status is Status.FAILED
    return replace(result, status=Status.DEGRADED) if is_observed and is_failed else result


def from_latch(
    latch: "Latch",
    now: float,
    *,
    node: str,
    source: str,
    checks: Sequence[CheckInfo],
    notes: Sequence[str] = (),
) -> Findings:
    """The latch's entries at ``now`` (boottime seconds), and the evidence that was lost."""
    return Findings(
        node=node,
        source=source,
        results=[
            # After one look alone it is unknown since when it is so.
            Result(
                check=entry.check,
                component=entry.component,
                status=entry.status,
                reason=entry.reason,
                message=entry.message,
                age_seconds=max(now - entry.since, 0) if source == "agent" else None,
            )
            for entry in latch.components.values()
        ],
        faults=[
            Latched(
                code=entry.code,
                check=entry.check,
                component=entry.component,
                message=entry.message,
                count=entry.count,
                first_age_seconds=max(now - entry.first, 0),
                last_age_seconds=max(now - entry.last, 0),
                cleared_by=entry.cleared_by,
                historical=entry.historical,
                details=entry.details,
            )
            for entry in latch.faults.values()
        ],
        checks=checks,
        notes=[*notes, *(f"evidence lost: {loss.message}" for loss in latch.unacked.losses)],
    )


def from_agent(answer: Any) -> Findings:
    """The agent's answer to GET /v1/results. Raises ValueError when it makes no sense."""
    try:
        return Findings(
            node=str(answer["node"]),
            source="agent",
            results=[_result(entry) for entry in answer["results"]],
            faults=[_fault(entry) for entry in answer["faults"]],
            checks=[_check(entry) for entry in answer["checks"]],
            notes=[str(note) for note in answer["notes"]],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the agent's answer can't be read: {error!r}") from None


def rank(status: Status) -> int:
    return SEVERITY[status]


def _as_json(one: Result | Latched) -> dict[str, Any]:
    shown: dict[str, Any] = {field.name: getattr(one, field.name) for field in fields(one)}
    for name, value in shown.items():
        if isinstance(value, float):
            shown[name] = round(value, 3)
        elif isinstance(value, Enum):
            shown[name] = value.name.lower()
    return shown | {"status": one.status.name.lower()}


def _check_json(check: CheckInfo) -> dict[str, Any]:
    return {
        "name": check.name,
        "interval_seconds": check.interval,
        "off_because": check.off_because,
    }


def _result(entry: Any) -> Result:
    return Result(**_known(Result, entry) | {"status": Status[entry["status"].upper()]})


def _fault(entry: Any) -> Latched:
    ends = ClearedBy[entry["cleared_by"].upper()]
    return Latched(**_known(Latched, entry) | {"cleared_by": ends})


def _known(kind: type[Result | Latched], entry: Any) -> dict[str, Any]:
    """A later agent may have added keys."""
    return {field.name: entry[field.name] for field in fields(kind)}


def _check(entry: Any) -> CheckInfo:
    return CheckInfo(
        str(entry["name"]), float(entry["interval_seconds"]), str(entry["off_because"])
    )
