"""The configuration is read again when its file changes; evidence goes on meanwhile."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from nodeagent.check_set import CheckSet, ends_what_it_leaves_out, is_excluded, named, unnamed
from nodeagent.checks.base import Off
from nodeagent.config.reload import Reloader
from nodeagent.config.settings import CheckSettings, Config, ConfigError, default, load
from nodeagent.configfile.toml_table import Problem
from nodeagent.model import Observation, Status
from tests.agent.agent_process import QUIET, AgentProcess
from tests.agent.machines import made_up, sources
from tests.agent.site_package import install
from tests.support.fake_aggregator import FakeAggregator
from tests.support.tasks import end_tasks
from tests.support.waiting import PATIENCE, until

ENVIRON = {"NODE_NAME": "node-a"}


def changed(config: Config, check: str, **settings: Any) -> Config:
    wanted = replace(config.checks[check], **settings)
    return replace(config, checks={**config.checks, check: wanted})


# -- which checks are built again -------------------------------------------------------------


@pytest.fixture
def config() -> Config:
    return default(ENVIRON)


@pytest.fixture
def check_set(tmp_path: Path, config: Config) -> CheckSet:
    made = CheckSet(sources(made_up(tmp_path)))
    made.follow(config)
    return made


def objects(check_set: CheckSet) -> dict[str, object]:
    return {check.name: check for check in check_set.scheduled} | dict(check_set.log_checks)


def test_a_check_whose_settings_stand_goes_on_as_it_is(check_set: CheckSet, config: Config) -> None:
    before = objects(check_set)
    check_set.follow(changed(config, "disk-space", interval=30.0))
    after = objects(check_set)
    assert {name for name in before if before[name] is not after[name]} == {"disk-space"}


def test_a_changed_option_builds_the_check_again(check_set: CheckSet, config: Config) -> None:
    before = objects(check_set)
    options = {**config.checks["disk-io"].options, "exclude": ("/scratch",)}
    check_set.follow(changed(config, "disk-io", options=options))
    assert objects(check_set)["disk-io"] is not before["disk-io"]


@pytest.mark.parametrize("settings", [{"on": False}, {"interval": 7.0}])
async def test_the_program_of_a_check_that_is_turned_off_or_changed_is_ended(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """It may be an nvidia-smi that keeps a reset away; and two of it may not run at once."""
    path, began = tmp_path / "agent.toml", tmp_path / "began"
    script = f"echo $$ > {began}; exec sleep 600"
    path.write_text(
        f'[own.slow]\ncommand = ["/bin/sh", "-c", "{script}"]\n'
        'protocol = "npd"\ntime_limit = "10m"\n'
    )
    config = load(path, ENVIRON)
    check_set = CheckSet(sources(made_up(tmp_path)))
    check_set.follow(config)
    [slow] = [each for each in check_set.scheduled if each.name == "slow"]
    run = asyncio.ensure_future(slow.check.run_check())
    await until(lambda: began.exists() and began.read_text().strip())
    check_set.follow(config)
    pid = int(began.read_text())
    assert psutil.pid_exists(pid), "nothing has changed"
    check_set.follow(changed(config, "slow", **settings))
    await until(lambda: not psutil.pid_exists(pid), within=30)
    await asyncio.wait({run})


def test_only_the_gpu_checks_ask_how_many_gpus_there_should_be(
    check_set: CheckSet, config: Config
) -> None:
    before = objects(check_set)
    check_set.follow(replace(config, expected_gpus=8))
    after = objects(check_set)
    other = {name for name in before if before[name] is not after[name]}
    assert "gpu-inventory" in other
    assert all(name.startswith("gpu") for name in other)


def test_a_check_that_is_turned_off_runs_no_more_and_says_why(
    check_set: CheckSet, config: Config
) -> None:
    check_set.follow(changed(config, "disk-space", on=False))
    assert "disk-space" not in check_set.names
    assert check_set.off["disk-space"] == "off by configuration (checks.disk-space.on)"


def test_a_report_ends_what_it_leaves_out_where_others_name_the_parts() -> None:
    seen = [Observation("x", "a", Status.OK)]
    blind = [*seen, Observation("x", "", Status.UNKNOWN, "no-mount-table")]
    assert {
        n
        for n in ("disk-mounts", "dns", "peers", "disk-space", "nic-link")
        if ends_what_it_leaves_out(n, seen)
    } == {"disk-mounts", "dns", "peers"}
    assert not ends_what_it_leaves_out("disk-mounts", blind)
    assert ends_what_it_leaves_out("disk-mounts", Off("no remote filesystem, none expected"))
    assert not ends_what_it_leaves_out("peers", Off("the aggregator names no peers"))


def test_a_third_partys_option_of_that_name_excludes_nothing() -> None:
    options = CheckSettings(on=True, interval=1.0, deadline=1.0, options={"exclude": "eth*"})
    assert not is_excluded("eth0", options)
    assert is_excluded("eth0", replace(options, options={"exclude": ("eth*",)}))


def test_a_target_that_is_named_no_longer_is_known_by_its_component(tmp_path: Path) -> None:
    before, after = tmp_path / "before.toml", tmp_path / "after.toml"
    before.write_text('[checks.reach]\ntargets = ["a:1", "http://b/status"]\n')
    after.write_text('[checks.reach]\ntargets = ["tcp://a:1"]\n')
    gone = unnamed(named(load(before, ENVIRON)), load(after, ENVIRON))
    assert {name: parts for name, parts in gone.items() if parts} == {
        "reach": {"http://b:80/status"}
    }


# -- which file is read, and when -------------------------------------------------------------


class Source:
    """A file of JSON numbers that stand for configurations."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "agent.toml"
        self.path.write_text("60")
        self.loads = 0
        self.applied: list[float] = []
        self.compared: list[object] = []
        self.threads: set[threading.Thread] = set()
        self.reloader = Reloader(
            self.path, self.load(), load=self.load, apply=self._apply, every=0.01
        )

        identify = self.reloader._identify

        def counted() -> Any:
            self.threads.add(threading.current_thread())
            self.compared.append(identity := identify())
            return identity

        self.reloader._identify = counted  # type: ignore[method-assign]

    def load(self) -> Config:
        self.loads += 1
        try:
            interval = float(json.loads(self.path.read_text()))
        except (OSError, ValueError) as error:
            raise ConfigError([Problem(str(self.path), 1, "interval", str(error), "")]) from None
        settings = CheckSettings(on=True, interval=interval, deadline=1.0)
        return Config(node="node-a", checks={"a": settings})

    def _apply(self, config: Config) -> None:
        self.applied.append(config.checks["a"].interval)

    async def run_until(self, condition: Callable[[], object]) -> None:
        task = asyncio.create_task(self.reloader.run())
        try:
            await until(condition)
        finally:
            await end_tasks(task)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


async def test_a_file_that_stands_as_it_was_is_read_once_more_and_changes_nothing(
    source: Source,
) -> None:
    """The file is read once more, as it may have changed between the start and the first look."""
    await source.run_until(lambda: source.loads >= 2)
    task = asyncio.create_task(source.reloader.run())
    since = len(source.compared)
    await until(lambda: len(source.compared) >= since + 10)
    assert (source.loads, source.applied) == (2, [])
    source.path.write_text("300")  # it looks all the while, and sees a change
    await until(lambda: source.applied)
    task.cancel()
    assert source.applied == [300.0]


async def test_a_file_that_stands_as_it_was_wakes_no_event_loop(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four looks a minute would cost an idle agent as much as its checks of the network."""
    loop = asyncio.get_running_loop()
    woken = list[object]()
    call = loop.call_soon_threadsafe

    def counted(callback: Callable[..., object], *arguments: Any) -> asyncio.Handle:
        woken.append(callback)
        return call(callback, *arguments)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    task = asyncio.create_task(source.reloader.run())
    await until(lambda: woken)
    before = len(source.compared)
    await until(lambda: len(source.compared) >= before + 10)
    assert len(woken) == 1, "for the first reading alone"
    [thread] = source.threads
    task.cancel()
    await until(lambda: not thread.is_alive())


async def test_a_file_that_is_written_anew_is_taken_over(source: Source) -> None:
    source.path.write_text("300")
    await source.run_until(lambda: source.applied)
    assert source.applied == [300.0]
    assert source.reloader.state.reloads == 1


async def test_a_configmaps_swapped_link_is_a_change(tmp_path: Path) -> None:
    """The kubelet swaps a link: agent.toml -> ..data/agent.toml, and ..data is renamed over."""
    for name, text in (("..1", "60"), ("..2", "300")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "agent.toml").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    source = Source.__new__(Source)
    source.path = tmp_path / "agent.toml"
    source.path.symlink_to("..data/agent.toml")
    source.loads, source.applied = 0, []
    source.reloader = Reloader(
        source.path, source.load(), load=source.load, apply=source._apply, every=0.01
    )
    await source.run_until(lambda: source.loads >= 2)
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    await source.run_until(lambda: source.applied)
    assert source.applied == [300.0]


async def test_a_bad_file_keeps_the_old_configuration_and_is_said(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.path.write_text("no number")
    await source.run_until(lambda: source.reloader.state.problem)
    assert source.applied == []
    assert str(source.path) in source.reloader.state.problem
    assert "goes on with the one before" in caplog.text
    source.path.write_text("300")
    await source.run_until(lambda: source.applied)
    assert source.reloader.state.problem == ""


async def test_a_file_that_is_gone_is_said(source: Source) -> None:
    source.path.unlink()
    await source.run_until(lambda: source.reloader.state.problem)
    assert source.applied == []


async def test_a_file_that_was_emptied_takes_no_setting_back(tmp_path: Path) -> None:
    """A full disk or a write in two steps empties it: a missed GPU must stay missed."""
    path, applied = tmp_path / "agent.toml", list[Config]()
    path.write_text("[expect]\ngpus = 8\n")

    def read() -> Config:
        return load(path, ENVIRON)

    reloader = Reloader(path, read(), load=read, apply=applied.append, every=0.01)
    path.write_text("")
    task = asyncio.create_task(reloader.run())
    try:
        await until(lambda: reloader.state.problem)
        assert f"{path}: is empty: a full disk leaves it so" in reloader.state.problem
        assert applied == []
        path.write_text("# all by the defaults\n")
        await until(lambda: applied)
        assert (applied[0].expected_gpus, reloader.state.problem) == (None, "")
    finally:
        await end_tasks(task)


async def test_a_file_that_is_written_while_it_is_read_is_read_again(source: Source) -> None:
    def load() -> Config:
        found = Source.load(source)
        if source.loads == 2:
            source.path.write_text("300")
        return found

    source.path.write_text("30")
    source.reloader = Reloader(
        source.path, source.reloader._current, load=load, apply=source._apply, every=0.01
    )
    await source.run_until(lambda: source.applied)
    assert source.applied == [300.0]


async def test_a_file_on_a_disk_that_hangs_holds_nothing_up(tmp_path: Path) -> None:
    """A FIFO without a writer: a thread that opens it waits, and cannot be cancelled."""
    source = Source(tmp_path)
    source.path.unlink()
    os.mkfifo(source.path)
    try:
        await source.run_until(lambda: source.loads >= 2)
    finally:
        os.close(os.open(source.path, os.O_WRONLY | os.O_NONBLOCK))  # lets the thread go


# -- a whole agent ----------------------------------------------------------------------------


@pytest.fixture
def agent(tmp_path: Path, aggregator: FakeAggregator) -> Iterator[AgentProcess]:
    (tmp_path / "disk").mkdir()
    on = f'[checks.disk-write]\npaths = ["{tmp_path / "disk"}"]\ninterval = "1h"'
    off = "[checks.disk-write]\non = false"
    agent = AgentProcess(
        tmp_path / "node", aggregator=aggregator.address, more=QUIET.replace(off, on)
    )
    yield agent
    agent.close()


async def test_a_running_agent_follows_its_file_without_a_gap(
    aggregator: FakeAggregator, agent: AgentProcess, tmp_path: Path
) -> None:
    agent.start()
    await agent.up()
    agent.xid(31)
    place = ("disk-write", str(tmp_path / "disk"))
    await until(
        lambda: aggregator.streams and place in aggregator.latest.components, what=agent.log()
    )
    await until(lambda: ("xid:31", "pci:0000:3b:00") in aggregator.latest.faults, what=agent.log())
    looks = await _explained(agent, "disk-write")

    # A bad file first: reported everywhere, without a change.
    good = agent.more
    agent.more = good + '\n[checks.disk-wriet]\non = "yes"\n'
    agent.write_config()
    await until_true(lambda: _problem(agent), what=agent.log())
    assert "disk-wriet" in await _problem(agent)
    metrics = (await agent.ask("/metrics"))[1]
    assert "sickbay_agent_config_current 0" in metrics
    assert "disk-wriet" in agent.log()
    assert place in aggregator.latest.components

    # Then another interval for a check that was off, and disk-write off.
    agent.more = good.replace('interval = "1h"', "on = false").replace(
        "[checks.memory]\non = false", '[checks.memory]\ninterval = "1h"'
    )
    agent.write_config()
    agent.xid(79)
    assert agent.process is not None
    agent.process.send_signal(signal.SIGHUP)
    await until(
        lambda: (
            place not in aggregator.latest.components
            and ("memory", "") in aggregator.latest.components
        ),
        within=20,
        what=agent.log(),
    )
    await until(lambda: ("xid:79", "pci:0000:3b:00") in aggregator.latest.faults, what=agent.log())
    fault = aggregator.latest.faults["xid:31", "pci:0000:3b:00"]
    assert fault.count == 1, "nothing was read twice"
    names = {check.name: check.off_because for check in aggregator.latest.hello.checks}
    assert names["memory"] == "", "Hello says what runs now"
    assert "off by configuration" in names["disk-write"]
    assert await _problem(agent) == ""
    assert looks["run"]["runs"] == 1


OFTEN = 'interval = "1s"'
MOUNT, NAMED = ("disk-mounts", "/nothing-here"), 'expected = ["/nothing-here"]'
TARGET, AIMED = ("reach", "tcp://127.0.0.1:1"), 'targets = ["127.0.0.1:1"]'


@pytest.mark.parametrize(
    ("place", "names", "then", "restarts"),
    [
        (MOUNT, NAMED, OFTEN, False),
        (MOUNT, NAMED, f'{OFTEN}\nexclude = ["/nothing-*"]', True),
        (TARGET, AIMED, OFTEN, True),
        (TARGET, AIMED, "on = false", False),
        (TARGET, AIMED, "on = false", True),
    ],
)
async def test_a_failed_part_that_is_not_named_any_more_or_excluded_or_not_checked_is_over(
    aggregator: FakeAggregator,
    agent: AgentProcess,
    place: tuple[str, str],
    names: str,
    then: str,
    restarts: bool,  # noqa: FBT001
) -> None:
    quiet, check = agent.more, f"[checks.{place[0]}]"
    agent.more = quiet.replace(f"{check}\non = false", f"{check}\n{OFTEN}\n{names}")
    await agent.start().up()
    await until(
        lambda: aggregator.streams and place in aggregator.latest.components, what=agent.log()
    )
    agent.more = quiet.replace(f"{check}\non = false", f"{check}\n{then}")
    await _follows(agent, restarts=restarts)
    await until(lambda: place not in aggregator.latest.components, what=agent.log())


async def _follows(agent: AgentProcess, *, restarts: bool) -> None:
    """The agent follows its changed configuration, by a restart or while it runs."""
    if restarts:
        await agent.terminate()
        agent.start()
        return
    agent.write_config()
    assert agent.process is not None
    agent.process.send_signal(signal.SIGHUP)


async def _explained(agent: AgentProcess, check: str) -> dict[str, Any]:
    status, body = await agent.ask("/v1/explain")
    assert status == 200
    [found] = [each for each in json.loads(body)["checks"] if each["name"] == check]
    return dict(found)


async def _problem(agent: AgentProcess) -> str:
    _, body = await agent.ask("/v1/results")
    return str(json.loads(body)["agent"]["config_problem"])


async def until_true(condition: Callable[[], Any], what: str) -> None:
    end = asyncio.get_running_loop().time() + PATIENCE
    while not await condition():
        assert asyncio.get_running_loop().time() < end, what
        await asyncio.sleep(0.05)


async def test_a_reload_during_the_start_does_not_end_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `systemctl reload` directly after a restart: the unit is active from the exec on."""
    hang_up = "import os, signal; os.kill(os.getpid(), signal.SIGHUP)"
    monkeypatch.setenv(
        "PYTHONPATH", str(install(tmp_path, "site_early", hang_up, "x = site_early:X"))
    )
    agent = AgentProcess(tmp_path, more=f'[own.mine]\nentry_point = "x"\n{QUIET}')
    try:
        await agent.start().up()
    finally:
        agent.close()
