"""The whole aggregator of a cluster without Kubernetes, with its commands."""

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.local.cluster import LocalCluster
from aggregator.cluster.local.settings import Commands
from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import (
    Phase,
    Quarantine,
)
from aggregator.composition.core import build_controller
from aggregator.health.model import Cleared
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.state.fleet import FleetState
from nodeagent.sources.process_state import read_state
from tests.aggregator.local_file import run_other_process
from tests.support.node_states import summary_in
from tests.support.present import present
from tests.support.replica import (
    POLICY,
    SETTINGS,
    FakeLine,
    Notes,
    Turned,
    evaluate_due,
    fault,
    hello,
    snapshot,
)
from tests.support.tasks import end_tasks
from tests.support.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "cluster.db"


# -- the real controller on it ------------------------------------------------------------


@dataclass
class Site:
    """A site's commands, each a line in ``journal``; those that `breaks` names fail."""

    folder: Path

    @property
    def journal(self) -> list[str]:
        file = self.folder / "journal"
        return file.read_text().splitlines() if file.exists() else []

    def breaks(self, *names: str) -> None:
        for name in ("cordon", "drain", "release"):
            (self.folder / name).unlink(missing_ok=True)
        for name in names:
            (self.folder / name).touch()

    @property
    def commands(self) -> Commands:
        def argv(name: str) -> tuple[str, ...]:
            script = f"test ! -e {self.folder / name} && echo {name} $1 >> {self.folder}/journal"
            if name == "cordon":
                script = f"{script} && test ! -e {self.folder / 'late'}"
            return ("sh", "-c", script, "sh", "{node}")

        return Commands(argv("cordon"), argv("drain"), argv("release"))


class Aggregator:
    """A running controller on a local cluster."""

    def __init__(
        self, path: Path, site: Site | Commands, clock: Turned, *, limit: float = 30.0
    ) -> None:
        commands = site if isinstance(site, Commands) else site.commands
        self.cluster = LocalCluster(path, commands=commands, command_timeout=limit, wall=clock)
        self.fleet = FleetState()
        self.notes = Notes()
        self.clock = clock
        self.controller = build_controller(
            cluster=self.cluster,
            policy=POLICY,
            settings=SETTINGS,
            fleet=self.fleet,
            event_sink=self.notes,
            clocks=Clocks(clock, clock),
            rng=random.Random(7),
        )

    async def __aenter__(self) -> Self:
        await self.cluster.start()
        self.task = asyncio.create_task(self.controller.run())
        await until(lambda: not self.fleet.view_lost)
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks(self.task)
        await self.cluster.close()

    def ill(self, node: str = "n1") -> None:
        self.controller.on_connect(hello(node), FakeLine())
        self.controller.on_evidence(node, snapshot(fault()), self.clock())

    def well(self) -> None:
        """The fault is cleared, and the node stays well for the rule's time."""
        sign = snapshot(cleared=(Cleared("xid:79", "GPU-1", "operator"),))
        self.controller.on_evidence("n1", sign, self.clock())
        evaluate_due(self.controller)
        self.clock.time += 700
        self.controller.on_evidence("n1", snapshot(), self.clock())

    def phase(self) -> Phase | None:
        quarantine = summary_in(self.fleet, "n1").quarantine
        return quarantine.status.phase if quarantine is not None else None

    async def quarantine(self) -> Quarantine | None:
        return await self.cluster.read_quarantine("n1")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_fatal_fault_runs_cordon_and_drain_and_its_end_runs_release(
    path: Path, site: Site
) -> None:
    async with Aggregator(path, site, Turned()) as sickbay:
        sickbay.ill()
        await until(lambda: sickbay.phase() is Phase.DRAINED)
        assert site.journal == ["cordon n1", "drain n1"]
        node = present(await sickbay.cluster.read_node("n1"))
        assert is_marked(node)
        assert node.unschedulable
        sickbay.well()
        await until(lambda: "release n1" in site.journal)
        await until(lambda: sickbay.phase() is None)
        assert await sickbay.quarantine() is None
        node = present(await sickbay.cluster.read_node("n1"))
        assert not is_marked(node)
        assert not node.unschedulable
        assert parse_record((await sickbay.cluster.read_record()).text).entries == {}
        assert site.journal == ["cordon n1", "drain n1", "release n1"]


async def test_a_drain_command_that_fails_is_a_blocker_that_people_see(
    path: Path, site: Site
) -> None:
    site.breaks("drain")
    async with Aggregator(path, site, Turned()) as sickbay:
        sickbay.ill()
        await until(lambda: "work.blocked" in sickbay.notes.kinds("n1"))
        await until(
            lambda: (
                (q := summary_in(sickbay.fleet, "n1").quarantine) is not None
                and bool(q.status.blockers)
            )
        )
        assert sickbay.phase() is Phase.DRAINING
        sickbay.clock.time += 20
        site.breaks()
        await until(lambda: sickbay.phase() is Phase.DRAINED, within=20)
        assert site.journal == ["cordon n1", "drain n1"]


async def test_a_cordon_command_that_fails_is_tried_again_and_nothing_is_drained_before(
    path: Path, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.breaks("cordon")
    async with Aggregator(path, site, Turned()) as sickbay:
        sickbay.ill()
        await until(lambda: "exited with 1" in summary_in(sickbay.fleet, "n1").work.last_error)
        await until(lambda: any(line.message == "step of a node failed" for line in caplog.records))
        assert site.journal == []
        node = present(await sickbay.cluster.read_node("n1"))
        assert not is_marked(node)
        site.breaks()
        await until(lambda: sickbay.phase() is Phase.DRAINED, within=30)
        assert site.journal == ["cordon n1", "drain n1"]


async def test_a_fault_of_an_agent_that_is_named_all_reaches_no_command(
    path: Path, site: Site
) -> None:
    async with Aggregator(path, site, Turned()) as sickbay:
        sickbay.ill("ALL")
        sickbay.ill()
        await until(lambda: sickbay.phase() is Phase.DRAINED)
        named = summary_in(sickbay.fleet, "ALL")
        await until(lambda: "'ALL' means every node to Slurm" in named.work.last_error)
        assert await sickbay.cluster.read_quarantine("ALL") is None
        assert site.journal == ["cordon n1", "drain n1"]


@pytest.mark.parametrize("stuck", ["cordon", "drain", "release"])
async def test_a_restart_in_the_middle_finishes_what_was_begun(
    path: Path, site: Site, stuck: str
) -> None:
    clock = Turned()
    site.breaks(stuck)
    async with Aggregator(path, site, clock) as first:
        first.ill()
        if stuck == "release":
            await until(lambda: first.phase() is Phase.DRAINED)
            first.well()
            await until(lambda: first.phase() is Phase.RELEASING)
        elif stuck == "drain":
            await until(lambda: first.phase() is Phase.DRAINING)
        else:
            await until(lambda: summary_in(first.fleet, "n1").work.last_error)
    site.breaks()
    async with Aggregator(path, site, clock) as second:
        if stuck == "release":
            await until(lambda: second.phase() is None and "release n1" in site.journal)
            assert site.journal == ["cordon n1", "drain n1", "release n1"]
            return
        second.ill()
        await until(lambda: second.phase() is Phase.DRAINED)
        # A command whose end the first did not see is run again, and may have done its work.
        assert list(dict.fromkeys(site.journal)) == ["cordon n1", "drain n1"]
        second.well()
        await until(lambda: site.journal[-1] == "release n1")


async def test_a_controller_that_stops_ends_its_program_first(path: Path, tmp_path: Path) -> None:
    """The next controller begins the program again, and it must not run twice at once."""
    begun = tmp_path / "pid"
    long = ("sh", "-c", f"echo $$ > {begun}.new && mv {begun}.new {begun} && exec sleep 600")
    async with Aggregator(path, Commands(long, long, long), Turned()) as sickbay:
        sickbay.ill()
        await until(begun.exists)
        await end_tasks(sickbay.task)
        assert read_state(int(begun.read_text())).state == ""


async def test_a_persons_release_waits_for_no_command_that_hangs(
    path: Path, tmp_path: Path
) -> None:
    begun, released = tmp_path / "begun", tmp_path / "released"
    hangs = ("sh", "-c", f"touch {begun} && exec sleep 3600")
    commands = Commands(hangs, hangs, ("touch", str(released)))
    async with Aggregator(path, commands, Turned(), limit=3600.0) as sickbay:
        sickbay.ill()
        await until(begun.exists)
        await run_other_process(path, "store.delete_quarantine('n1')")
        await until(lambda: sickbay.phase() is None)
        assert released.exists(), "the command may have done its work"


@pytest.mark.parametrize("ends", ["store.set_stop('drill')", "store.delete_quarantine('n1')"])
async def test_a_drain_command_ends_with_the_stop_switch_and_with_a_release(
    path: Path, tmp_path: Path, ends: str
) -> None:
    """Else the next controller's command, or the release's, would run next to it."""
    begun, done = tmp_path / "pid", ("true",)
    hangs = ("sh", "-c", f"echo $$ > {begun}.new && mv {begun}.new {begun} && exec sleep 3600")
    async with Aggregator(path, Commands(done, hangs, done), Turned(), limit=3600.0) as sickbay:
        sickbay.ill()
        await until(begun.exists)
        await run_other_process(path, ends)
        await until(lambda: read_state(int(begun.read_text())).state == "")


async def test_a_person_stops_and_releases_through_the_file(path: Path, site: Site) -> None:
    async with Aggregator(path, site, Turned()) as sickbay:
        await run_other_process(path, "store.set_stop('drill')")
        await until(lambda: sickbay.fleet.stop == "drill")
        sickbay.ill()
        await until(lambda: summary_in(sickbay.fleet, "n1").decision.hold is not None)
        assert site.journal == []
        await run_other_process(path, "store.set_stop('')")
        await until(lambda: sickbay.phase() is Phase.DRAINED)
        await run_other_process(path, "store.delete_quarantine('n1')")
        await until(lambda: site.journal[-1] == "release n1")
        await until(lambda: sickbay.phase() is None)
        sickbay.ill()  # the fault is still there, and a person has spoken
        # Another node's is acted on, so there was time enough to act on this one's.
        sickbay.ill("n2")
        await until(lambda: "drain n2" in site.journal)
        mine = [line for line in site.journal if line.endswith(" n1")]
        assert mine == ["cordon n1", "drain n1", "release n1"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_cordon_whose_success_is_not_known_is_undone_by_the_release(
    path: Path, site: Site, *, restarts: bool
) -> None:
    """The command does its work and ends with 1, as one whose last request got no answer."""
    (site.folder / "late").touch()
    clock = Turned()
    async with Aggregator(path, site, clock) as first:
        first.ill()
        await until(lambda: "exited with 1" in summary_in(first.fleet, "n1").work.last_error)
        assert site.journal[0] == "cordon n1"
        if not restarts:
            await run_other_process(path, "store.delete_quarantine('n1')")
            await until(lambda: first.phase() is None)
    if restarts:
        await run_other_process(path, "store.delete_quarantine('n1')")
        async with Aggregator(path, site, clock) as second:
            await until(lambda: second.fleet.record_entries == 0)
    assert site.journal[-1] == "release n1"
