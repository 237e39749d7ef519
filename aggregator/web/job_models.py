"""The models of the jobs that faults hit, and of what they cost: of the page and of the API."""

from aggregator.web.models import Shape, Time


class JobRecord(Shape, frozen=True, kw_only=True):
    """A job on a faulty node. ``stopped``: pods of it were evicted; else it was there at the fault.
    ``loss``: gang, replica or nothing. ``pods_here`` and ``gpus_here`` are on the node, ``pods``
    and ``gpus`` all of the job, ``lost_gpus`` those of the pods that stop with one here.
    ``gpu_ids`` names the GPUs of each pod here ("rank-0: GPU-1 GPU-2"). Seconds:
    ``checkpoint_age``, ``restart``; their sources are measured, declared or default. ``lost_hours``
    are GPU hours, 0 where nothing was stopped.
    """

    at: Time
    node: str
    incident: str
    job: str
    kind: str
    name: str
    namespace: str
    team: str
    queue: str
    code: str
    pool: str
    stopped: bool
    loss: str
    pods_here: int
    gpus_here: int
    gpu_ids: str
    pods: int
    gpus: int
    lost_gpus: int
    checkpoint_age: float
    checkpoint_source: str
    restart: float
    restart_source: str
    lost_hours: float


class JobRow(Shape, frozen=True, kw_only=True):
    """The sums of one job, team, code, node or pool. ``hits``: faults of nodes with pods of it;
    ``stops``: jobs that evictions stopped. GPU hours: ``work_hours`` since the last checkpoint,
    ``restart_hours`` until jobs computed again, ``lost_hours`` both; ``out_of_service_hours`` of
    nodes in quarantine. ``mttr`` in seconds. ``ettr`` and ``last`` are null except by job.
    """

    name: str
    hits: int
    stops: int
    lost_hours: float
    work_hours: float
    restart_hours: float
    out_of_service_hours: float
    mttr: float | None
    ettr: float | None
    last: JobRecord | None


class DayHours(Shape, frozen=True, kw_only=True):
    """The GPU hours that stops of one day lost; ``day`` begins in UTC."""

    day: Time
    lost_hours: float


class GroupHours(Shape, frozen=True, kw_only=True):
    """The GPU hours that one code or team lost. ``others``: it is the sum of this number of codes
    or teams that are not listed, without a name.
    """

    name: str
    others: int
    lost_hours: float


class JobReport(Shape, frozen=True, kw_only=True):
    """The cost of faults. The inputs of the formulas of docs/jobs.md: ``nodes`` and ``gpus`` of
    the fleet now, ``quarantines``, ``per_node_day`` (quarantines for each node and day).
    ``mtbf`` and ``mttr`` in seconds. ``stops_by_source``: how many stops have a checkpoint age that
    is measured, declared or a default. ``days``, ``codes`` and ``teams`` sum the lost
    hours of all jobs. ``records``: those of one job, the newest first, where the query names one.
    ``cut``: there were more transitions than are read, and the oldest are left out. ``trouble``:
    why history can't be read; empty: it can.
    """

    since: Time
    until: Time
    by: str
    nodes: int
    gpus: int
    quarantines: int
    per_node_day: float
    mtbf: float | None
    mttr: float | None
    lost_hours: float
    work_hours: float
    restart_hours: float
    out_of_service_hours: float
    goodput: float | None
    stops: int
    stops_by_source: dict[str, int]
    days: list[DayHours]
    codes: list[GroupHours]
    teams: list[GroupHours]
    items: list[JobRow]
    total: int
    records: list[JobRecord]
    cut: bool
    trouble: str
