"""The simulated nodes of one process: starts them, lets the events happen, reports how they are."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterable, Sequence

from nodeagent.simulate.events import ScenarioError, ScenarioEvent, ScenarioReboot, ScenarioState
from nodeagent.simulate.node import SimulatedNode, Undo

log = logging.getLogger(__name__)

#: Nodes that begin to connect per second, so that a start is no stampede of its own.
STARTS_PER_SECOND = 500.0
#: Seconds between two counts of the nodes with a stream, where that has changed.
COUNT_EVERY = 0.5
#: The pause after a count is at least this many times as long as the count took.
REST = 50.0
#: Seconds for last messages.
FAREWELL = 3.0


class Fleet:
    """``rng`` draws the nodes and GPUs, so that a seed makes them repeatable.

    ``changed`` is set by each node whose stream has come or gone.
    """

    def __init__(
        self, nodes: Iterable[SimulatedNode], *, rng: random.Random, changed: asyncio.Event
    ) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._rng = rng
        self._changed = changed
        self._timers: set[asyncio.TimerHandle] = set()
        self._reported: tuple[object, ...] = ()
        self._gap_since: float | None = None

    async def run(self, events: Sequence[ScenarioEvent], stop: asyncio.Event) -> None:
        """Until ``stop``. The events' times count from now."""
        watching = asyncio.create_task(self._poll_after(), name="count")
        starting = asyncio.create_task(self._start(), name="start")
        for event in events:
            self.let_happen(event)
        try:
            await stop.wait()
        finally:
            for task in (watching, starting):
                task.cancel()
            for timer in self._timers:
                timer.cancel()
            await self._end()

    def let_happen(self, event: ScenarioEvent) -> None:
        """After ``event.at`` seconds, and undo it after its ``lasting``."""
        self._after(event.at, lambda: self._happen(event))

    def _happen(self, event: ScenarioEvent) -> None:
        chosen = self._chosen(event.nodes)
        undo: list[Undo] = []
        for node in chosen:
            try:
                undone = node.do(event.act)
            except ScenarioError as refused:
                log.error("event refused: %s", refused)  # noqa: TRY400 - the text states all
                return
            if undone is not None:
                undo.append(undone)
        what = f"{type(event.act).__name__.lower()} {_about(event)}".strip()
        names = [node.name for node in chosen]
        log.info("event applied", extra={"what": what, "count": len(names), "nodes": names[:20]})
        if event.lasting or isinstance(event.act, ScenarioReboot):
            self._after(event.lasting, lambda: self._undo(what, undo))

    def _undo(self, what: str, undo: Sequence[Undo]) -> None:
        for each in undo:
            each()
        log.info("event undone", extra={"what": what, "count": len(undo)})

    def _chosen(self, wanted: int | tuple[str, ...] | None) -> list[SimulatedNode]:
        if wanted is None:
            return list(self._nodes.values())
        if isinstance(wanted, int):
            return self._rng.sample(list(self._nodes.values()), wanted)
        return [self._nodes[name] for name in wanted]

    def _after(self, seconds: float, do: Undo) -> None:
        def due() -> None:
            self._timers.discard(timer)
            do()

        timer = asyncio.get_running_loop().call_later(seconds, due)
        self._timers.add(timer)

    async def _start(self) -> None:
        for node in self._nodes.values():
            node.start()
            await asyncio.sleep(1 / STARTS_PER_SECOND)

    async def _poll_after(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Wait for a change: to look through 10,000 nodes takes as long as to send 60
            # heartbeats.
            await self._changed.wait()
            self._changed.clear()
            began = loop.time()
            here: list[SimulatedNode] = []
            away: list[SimulatedNode] = []
            for node in self._nodes.values():
                (here if node.streaming else away).append(node)
            self._print_count(here, away)
            self._print_when_all(here, away)
            await asyncio.sleep(max(COUNT_EVERY, REST * (loop.time() - began)))

    def _print_count(self, here: Sequence[SimulatedNode], away: Sequence[SimulatedNode]) -> None:
        troubles = Counter(trouble for node in away if (trouble := node.trouble))
        trouble = troubles.most_common(1)[0][0] if troubles else ""
        at = dict(sorted(Counter(node.address for node in here).items()))
        if self._reported != (len(here), trouble, at):
            self._reported = (len(here), trouble, at)
            extra = {"streaming": len(here), "nodes": len(self._nodes), "trouble": trouble}
            log.info("nodes attached", extra={**extra, "at": at})

    def _print_when_all(self, here: Sequence[SimulatedNode], away: Sequence[SimulatedNode]) -> None:
        """How long it took, from the first stream that was lost to the last that is back."""
        if away:
            since = min(node.since for node in away)
            self._gap_since = since if self._gap_since is None else min(since, self._gap_since)
        elif self._gap_since is not None:
            took = max(node.since for node in here) - self._gap_since
            self._gap_since = None
            extra = {"nodes": len(here), "after_seconds": round(took, 3)}
            log.info("all nodes attached", extra=extra)

    async def _end(self) -> None:
        for node in self._nodes.values():
            node.stop()
        tasks = [task for node in self._nodes.values() if (task := node.running) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=FAREWELL)
        for node in self._nodes.values():
            node.cut()
        if tasks:
            await asyncio.wait(tasks)


def _about(event: ScenarioEvent) -> str:
    act = event.act
    if isinstance(act, ScenarioState):
        return f"{act.check} {act.component} {act.status.name.lower()} {act.reason}".rstrip()
    return getattr(act, "code", "")
