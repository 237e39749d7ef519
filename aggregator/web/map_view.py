"""The map of the fleet: its nodes in blocks by the value of a label, such as their rack or pool.

Pure, except `MapLayouts`, which remembers the latest layouts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from aggregator.runtime.recent import Recent
from aggregator.runtime.text import natural
from aggregator.web import models
from aggregator.web.fleet_view import LETTERS, FleetViewFindings
from aggregator.web.page_delta import tag_of

#: The value of the query that requests one block of all nodes.
ONE_BLOCK = "none"
#: Means the configuration's own pools, next to the labels.
POOL = "pool"
#: A label with a block for fewer nodes than this, on average, is not chosen by itself.
_LEAST_NODES = 2
#: Letters of the map in a line of a fragment, so that one node's change is one line.
_CELLS = 64
#: A layout serves this long (seconds) while no node comes or goes: labels change seldom.
_LASTS = 30.0
_MOST_LAYOUTS = 8


@dataclass(frozen=True, slots=True)
class MapLayout:
    """The order of the nodes on the map. ``key``: the label of the blocks; empty: one block.

    ``keys``: the labels that can divide it, because a node has them. ``blocks``: the label's value
    (empty for nodes without it) and the nodes. ``tag`` is another one for each order.
    """

    key: str
    blocks: tuple[tuple[str, tuple[str, ...]], ...]
    names: tuple[str, ...]
    tag: str
    keys: tuple[str, ...] = ()

    def letters(self, found: FleetViewFindings) -> str:
        """One letter for each of ``names``."""
        return "".join(LETTERS[found.states[name]] for name in self.names)

    def cells(self, found: FleetViewFindings) -> list[str]:
        """The tag, and the letters in lines of one length."""
        letters = self.letters(found)
        return [self.tag, *(letters[at : at + _CELLS] for at in range(0, len(letters), _CELLS))]


#: The value of a label (second) of a node (first); empty where it has none.
ValueOf = Callable[[str, str], str]


def map_layout(names: Sequence[str], value_of: ValueOf, key: str) -> MapLayout:
    """``names`` in blocks by the label ``key``, nodes without it last. Empty key: one block."""
    found: dict[str, list[str]] = {}
    if not key:
        found[""] = list(names)
    for name in names if key else ():
        found.setdefault(value_of(name, key), []).append(name)
    ordered = sorted(found, key=lambda value: (not value, natural(value)))
    blocks = tuple((value, tuple(found[value])) for value in ordered)
    flat = tuple(name for _, members in blocks for name in members)
    tag = tag_of("\n".join((key, *(f"{value}\t{len(of)}" for value, of in blocks), *flat)))
    return MapLayout(key, blocks, flat, tag)


def suited_key(names: Sequence[str], value_of: ValueOf, keys: Sequence[str]) -> str:
    """The first label that divides the nodes into several blocks of several nodes each, and that
    most of them have; empty without one.
    """
    for key in keys:
        values = [value for name in names if (value := value_of(name, key))]
        several = 1 < len(set(values)) <= len(values) / _LEAST_NODES
        if several and len(values) * 2 > len(names):
            return key
    return ""


class MapLayouts:
    """Each layout serves until a node comes or goes, and for half a minute at most."""

    def __init__(self) -> None:
        self._made: Recent[str, tuple[float, tuple[str, ...], MapLayout]] = Recent(_MOST_LAYOUTS)

    def of(
        self,
        names: tuple[str, ...],
        requested: str,
        *,
        value_of: ValueOf,
        keys: Sequence[str],
        now: float,
    ) -> MapLayout:
        """The layout for the label ``requested``, for `ONE_BLOCK`, or (empty) for that of ``keys``
        that suits best. ``now`` is monotonic seconds.
        """
        known = self._made.get(requested)
        if known is not None and known[1] == names and now < known[0]:
            return known[2]
        key = requested or suited_key(names, value_of, keys)
        layout = map_layout(names, value_of, "" if key == ONE_BLOCK else key)
        present = (one for one in keys if any(value_of(name, one) for name in names))
        layout = replace(layout, keys=tuple(present))
        self._made[requested] = (now + _LASTS, names, layout)
        return layout


def map_model(layout: MapLayout, found: FleetViewFindings, revision: int) -> models.Map:
    """As the API gives it."""
    return models.Map(
        revision=revision,
        names=list(layout.names),
        states=layout.letters(found),
        label=layout.key,
        blocks=[models.MapBlock(value=value, nodes=len(of)) for value, of in layout.blocks],
    )
