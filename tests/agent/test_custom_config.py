"""``[own.NAME]`` from the file to a running agent: settings, mistakes, listing, metrics."""

import asyncio
import json
import signal
from contextlib import closing
from pathlib import Path

import pytest

from nodeagent.config.checks import off_by_config, specs_of
from nodeagent.config.settings import Config, ConfigError, load
from tests.agent.agent_process import QUIET, AgentProcess
from tests.agent.cli import agent, configured
from tests.support.text_files import text_file
from tests.support.waiting import PATIENCE, until

ENVIRON = {"NODE_NAME": "n1"}


def loaded(folder: Path, text: str) -> Config:
    path = text_file(folder / "agent.toml", text)
    return load(path, ENVIRON)


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, text)
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.problems]


def test_settings_and_their_defaults(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        """
        [own.raid]
        command = ["/opt/raid", "-v"]
        protocol = "nagios"
        [own.scratch-2]
        command = ["/opt/scratch"]
        protocol = "npd"
        interval = "5m"
        time_limit = "2m"
        sees = "scratch"
        on = false
        """,
    )
    raid, scratch = config.own
    assert specs_of(config)[-2:] == (raid, scratch)
    assert (raid.name, raid.source) == ("raid", "/opt/raid -v (nagios)")
    assert raid.sees == "the result of /opt/raid"
    assert (config.checks["raid"].on, config.checks["raid"].interval) == (True, 60.0)
    assert config.checks["raid"].deadline > 10.0, "the program's own limit comes first"
    assert config.checks["scratch-2"].interval == 300.0
    assert config.checks["scratch-2"].deadline > 120.0
    assert off_by_config(raid, config) == ""
    assert off_by_config(scratch, config) == "off by configuration (own.scratch-2.on)"


def test_the_same_file_gives_the_same_configuration(tmp_path: Path) -> None:
    text = '[own.raid]\ncommand = ["/opt/raid"]\nprotocol = "npd"\n'
    assert loaded(tmp_path, text) == loaded(tmp_path, text)
    assert loaded(tmp_path, text) != loaded(tmp_path, text.replace("npd", "nagios"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "[own.raid]\nprotocol = 'npd'",
            (
                "agent.toml:1: own.raid: has neither command nor entry_point; "
                "expected command = a list of texts, the first an absolute path"
            ),
        ),
        (
            "[own.raid]\ncommand = ['/opt/raid']",
            (
                "agent.toml:2: own.raid.command: given without protocol; "
                'expected protocol = "nagios" or "npd": their exit codes differ'
            ),
        ),
        (
            "[own.raid]\ncommand = '/opt/raid --token s3cr3t'\nprotocol = 'npd'",
            (
                "agent.toml:2: own.raid.command: is one text; "
                "expected a list of texts, the first an absolute path"
            ),
        ),
        (
            "[own.raid]\ncommand = []\nprotocol = 'npd'",
            (
                "agent.toml:2: own.raid.command: is empty; "
                "expected a list of texts, the first an absolute path"
            ),
        ),
        (
            "[own.raid]\ncommand = ['raid']\nprotocol = 'npd'",
            (
                'agent.toml:2: own.raid.command: "raid" is not absolute; '
                "expected a list of texts, the first an absolute path"
            ),
        ),
        (
            "[own.raid]\ncommand = ['/opt/raid']\nprotocol = 'icinga'",
            'agent.toml:3: own.raid.protocol: is "icinga"; expected one of nagios, npd',
        ),
        (
            "[own.raid]\ncommand = ['/opt/raid']\nprotocol = 'npd'\ntime_limit = 10",
            (
                "agent.toml:4: own.raid.time_limit: is the number 10 without a unit; "
                'expected a duration such as "30s" or "10m"'
            ),
        ),
        (
            "[own.raid]\ncommand = ['/opt/raid']\nprotocol = 'npd'\ndeadline = '10s'",
            (
                "agent.toml:4: own.raid.deadline: unknown key (did you mean nvml.deadline?); "
                "expected one of command, interval, on, protocol, sees, time_limit"
            ),
        ),
        (
            "[own.xid]\ncommand = ['/opt/raid']\nprotocol = 'npd'",
            (
                "agent.toml:1: own.xid: is the name of one of the agent's own; "
                "expected another name, or [checks.xid]"
            ),
        ),
        (
            "[own.kernel-log]\ncommand = ['/opt/raid']\nprotocol = 'npd'",
            (
                "agent.toml:1: own.kernel-log: is the name of one of the agent's own; "
                "expected another name, or [checks.kernel-log]"
            ),
        ),
        (
            "[own.Raid_1]\ncommand = ['/opt/raid']\nprotocol = 'npd'",
            (
                "agent.toml:1: own.Raid_1: 'Raid_1' is no name of a check; "
                "expected lower-case letters, digits and '-', at most 63"
            ),
        ),
        ("own = 1", "agent.toml:1: own: is the number 1; expected a table [own]"),
        (
            "[own]\nraid = '/opt/raid'",
            'agent.toml:2: own.raid: is the text "/opt/raid"; expected a table [own.raid]',
        ),
        (
            "[own.raid]\nentry_point = 'x'\ncommand = ['/opt/raid']",
            "agent.toml:3: own.raid.command: given next to entry_point; expected one of the two",
        ),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in problems(tmp_path, text)


def test_a_check_that_is_mistyped_is_no_own_check(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, "[checks.disk-spice]\non = true")
    assert "did you mean checks.disk-space?" in problem


def test_a_program_that_is_not_there_keeps_no_agent_from_starting(tmp_path: Path) -> None:
    config = loaded(tmp_path, "[own.raid]\ncommand = ['/no/such/raid']\nprotocol = 'npd'")
    assert [spec.name for spec in config.own] == ["raid"]


def own(folder: Path) -> str:
    program = text_file(folder / "lights", '#!/bin/bash\necho "two of four are out"\nexit "$1"\n')
    program.chmod(0o755)
    return QUIET + (
        f'[own.lights]\ncommand = ["{program}", "2"]\nprotocol = "nagios"\ninterval = "200ms"\n'
        'sees = "lights that are out"\n'
        f'[own.gone]\ncommand = ["{folder}/gone"]\nprotocol = "npd"\ninterval = "200ms"\n'
    )


async def test_in_a_running_agent_it_is_a_check_like_any_other(tmp_path: Path) -> None:
    node = AgentProcess(tmp_path, more=own(tmp_path))
    with closing(node):
        await node.start().up()

        async def results() -> dict[str, dict[str, str]]:
            _, body = await node.ask("/v1/results")
            return {each["check"]: each for each in json.loads(body)["results"]}

        seen = await results()
        while not {"lights", "gone"} <= set(seen):
            seen = await results()
        assert seen["lights"]["status"] == "failed"
        assert seen["lights"]["reason"] == "critical"
        assert seen["lights"]["message"] == "two of four are out"
        assert (seen["gone"]["status"], seen["gone"]["reason"]) == ("unknown", "not-found")
        _, page = await node.ask("/metrics")
        for name in ("runs_total", "duration_seconds", "success_age_seconds"):
            assert f'sickbay_agent_check_{name}{{check="lights"}} ' in page
        assert 'sickbay_agent_components{check="lights",status="failed"} 1' in page
        code, _ = await node.ask("/v1/run-checks", "POST", '{"checks": ["lights"]}')
        assert code == 200
        assert await node.terminate() == 0
        assert "Traceback" not in node.log()


def test_checks_lists_it_and_check_runs_it(tmp_path: Path) -> None:
    config = configured(tmp_path, own(tmp_path))
    listed = {each["name"]: each for each in agent("checks", "--config", config, "-o", "json").json}
    assert listed["lights"]["sees"] == "lights that are out"
    assert listed["lights"]["on"] is True
    assert listed["lights"]["interval_seconds"] == 0.2
    done = agent("check", "--config", config)
    assert done.code == 1
    assert "two of four are out" in done.row("lights")
    assert "cannot be started: ENOENT" in done.row("gone")


async def test_it_comes_and_goes_with_the_file_of_a_running_agent(tmp_path: Path) -> None:
    node = AgentProcess(tmp_path)

    async def found() -> set[str]:
        _, body = await node.ask("/v1/results")
        return {each["check"] for each in json.loads(body)["results"]} & {"lights", "gone"}

    with closing(node):
        await node.start().up()
        assert await found() == set()
        bare = node.config.read_text()
        node.config.write_text(bare + own(tmp_path).removeprefix(QUIET))
        assert node.process is not None
        node.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(PATIENCE):
            while await found() != {"lights", "gone"}:  # noqa: ASYNC110  another process
                await asyncio.sleep(0.1)
        node.config.write_text(bare)
        node.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(PATIENCE):
            while await found() != {"lights"}:  # noqa: ASYNC110  another process
                await asyncio.sleep(0.1)
        _, body = await node.ask("/v1/results")
        names = {check["name"] for check in json.loads(body)["checks"]}
        assert not names & {"lights", "gone"}, "what failed stays known, its check is gone"


async def test_an_agent_that_stops_leaves_no_program_behind(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = tmp_path / "slow"
    program.write_text(f"#!/bin/bash\necho $$ >> {pids}\nsleep 60 & echo $! >> {pids}\nwait\n")
    program.chmod(0o755)
    more = f'{QUIET}[own.slow]\ncommand = ["{program}"]\nprotocol = "npd"\ntime_limit = "60s"\n'
    node = AgentProcess(tmp_path, more=more)
    with closing(node):
        await node.start().up()
        await until(lambda: pids.exists() and len(pids.read_text().split()) == 2, what="slow")
        assert await node.terminate() == 0
        for pid in pids.read_text().split():
            await until(lambda pid=pid: not Path(f"/proc/{pid}/wchan").exists(), what=pid)  # type: ignore[misc]  # a default that binds
