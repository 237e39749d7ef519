"""The checks of the kernel lines' table, on a machine that a test has made."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nodeagent.checks.base import LogCheck
from nodeagent.checks.kernel_lines import ROWS, SPECS, KernelLines
from nodeagent.checks.line_places import LinePlaces
from nodeagent.model import FaultSighting
from nodeagent.sources.driver_log import DriverLog
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.host import HostRoots
from nodeagent.sources.kmsg import Record
from nodeagent.terminal.kmsg_file import AnyPlaces
from tests.agent.machines import options, sources
from tests.support.present import of_type


def faults(check: LogCheck, record: Record) -> Sequence[FaultSighting]:
    """The faults that the check sees in a record; level evidence is left out."""
    return [each for each in check.read(record) if isinstance(each, FaultSighting)]


def line_check(name: str, places: LinePlaces | None = None) -> KernelLines:
    """On a machine that has every device; ``places`` are the parts of another one."""
    return KernelLines(name, ROWS[name], places or AnyPlaces())


def node_check(
    name: str,
    machine: HostRoots,
    gpus: GpuMap | None = None,
    log: DriverLog | None = None,
    **settings: Any,
) -> KernelLines:
    """On this machine, as the agent builds it."""
    parts = sources(machine)
    if gpus is not None:
        parts = replace(parts, gpus=gpus)
    if log is not None:
        parts = replace(parts, driver_log=log)
    return of_type(SPECS[name].build(parts, options(SPECS[name], **settings)), KernelLines)
