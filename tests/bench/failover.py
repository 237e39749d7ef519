"""Three replicas with all agents attached, the controller killed: when another acts.

There is a controller again (``reowned_s``) when another replica may act. Evidence is complete
(``complete_s``) when that one has the snapshot of every node's agent.
"""

import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.bench.parts import LIFTED, Findings, plane_in_memory
from tests.bench.simulated_agents import Crowd
from tests.bench.small import small_or
from tests.controlplane.waiting import wait_until
from tests.support.shards import TRUSTING_TLS, Replicas

#: Seconds: shown of the time before the kill, after the end, and waited for the end at most.
BEFORE, AFTER, PATIENCE = (*small_or((0.5, 0.5), (5.0, 10.0)), 240.0)
EVERY = 0.5


class Diary:
    """Second by second: agents with a stream, controllers, agents that the controller has heard.

    In a thread: replicas that are busy with thousands of agents answer late.
    """

    def __init__(self, replicas: Replicas, crowd: Crowd, names: Sequence[str]) -> None:
        self.rows: list[tuple[float, int, int, int]] = []
        self.names = list(names)
        self._replicas = replicas
        self._crowd = crowd
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def since(self, moment: float, what: int, count: int) -> float | None:
        """Seconds after ``moment`` from which column ``what`` says ``count``, or None if never."""
        found = None
        for row in self.rows:
            if row[0] > moment:
                whole = row[what] == count
                found = (row[0] if found is None else found) if whole else None
        return None if found is None else found - moment

    def _write(self) -> None:
        while not self._over.wait(EVERY):
            told = self._replicas.standings(self.names)
            controllers = sum(one.get("controller", 0.0) for one in told.values())
            heard = sum(one.get("agents_attached", 0.0) for one in told.values())
            at = time.monotonic()  # when they had answered, not when they were asked
            self.rows.append((at, self._crowd.streaming, int(controllers), int(heard)))


def failover(found: Findings) -> None:
    """Kill one of three, and see the rest take over."""
    with (
        plane_in_memory() as (plane, folder),
        tempfile.TemporaryDirectory(prefix="sickbay-bench-") as disk,
    ):
        nodes = plane.create_nodes(found.nodes, "shard")
        more = {**LIFTED, **TRUSTING_TLS}
        with Replicas(plane, Path(disk) / "shards", more=more) as replicas:
            replicas.start()
            where: list[str | Path] = ["--aggregator", replicas.address]
            where += ["--ca-file", replicas.authority.certificate]
            with Crowd(folder, where, before=replicas.before) as crowd:
                crowd.come(nodes)
                with Diary(replicas, crowd, replicas.names) as diary:
                    _until(diary, 3, len(nodes))
                    time.sleep(BEFORE)
                    dead = replicas.controller()
                    diary.names = [name for name in replicas.names if name != dead]
                    replicas.replicas[dead].kill()
                    killed = time.monotonic()
                    _until(diary, 2, 1, since=killed)
                    _until(diary, 3, len(nodes), since=killed)
                    time.sleep(AFTER)
    reowned, complete = diary.since(killed, 2, 1), diary.since(killed, 3, len(nodes))
    assert reowned is not None
    assert complete is not None
    found.figures |= {"reowned_s": round(reowned, 1), "complete_s": round(complete, 1)}
    found.curves["failover"] = [
        [round(at - killed, 1), streaming, heard]
        for at, streaming, _, heard in diary.rows
        if at > killed - BEFORE
    ]


def _until(diary: Diary, what: int, count: int, *, since: float = 0.0) -> None:
    def whole() -> bool:
        last = diary.rows[-1] if diary.rows else None
        return last is not None and last[0] > since and last[what] == count

    wait_until(
        whole,
        what=lambda: f"all {count} nodes in column {what}: {diary.rows[-1:]}",
        timeout_s=PATIENCE,
        every_s=EVERY / 2,
    )
