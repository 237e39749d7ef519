"""The record of operations and the files that hold it: what must be true after any sequence."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.clock import SystemClock
from nodeagent.config.settings import VERBS, Config, RepairConfig
from nodeagent.evidence.machine_identity import MachineIdentity
from nodeagent.repair import evidence
from nodeagent.repair.executor import Driver, RepairExecutor
from nodeagent.repair.journal import Journal, NotRecorded
from nodeagent.repair.operation import (
    FINAL,
    MOST,
    Facts,
    Operation,
    Operations,
    Order,
    RecordUnusable,
    RepairState,
    Verb,
    recovered,
    refusal,
)
from nodeagent.repair.permission import PermissionReply
from nodeagent.sources.gpu_sample import GpuSample
from nodeagent.sources.host import HostRoots
from sickbay.v1.limits import MAX_EVIDENCE_BYTES
from tests.agent.fake_tools import FakeTools
from tests.nvml import gpu, uuid_of
from tests.support.present import present
from tests.support.tasks import end_tasks
from tests.support.waiting import PATIENCE, until

STATES = [RepairState.ACCEPTED, RepairState.RUNNING, *sorted(FINAL)]


def operation(number: int = 1, **fields: Any) -> Operation:
    return Operation(
        **{
            "operation_id": f"op-{number}",
            "verb": Verb.REBOOT,
            "quarantine_uid": "q",
            "boot_id": "boot-1",
            "wall": 1000.0,
            "boottime": 100.0,
            **fields,
        }
    )


operations = st.builds(
    operation,
    st.integers(1, 9),
    verb=st.sampled_from(VERBS),
    boot_id=st.sampled_from(["boot-1", "boot-2"]),
    state=st.sampled_from(STATES),
    began=st.booleans(),
    acknowledged=st.booleans(),
    message=st.text(max_size=9),
)


@given(st.lists(operations, max_size=9), st.sampled_from(["boot-1", "boot-2", "boot-3"]))
def test_a_record_survives_its_file(found: list[Operation], boot_id: str) -> None:
    record = Operations({each.operation_id: each for each in found})
    assert Operations.of(json.loads(json.dumps(record.as_json()))) == record
    record.recover(boot_id)
    assert record.unfinished() == [], "after a start nothing is left that would go on"
    assert record.recover(boot_id) == [], "and a second start changes nothing"


@given(operations, st.lists(st.sampled_from(["boot-1", "boot-2", "boot-3"]), max_size=4))
def test_what_was_begun_never_reads_as_not_begun(before: Operation, boots: list[str]) -> None:
    after = before
    for boot_id in boots:
        after = recovered(after, boot_id)
    assert after.began == before.began
    if before.began and not before.is_final and boots:
        assert after.state in (RepairState.UNKNOWN, RepairState.SUCCEEDED)
    if after.state == RepairState.SUCCEEDED and before.state != RepairState.SUCCEEDED:
        assert before.verb == Verb.REBOOT
        assert before.began
        assert set(boots) != {before.boot_id}, "only another boot proves a reboot"


JSON = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda of: st.lists(of) | st.dictionaries(st.text(), of),
)


@given(JSON)
def test_a_malformed_record_is_an_error_and_never_an_empty_one(document: Any) -> None:
    with pytest.raises(RecordUnusable):
        Operations.of(document)


@pytest.mark.parametrize("name", ["operation_id", "state", "verb", "began", "wall", "gpus"])
def test_a_record_with_one_wrong_field_is_malformed(name: str) -> None:
    document = Operations({"op-1": operation()}).as_json()
    document["operations"][0][name] = None
    with pytest.raises(RecordUnusable):
        Operations.of(document)


def test_a_final_state_is_not_changed_but_by_the_proof_of_a_reboot() -> None:
    record = Operations()
    record.put(operation(state=RepairState.FAILED, began=True))
    with pytest.raises(AssertionError):
        record.put(operation(state=RepairState.SUCCEEDED, began=True))
    with pytest.raises(AssertionError):
        record.put(operation(state=RepairState.FAILED, began=False))


def test_only_what_is_over_and_acknowledged_is_forgotten() -> None:
    record = Operations()
    for number in range(MOST + 50):
        record.put(operation(number, state=RepairState.FAILED, acknowledged=number != 7))
    assert len(record.known) == MOST + 1
    assert record.get("op-7") is not None
    assert record.get("op-8") is None
    for number in range(MOST, 3 * MOST):
        record.put(operation(number + 1000, state=RepairState.FAILED))
    assert record.is_full()


def test_many_later_operations_displace_none_that_a_cap_counts() -> None:
    """Orders that a taken-over aggregator sends must not reset the node's own bound."""
    record = Operations(window=3600.0)
    for number in range(4):
        reset = operation(number, verb=Verb.GPU_RESET, began=True, state=RepairState.SUCCEEDED)
        record.put(replace(reset, acknowledged=True))
    for number in range(10, 10 + 3 * MOST):
        record.put(operation(number, state=RepairState.REFUSED, acknowledged=True))

    def begun(window: float) -> int:
        return record.begun(
            Verb.GPU_RESET, window=window, wall=4599.0, boottime=3699.0, boot_id="boot-1"
        )

    assert begun(3600.0) == 4
    late = operation(9999, state=RepairState.REFUSED, acknowledged=True)
    record.put(replace(late, boottime=100.0 + 3600))
    assert begun(10.0**9) == 0


@pytest.mark.parametrize(
    ("wall", "boottime", "boot_id", "expected"),
    [
        (1e9, 100.0 + 3599, "boot-1", 1),
        (1e9, 100.0 + 3600, "boot-1", 0),
        (1000.0 + 3599, 5.0, "boot-2", 1),
        (1000.0 + 3600, 5.0, "boot-2", 0),
        (0.0, 5.0, "boot-2", 1),
    ],
)
def test_a_cap_counts_by_this_boots_clock_and_holds_where_the_wall_clock_went_back(
    wall: float, boottime: float, boot_id: str, expected: int
) -> None:
    record = Operations({"a": operation(1, began=True), "b": operation(2, began=False)})
    found = record.begun(Verb.REBOOT, window=3600.0, wall=wall, boottime=boottime, boot_id=boot_id)
    assert found == expected


FACTS = Facts(
    boot_id="boot-1",
    boottime=100.0,
    wall=1000.0,
    allow=VERBS,
    window=3600.0,
    caps=dict.fromkeys(VERBS, 1),
    gpus=["GPU-1"],
    profiles=["quick"],
)
ORDER = Order("op-9", Verb.REBOOT, "q", "boot-1", 100.0)


@pytest.mark.parametrize(
    ("order", "facts", "expected"),
    [
        (ORDER, FACTS, None),
        (replace(ORDER, deadline=99.9), FACTS, "deadline"),
        (replace(ORDER, boot_id="boot-0"), FACTS, "other-boot"),
        (ORDER, replace(FACTS, allow=["test"]), "not-allowed"),
        (ORDER, replace(FACTS, busy_with="x"), "busy"),
        (replace(ORDER, verb=Verb.GPU_RESET, gpus=("GPU-1",)), FACTS, None),
        (replace(ORDER, verb=Verb.GPU_RESET, gpus=("GPU-1", "GPU-2")), FACTS, "unknown-gpu"),
        (replace(ORDER, verb=Verb.TEST, profile="long"), FACTS, "unknown-profile"),
        (ORDER, replace(FACTS, caps={Verb.REBOOT: 0}), "capped"),
    ],
)
def test_refusals(order: Order, facts: Facts, expected: str | None) -> None:
    found = refusal(order, Operations(), facts)
    assert (found and found[0]) == expected


@given(st.lists(st.text(max_size=400), max_size=400), st.text(max_size=2000))
def test_evidence_is_bounded_and_keeps_the_newest_lines(lines: list[str], sample: str) -> None:
    found = {"node": "n", "nvml": sample * 9, "kernel_log": lines, "gpus": [], "faults": []}
    text = evidence.bounded(found, most=3000)
    assert len(text) <= 3000
    told = json.loads(text)
    kept = told.get("kernel_log", [])
    assert kept == lines[len(lines) - len(kept) :]
    assert len(evidence.bounded(found)) <= MAX_EVIDENCE_BYTES


# -- an agent that dies at every access to the disk ------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


POD = "0f1e2d3c-0000-4000-8000-000000000001"


class SlowJournal(Journal):
    """Something happens on the node while its ``at``-th write waits for the disk."""

    def __init__(self, folder: Path, at: int, happens: Callable[[], None]) -> None:
        super().__init__(folder)
        self.left = at
        self.happens = happens

    async def save(self, operations: Operations) -> None:
        await super().save(operations)
        self.left -= 1
        if self.left == 0:
            self.happens()


class MortalJournal(Journal):
    """Dies at its ``at``-th write, before or after it is on the disk."""

    def __init__(self, folder: Path, at: int, *, after: bool) -> None:
        super().__init__(folder)
        self.left = at
        self.after = after

    async def save(self, operations: Operations) -> None:
        await self._mortal(super().save(operations))

    async def save_details(self, operation_id: str, details: dict[str, Any]) -> None:
        await self._mortal(super().save_details(operation_id, details))

    async def _mortal(self, work: Any) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            work.close()
            raise Killed
        await work
        if self.left == 0:
            raise Killed


class Machine:
    """One node's disk and programs, and executors that come and go on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tools = FakeTools(folder / "tools", [gpu(0)])
        self.tools.tool("dcgmi", "", 205)
        proc = folder / "proc/sys/kernel/random"
        proc.mkdir(parents=True)
        self.reset: list[str] = []

    def executor(self, journal: Journal, boot_id: str) -> RepairExecutor:
        repair = RepairConfig(
            allow=VERBS,
            nvidia_smi=self.tools.smi,
            reboot_command=(str(self.tools.folder / "reboot-now"),),
            reboot_limit=0.1,
            tool_path=(str(self.tools.folder),),
            profiles=self.folder / "profiles",
            insecure_own_pid_namespace=True,
        )
        config = Config(
            node="n",
            run_dir=self.folder / "run",
            state_dir=self.folder / "state",
            repair=repair,
        )
        clock = SystemClock()

        async def sample() -> GpuSample:
            return GpuSample(0.0)

        async def quiesce(_seconds: float) -> str:
            return ""

        def permit() -> None:
            """The aggregator grants each permission at once."""
            for operation in executor.permission.due():
                executor.permission.take_reply(
                    operation.operation_id, PermissionReply(granted=True)
                )

        executor = RepairExecutor(
            replace(config, kernel_log=replace(config.kernel_log, enabled=False)),
            machine=HostRoots(
                clock,
                root=self.folder / "host",
                proc=self.folder / "proc",
                sys=self.folder / "sys",
            ),
            boot_id=boot_id,
            driver=Driver(sample, quiesce, lambda: 0.0),
            gpus=lambda: [uuid_of(0)],
            was_reset=self.reset.extend,
            latched=list,
            clock=clock,
            wall=time.time,
            wake=permit,
            journal=journal,
        )
        return executor

    def allocate_gpu(self, *, pod_is_there: bool = True) -> None:
        """The kubelet gives a GPU to the pod `POD`, and remembers it after the pod's end."""
        kubelet = self.folder / "host/var/lib/kubelet"
        (kubelet / "device-plugins").mkdir(parents=True, exist_ok=True)
        entry = {"PodUID": POD, "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"0": ["GPU-1"]}}
        record = {"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {}}, "Checksum": 1}
        (kubelet / "device-plugins/kubelet_internal_checkpoint").write_text(json.dumps(record))
        if pod_is_there:
            (kubelet / "pods" / POD).mkdir(parents=True, exist_ok=True)

    async def end_of(self, verb: str, journal: Journal | None = None) -> Operation:
        """The end of one order of an agent that begins with an empty record."""
        found = journal or Journal(self.folder / "state/repair")
        executor = self.executor(found, "boot-1")
        running = asyncio.create_task(executor.run())
        executor.order(order_of(verb, "boot-1"))
        try:
            await states_until(executor, lambda state: state in FINAL)
        finally:
            await end_tasks(running)
        assert executor._operations is not None
        return present(executor._operations.get("op-1"))

    @property
    def acts(self) -> int:
        words = ("--gpu-reset", "reboot-now", "dcgmi")
        return sum(self.tools.count(word) for word in words)


async def states_until(executor: RepairExecutor, done: Callable[[str], bool]) -> list[str]:
    """The states that the executor tells, until one satisfies ``done``."""
    seen: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while not seen or not done(seen[-1]):
            for report in await executor.due():
                seen.append(report.operation.state)
                executor.sent(report.operation.operation_id)
            await asyncio.sleep(0.005)
    return seen


def order_of(verb: str, boot_id: str) -> Order:
    return Order(
        "op-1", verb, "q-1", boot_id, SystemClock().boottime() + 60,
        gpus=(uuid_of(0),) if verb == Verb.GPU_RESET else (),
        profile="quick" if verb == Verb.TEST else "",
    )  # fmt: skip


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("verb", VERBS)
async def test_a_death_at_any_write_does_nothing_twice_and_never_denies_an_act(
    tmp_path: Path, verb: str, moment: str
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)  # tasks of a process that was killed
    for at in range(1, 8):
        machine = Machine(tmp_path / f"{at}")
        folder = machine.folder / "state/repair"
        journal = MortalJournal(folder, at, after=moment == "after")
        executor = machine.executor(journal, "boot-1")
        running = asyncio.create_task(_quiet(executor.run()))
        executor.order(order_of(verb, "boot-1"))
        end = asyncio.create_task(states_until(executor, lambda state: state in FINAL))

        def over(end: Any = end, running: Any = running, executor: Any = executor) -> bool:
            return bool(
                end.done() or running.done() or (executor._running and executor._running.done())
            )

        await until(over, within=60)
        survived = journal.left > 0
        for task in (running, end, executor._running):
            if task is not None:
                task.cancel()
        await asyncio.gather(running, end, return_exceptions=True)
        before = machine.acts

        reborn = machine.executor(Journal(folder), "boot-1")
        running = asyncio.create_task(reborn.run())
        reborn.order(order_of(verb, "boot-1"))
        [*_, state] = await states_until(reborn, lambda state: state in FINAL)
        await end_tasks(running)
        assert machine.acts <= 1, (verb, at, state)
        if state == RepairState.REFUSED:
            assert machine.acts == 0, (verb, at)
        elif state in (RepairState.SUCCEEDED, RepairState.FAILED):
            assert machine.acts == 1, (verb, at)
        if before:
            assert state in FINAL - {RepairState.REFUSED}
        if survived:
            break
    else:
        raise AssertionError("an order has more writes than the test tried")


@pytest.mark.parametrize("verb", [Verb.GPU_RESET, Verb.REBOOT])
async def test_an_allocated_gpu_keeps_an_act_away_whenever_it_was_allocated(
    tmp_path: Path, verb: str
) -> None:
    early = Machine(tmp_path / "early")
    early.allocate_gpu()
    end = await early.end_of(verb)
    assert (end.state, end.reason, early.acts) == (RepairState.REFUSED, "in-use", 0)
    assert POD in end.message
    # Writes: accepted, begun. A job starts while "begun" waits for the disk.
    late = Machine(tmp_path / "late")
    journal = SlowJournal(late.folder / "state/repair", 2, late.allocate_gpu)
    end = await late.end_of(verb, journal)
    assert (end.state, end.reason, late.acts) == (RepairState.REFUSED, "in-use", 0)
    assert end.began, "it counts against the cap"


@pytest.mark.parametrize(
    "record", ["", '{"Data": {"PodDeviceEntries": 7}}', '{"data": {}}', "x" * 9]
)
async def test_a_record_of_allocations_that_cannot_be_understood_keeps_an_act_away(
    tmp_path: Path, record: str
) -> None:
    machine = Machine(tmp_path)
    machine.allocate_gpu()
    [file] = (tmp_path / "host").rglob("kubelet_internal_checkpoint")
    file.write_text(record)
    end = await machine.end_of(Verb.GPU_RESET)
    assert (end.state, end.reason, machine.acts) == (RepairState.REFUSED, "in-use", 0)
    assert "kubelet_internal_checkpoint can't be read" in end.message


@pytest.mark.parametrize(
    ("needs", "allocated"), [("gpu", True), ("gpus", True), ("idle", True), ("idle", False)]
)
async def test_a_gpu_in_use_keeps_a_test_away_of_which_one_step_needs_it(
    tmp_path: Path, needs: str, *, allocated: bool
) -> None:
    machine = Machine(tmp_path)
    if allocated:
        machine.allocate_gpu()
    else:
        user = tmp_path / "proc/4711"
        (user / "fd").mkdir(parents=True)
        (user / "fd/3").symlink_to("/dev/nvidia0")
        (user / "stat").write_text(f"4711 (python3) S 1 {' '.join(['0'] * 17)} 7 0\n")
    (tmp_path / "profiles").mkdir()
    step = f'[[step]]\nname = "x"\ncommand = ["dcgmi"]\nlimit = "9s"\nneeds = ["{needs}"]\n'
    (tmp_path / "profiles/quick.toml").write_text(step)
    end = await machine.end_of(Verb.TEST)
    assert (end.state, end.reason, machine.acts) == (RepairState.REFUSED, "in-use", 0)
    assert allocated or "python3 (pid 4711)" in end.message


async def test_a_gpu_of_a_pod_that_has_ended_keeps_nothing_away(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.allocate_gpu(pod_is_there=False)
    end = await machine.end_of(Verb.GPU_RESET)
    assert end.reason != "in-use"
    assert machine.acts == 1


async def _quiet(work: Any) -> None:
    try:
        await work
    except Killed:
        return


async def test_a_disk_that_cannot_be_written_obeys_no_order(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "state").write_text("a file where a folder should be")
    executor = machine.executor(Journal(tmp_path / "state/repair"), "boot-1")
    running = asyncio.create_task(executor.run())
    executor.order(order_of(Verb.REBOOT, "boot-1"))
    [state] = await states_until(executor, lambda state: state in FINAL)
    assert state == RepairState.REFUSED
    assert "state_dir must be a folder on a disk that works" in executor.problem
    assert machine.acts == 0
    await end_tasks(running)


async def test_a_record_is_replaced_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    await journal.save(Operations({"op-1": operation()}))
    (tmp_path / "operations.json.tmp").write_text("half of a rec")
    assert (await Journal(tmp_path).load()).get("op-1") == operation()
    (tmp_path / "operations.json").write_text("half of a rec")
    with pytest.raises(NotRecorded, match="no order is obeyed"):
        await Journal(tmp_path).load()


@pytest.mark.parametrize(
    ("theirs", "is_ours"),
    [
        (MachineIdentity("n", "uuid-2"), False),
        (MachineIdentity("former", "uuid-1"), True),  # the node has a new name
        (MachineIdentity("n", "", "id-1"), True),  # nothing that both know differs
    ],
)
async def test_the_record_of_another_machine_is_set_aside(
    tmp_path: Path,
    theirs: MachineIdentity,
    is_ours: bool,  # noqa: FBT001
) -> None:
    """A disk that was moved, or an image: its reboots are none of this machine's."""
    await Journal(tmp_path, identity=theirs).save(Operations({"op-1": operation()}))
    journal = Journal(tmp_path, identity=MachineIdentity("n", "uuid-1"))
    assert ("op-1" in (await journal.load()).known) is is_ours
    assert (tmp_path / "operations.json.other-machine").exists() is not is_ours
    await journal.save(Operations({"op-2": operation(2)}))
    assert "op-2" in (await journal.load()).known


async def test_the_record_of_another_agent_that_runs_is_left_alone(tmp_path: Path) -> None:
    """One state_dir with two agents, each with a run_dir of its own."""
    lock = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, 2)"
    program = f"{lock}; print(flush=True); input()"
    command = [sys.executable, "-c", program, str(tmp_path / "lock")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as other:  # noqa: ASYNC220
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(NotRecorded, match="another agent's: no order is obeyed"):
            await Journal(tmp_path).load()
        other.communicate(b"\n")
    assert (await Journal(tmp_path).load()).known == {}


async def test_accesses_at_the_same_time_wait_for_each_other(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    record = Operations({"op-1": operation()})
    await asyncio.gather(
        *(journal.save(record) for _ in range(5)),
        *(journal.save_details("op-1", {"evidence": "x"}) for _ in range(5)),
    )
    assert await journal.details("op-1") == {"evidence": "x"}


async def test_a_disk_that_hangs_holds_no_order_and_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "operations.json")
    journal = Journal(tmp_path, patience=0.2)
    with pytest.raises(NotRecorded, match=r"no answer of the disk in 0\.2 s"):
        await journal.load()
    with pytest.raises(NotRecorded, match="hangs; no order is obeyed until it works"):
        await journal.load()
    fifo = (tmp_path / "operations.json").rename(tmp_path / "fifo")
    await journal_file(tmp_path)
    fifo.open("w").close()  # the read that hangs ends
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                found = await journal.load()
            except NotRecorded:
                await asyncio.sleep(0.01)
            else:
                break
    assert found.get("op-1") == operation()
    gc.collect()
    assert caplog.text == "", "the read that was given up ended with an error of nobody's"


async def journal_file(folder: Path) -> None:
    await Journal(folder).save(Operations({"op-1": operation()}))
