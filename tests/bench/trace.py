"""Counts what one fault passes in a running controller, from `on_evidence` to `patch_node`.

The node's agent is known, and another node's fault went the same way before, so nothing is done
for the first time. The profiler counts the product's own functions: how many files, functions and
calls, and how often the execution moves from one file to another. Run by `make trace`.
"""

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from aggregator.health.model import Delta
from tests.bench.figures import write
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.replica import Replica, fault, snapshot
from tests.support.virtual_replica import Running, soon
from tests.support.virtual_time import run

ROOT = Path(__file__).resolve().parents[2]
_PRODUCT = str(ROOT / "aggregator")
#: Parts of an expression: no functions to a reader, and not the same in each Python.
_INNER = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})


@dataclass
class Trace:
    """``calls``: the resumed turn of a coroutine is one, too."""

    files: set[str] = field(default_factory=set)
    functions: set[tuple[str, str]] = field(default_factory=set)
    calls: int = 0
    moves: int = 0
    _last: str = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_PRODUCT) or code.co_name in _INNER:
            return
        self.files.add(code.co_filename)
        self.functions.add((code.co_filename, code.co_qualname))
        self.calls += 1
        self.moves += code.co_filename != self._last
        self._last = code.co_filename

    def figures(self) -> dict[str, int]:
        """By their names in `build/bench/trace.json`."""
        return {
            "trace_files": len(self.files),
            "trace_functions": len(self.functions),
            "trace_calls": self.calls,
            "trace_moves": self.moves,
        }


class _Ending(MemoryCluster):
    """Ends the trace at the patch of this node."""

    traced = ""

    async def patch_node(self, node: Any, *args: Any, **more: Any) -> Any:
        if node.name == self.traced:
            sys.setprofile(None)
        return await super().patch_node(node, *args, **more)


def count() -> Trace:
    """The trace of one fault."""
    found = Trace()

    async def play() -> None:
        world = World.of("warm", "n1")
        cluster = _Ending(world)
        replica = Replica(world, clock=Running(), cluster=cluster)
        replica.agents(("warm", "n1"), snapshot())
        await soon(lambda: not replica.fleet.view_lost)
        replica.agent("warm", Delta(faults=(fault(),)))
        await soon(lambda: world.nodes["warm"].taints)
        await asyncio.sleep(60)  # what trails the first one is done
        cluster.traced = "n1"
        sys.setprofile(found)
        try:
            replica.agent("n1", Delta(faults=(fault(),)))
            await soon(lambda: world.nodes["n1"].taints)
        finally:
            sys.setprofile(None)
        await replica.stop()

    run(play())
    return found


def main() -> None:
    """Print the counts, and each file with its functions; write the figures."""
    found = count()
    for file in sorted(found.files):
        named = sorted(name for where, name in found.functions if where == file)
        print(f"{Path(file).relative_to(ROOT)}: {', '.join(named)}")
    figures = found.figures()
    for name, value in figures.items():
        print(f"{value} {name}")
    write("trace", figures)


if __name__ == "__main__":
    main()
