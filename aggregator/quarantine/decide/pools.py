"""Pools of nodes by label selector, each with a mode and limits of its own. Pure.

The first pool that selects a node has it; a node that none selects is in `DEFAULT_POOL`. The limits
of a pool add a bound to those of the fleet and never raise them (`admission`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from aggregator.cluster.port import STRENGTH, Action
from aggregator.configfile.section import Positive, SectionDataclass
from aggregator.configfile.values import Share, refuse, shaped
from aggregator.policy.label_selector import LabelSelector
from aggregator.quarantine.decide.admission_record import DEFAULT_POOL, MOST_ADMISSIONS

#: Metrics have a series for each pool.
MOST_POOLS = 32


def _free_name(value: str) -> str:
    if value == DEFAULT_POOL:
        raise refuse(f'"{value}" names the nodes that no pool selects', "another name")
    return value


PoolName = Annotated[
    str,
    AfterValidator(_free_name),
    shaped(
        r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a name of small letters, digits and '-', at most 63"
    ),
]


@dataclass(frozen=True, slots=True)
class PoolLimits(SectionDataclass):
    """Bounds for the nodes of one pool, in addition to the fleet's; None: the fleet's alone hold.

    The percentage is of the pool's nodes. ``new_per_window`` counts within the fleet's ``window``;
    where it has held a node, none of the pool is admitted for the fleet's ``cooldown``.
    """

    concurrent: Positive | None = None
    """At most this many of its nodes in quarantine at once, in addition to the fleet's limits,
    which always hold as well.
    """
    concurrent_percent: Share | None = None
    """The same as a share of its nodes."""
    new_per_window: Annotated[int, Field(ge=1, le=MOST_ADMISSIONS)] | None = None
    """At most this many new ones within ``limits.window``; then the pool waits for
    ``limits.cooldown``. At most 5000.
    """


@dataclass(frozen=True, slots=True)
class Pool(SectionDataclass):
    """One entry of the section ``pools``. ``mode`` None: that of the file."""

    name: PoolName
    """The name of a pool (docs/policy.md#pools) on the page, in metrics and holds. ``pools`` is a
    list of at most 32; the first that selects a node has it, and ``default`` names the nodes that
    none selects. Kubernetes only.
    """
    selector: LabelSelector
    mode: Annotated[Action, Field(strict=False)] | None = None
    """The most that is done to its nodes: ``observe``, ``cordon``, ``drain``, also where the file's
    mode is less or more. Default: the file's ``mode``.
    """
    limits: PoolLimits = PoolLimits()


class Pools:
    """The pools in their order, and the mode of the nodes that none selects."""

    def __init__(self, pools: tuple[Pool, ...] = (), mode: Action = Action.OBSERVE) -> None:
        self.pools = pools
        self.mode = mode
        self._modes = {one.name: one.mode or mode for one in pools} | {DEFAULT_POOL: mode}
        self._mildest = min(self._modes.values(), key=STRENGTH)
        self.strongest = max(self._modes.values(), key=STRENGTH)
        self.limits: Mapping[str, PoolLimits] = {one.name: one.limits for one in pools}

    def __bool__(self) -> bool:
        """Whether there is a pool."""
        return bool(self.pools)

    @property
    def names(self) -> tuple[str, ...]:
        """The names in their order, with that of the rest; empty where there is no pool."""
        return (*(one.name for one in self.pools), DEFAULT_POOL) if self.pools else ()

    def name_of(self, labels: Mapping[str, str] | None) -> str:
        """The pool of a node with these labels; empty: there are no pools, or no known labels."""
        if not self.pools or labels is None:
            return ""
        for one in self.pools:
            if one.selector.matches(labels):
                return one.name
        return DEFAULT_POOL

    def mode_of(self, name: str) -> Action:
        """The mode of a pool's nodes; with unknown labels (no name) the mildest of all modes."""
        return self._modes.get(name, self._mildest)
