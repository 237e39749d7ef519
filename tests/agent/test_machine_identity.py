"""A state file of another machine: by a golden image, a moved disk, a shared folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from nodeagent.evidence.latch import Latch
from nodeagent.evidence.machine_identity import MachineIdentity
from nodeagent.evidence.state import AnotherMachine, State, StateError, dump, restore
from nodeagent.evidence.store import NAME, Store
from nodeagent.model import ClearedBy, Clearing, FaultSighting
from nodeagent.sources.host import HostRoots
from nodeagent.sources.machine_identity import identify
from tests.agent.agent_process import AgentProcess, Make
from tests.agent.kernel_log import HandClock
from tests.support.waiting import until

HERE = "4c4c4544-0051-4b10-8052-c7c04f4b5a33"
THERE = "4c4c4544-0051-4b10-8052-c7c04f4b5a34"
OURS = MachineIdentity("node-a", HERE)
#: A fault that outlives a reboot, a map of the GPUs, and an unacknowledged clearing.
POWER = ("xid:54", "GPU-1")


def left_behind(boot: str = "boot-a") -> State:
    latch = Latch(boot_id=boot, epoch="epoch-0")
    code, component = POWER
    fault = FaultSighting(code, "xid", component, "power", "kmsg", 12, 970.0, ClearedBy.OPERATOR)
    latch.apply([fault, Clearing("GPU-2", "gpu-reset")], 1000.0)
    return State(latch, 12, {"0000:3b:00": "GPU-1"})


def document(identity: MachineIdentity | None, boot: str = "boot-a") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(dump(left_behind(boot), 1.0, identity=identity)))
    return found


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (MachineIdentity("node-b", HERE), OURS),
        (MachineIdentity("node-a", THERE), OURS),
        (MachineIdentity("node-a", "", "a" * 32), MachineIdentity("node-a", "", "b" * 32)),
    ],
)
def test_the_state_of_another_machine_is_not_restored(
    theirs: MachineIdentity, ours: MachineIdentity
) -> None:
    with pytest.raises(AnotherMachine, match="it is of another machine"):
        restore(document(theirs), boot_id="boot-b", new_epoch=lambda: "e", identity=ours)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (OURS, OURS),
        (None, OURS),  # an older agent named no machine
        (MachineIdentity("node-a"), OURS),  # it could read none
        (OURS, MachineIdentity("node-a", "", "a" * 32)),  # it can read none any more
    ],
)
def test_the_state_of_this_machine_or_of_one_that_is_not_known_is_restored(
    theirs: MachineIdentity | None, ours: MachineIdentity
) -> None:
    state = restore(document(theirs), boot_id="boot-b", new_epoch=lambda: "e", identity=ours)
    assert set(state.latch.faults) == {POWER}


def test_within_a_boot_a_node_that_is_renamed_keeps_its_faults() -> None:
    """A hostname may come late; the boot id is this machine's alone."""
    renamed = MachineIdentity("node-a.example.org", HERE)
    state = restore(document(OURS), boot_id="boot-a", new_epoch=None, identity=renamed)
    assert set(state.latch.faults) == {POWER}


@pytest.mark.parametrize("machine", ["", [], 7, "node-a"])
def test_an_identity_that_is_none_is_damage(machine: object) -> None:
    damaged = document(OURS) | {"machine": machine}
    with pytest.raises(StateError, match="machine is"):
        restore(damaged, boot_id="boot-b", new_epoch=lambda: "e", identity=OURS)


def test_a_moved_disk_is_said_once_and_overwritten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both files are another's: the folder that should be in memory was on the disk, too."""
    run_dir, state_dir = tmp_path / "run", tmp_path / "state"
    for folder in (run_dir, state_dir):
        folder.mkdir()
        (folder / NAME).write_text(json.dumps(document(MachineIdentity("node-b", THERE))))
    store = Store(run_dir=run_dir, state_dir=state_dir, clock=HandClock(), identity=OURS)
    state = store.load(boot_id="boot-b", new_epoch=lambda: "epoch-1")
    assert (state.latch.faults, state.gpus, state.kernel_seq) == ({}, None, None)
    assert state.latch.unacked.clearings == []
    (loss,) = state.latch.unacked.losses
    assert loss.message == (
        f"{run_dir / NAME} is left out: it is of another machine "
        f"(node node-b and not node-a, product UUID {THERE} and not {HERE})"
    )
    assert [record.getMessage() for record in caplog.records] == [loss.message]
    assert store.save(state)
    again = Store(run_dir=run_dir, state_dir=state_dir, clock=HandClock(), identity=OURS)
    kept = again.load(boot_id="boot-b", new_epoch=lambda: "epoch-2").latch
    assert (kept.epoch, [one.message for one in kept.unacked.losses]) == ("epoch-1", [loss.message])


def test_a_file_without_an_identity_gets_one_when_it_is_saved(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps(document(None)))
    store = Store(run_dir=tmp_path, state_dir=tmp_path, clock=HandClock(), identity=OURS)
    store.save(store.load(boot_id="boot-a", new_epoch=lambda: "e"))
    assert json.loads((tmp_path / NAME).read_text())["machine"] == OURS.dump()


# -- who the machine is ---------------------------------------------------------------------------


def machine(folder: Path, *, uuid: str | None, machine_id: str | None) -> HostRoots:
    dmi, etc = folder / "sys/class/dmi/id", folder / "root/etc"
    dmi.mkdir(parents=True)
    etc.mkdir(parents=True)
    if uuid is not None:
        (dmi / "product_uuid").write_text(f"{uuid}\n")
    if machine_id is not None:
        (etc / "machine-id").write_text(f"{machine_id}\n")
    return HostRoots(clock=HandClock(), root=folder / "root", sys=folder / "sys")


@pytest.mark.parametrize(
    ("uuid", "machine_id", "found"),
    [
        (HERE.upper(), "a" * 32, (HERE, "")),
        (None, "a" * 32, ("", "a" * 32)),
        ("00000000-0000-0000-0000-000000000000", "a" * 32, ("", "a" * 32)),
        ("FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", "a" * 32, ("", "a" * 32)),
        ("03000200-0400-0500-0006-000700080009", None, ("", "")),
        ("Not Settable", "uninitialized", ("", "")),
        ("", "", ("", "")),
    ],
)
def test_who_a_machine_is(
    tmp_path: Path, uuid: str | None, machine_id: str | None, found: tuple[str, str]
) -> None:
    here = identify(machine(tmp_path, uuid=uuid, machine_id=machine_id), "node-a")
    assert here == MachineIdentity("node-a", *found)


# -- the agent ----------------------------------------------------------------------------------


def set_uuid(agent: AgentProcess, uuid: str) -> None:
    file = agent.folder / "sys/class/dmi/id/product_uuid"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{uuid}\n")


async def notes_and_faults(agent: AgentProcess) -> tuple[list[str], set[tuple[str, str]]]:
    status, body = await agent.ask("/v1/results")
    assert status == 200
    told = json.loads(body)
    return told["notes"], {(one["code"], one["component"]) for one in told["faults"]}


@pytest.mark.parametrize("moved", [True, False])
async def test_an_agent_on_a_disk_of_another_machine_tells_none_of_its_faults(
    make: Make,
    moved: bool,  # noqa: FBT001 - pytest gives it
) -> None:
    agent = make()
    set_uuid(agent, HERE)
    agent.state_dir.mkdir()
    theirs = MachineIdentity("node-a", THERE if moved else HERE)
    (agent.state_dir / NAME).write_text(json.dumps(document(theirs)))
    await agent.start().up()
    notes, faults = await notes_and_faults(agent)
    assert faults == (set() if moved else {POWER})
    left_out = [note for note in notes if "it is of another machine" in note]
    assert len(left_out) == agent.log().count("it is of another machine") == moved
    await until(lambda: agent.state()["machine"]["product_uuid"] == HERE)
    copy = agent.state_dir / NAME
    assert await agent.terminate() == 0
    await until(lambda: json.loads(copy.read_text())["machine"]["product_uuid"] == HERE)
