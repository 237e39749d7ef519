"""The parts of a kind of cluster: its section of the configuration, its traits, how it is opened.

A kind's `kind.py` imports little: the configuration reads it, and opens no cluster.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aggregator.cluster.capabilities import OpenedCluster
from aggregator.configfile.section import Section
from aggregator.configfile.yaml_source import Key


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """The needs of other sections of the configuration.

    ``certificates``: the aggregator makes its certificates itself. ``agents``: "NAMESPACE:NAME" of
    the agents' service account where their pods are followed, else empty. ``access``: the page
    requests its readers' identities. ``actions``: people act by the page. ``evictions``,
    ``events``: the rights to create these are needed; ``operations``: all rights to them.
    ``wall``: seconds since the epoch. ``store``: where the state is, unless it is in a file
    (`local.place.StorePlace`).
    """

    wall: Callable[[], float] = time.time
    store: Any = None
    certificates: bool = False
    agents: str = ""
    access: bool = False
    actions: bool = False
    evictions: bool = True
    events: bool = True
    operations: bool = True


def _nothing(_settings: Any) -> Iterable[tuple[Key, Any]]:
    return ()


def _startable(_settings: Any, _environ: Mapping[str, str]) -> None:
    """Raises nothing."""


@dataclass(frozen=True, slots=True)
class ClusterKind:
    """One line of `registry`. ``settings`` are ``cluster.NAME``, or, without ``section``, all of
    ``cluster``.
    """

    name: str
    open: Callable[[Any, OpenOptions], OpenedCluster]
    section: type[Section] | None = None
    #: An API server has its nodes: with tokens, users, namespaces, conditions, taints and objects.
    has_api_server: bool = False
    #: It can reboot its nodes (`Capabilities.reboots`).
    reboots_nodes: bool = False
    #: Its nodes have labels, by which pools select them.
    has_labels: bool = True
    #: Of the section ``cluster``: settings that are valid alone but not together, by their keys
    #: below it.
    contradictions: Callable[[Any], Iterable[tuple[Key, str]]] = _nothing
    #: Its state is the aggregator's own, in ``cluster.NAME.database`` or ``cluster.store``.
    keeps_state: bool = False
    #: The keys below ``cluster`` whose files are invalid, and the reason. No request is made.
    problems: Callable[[Any], Iterable[tuple[Key, str]]] = _nothing
    #: Raises `Refused` where the machine's own credentials can't be used, before the start.
    check_start: Callable[[Any, Mapping[str, str]], None] = _startable
    #: The site's commands, by their keys below ``cluster``.
    commands: Callable[[Any], Iterable[tuple[Key, Sequence[str]]]] = _nothing
