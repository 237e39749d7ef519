"""`sickbay bisect`, as a process, with a real program as the site's test."""

import asyncio
import json
import signal
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest

from aggregator.cluster.local.store import LocalStore
from tests.support.waiting import until
from tests.web.support import NIGHT
from tests.web.test_cli import Done, in_process, sickbay, start

#: Fails if a bad node is in the group; writes each group that it is asked about.
PROGRAM = """#!{python}
import pathlib, subprocess, sys
here = pathlib.Path(__file__).parent
nodes = sys.argv[1].split(",")
if nodes[0].startswith("/"):
    nodes = pathlib.Path(nodes[0]).read_text().split()
with (here / "asked").open("a") as asked:
    asked.write(",".join(nodes) + "\\n")
words = lambda name: (here / name).read_text().split() if (here / name).exists() else []
if set(nodes) & set(words("hangs")):
    child = subprocess.Popen(["sleep", "1000"])
    (here / "child").write_text(str(child.pid))
    (here / "child").rename(here / "hanging")
    child.wait()
if set(nodes) & set(words("no-tool")):
    print("all_reduce_perf: not found")
    sys.exit(3)
sys.exit(1 if set(nodes) & set(words("bad")) else 0)
"""


class Site:
    """A folder with the site's test, and the nodes of the group."""

    def __init__(self, folder: Path, count: int = 16) -> None:
        self.folder = folder
        self.program = folder / "run-test"
        self.program.write_text(PROGRAM.replace("{python}", sys.executable))
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        self.nodes = [f"gpu-{number:02d}" for number in range(count)]
        (folder / "nodes").write_text(
            "# the group\n" + "".join(f"{one} rack-1\n" for one in self.nodes)
        )
        self.state = folder / "state.jsonl"

    def mark(self, what: str, *nodes: str) -> None:
        (self.folder / what).write_text(" ".join(nodes))

    def arguments(self, words: str = "{nodes}") -> tuple[str, ...]:
        return (
            *("bisect", "--nodes", str(self.folder / "nodes"), "--state", str(self.state)),
            *("--command", f"{self.program} {words}"),
        )

    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_group_that_passes_exits_with_0(site: Site) -> None:
    done = await sickbay(*site.arguments())
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == "round 1: 1 tests at the same time"
    assert "The whole group passed: nothing was found." in done.out
    assert site.asked() == [",".join(site.nodes)]


async def test_a_bad_node_is_printed_with_its_tests_and_the_command_that_quarantines_it(
    site: Site,
) -> None:
    site.mark("bad", "gpu-05")
    done = await sickbay(*site.arguments(), "--namespace", "elsewhere")
    assert done.code == 1, done.err
    assert "1 suspects, 0 groups in pairs." in done.out
    [suspect] = [line for line in done.out.splitlines() if line.startswith("SUSPECT")]
    assert suspect.startswith("SUSPECT gpu-05: it failed beside gpu-")
    [command] = [line for line in done.out.splitlines() if "sickbay quarantine" in line]
    assert command.startswith("  sickbay quarantine gpu-05 --action cordon --reason 'fabric bis")
    assert command.endswith(" --namespace elsewhere")
    assert "All the rest pass together; 15 nodes were in groups that passed." in done.out


async def test_json_has_the_result_alone_and_the_rounds_go_to_stderr(site: Site) -> None:
    site.mark("bad", "gpu-05", "gpu-11")
    done = await sickbay(*site.arguments("{nodes_file}"), "-o", "json")
    told = json.loads(done.out)
    assert done.code == 1
    assert {one["node"] for one in told["suspects"]} == {"gpu-05", "gpu-11"}
    assert (told["verdict"], told["rest_passed"], len(told["cleared"])) == ("found", True, 14)
    assert all(one["tests"][-1]["outcome"] == "passed" for one in told["suspects"])
    assert done.err.startswith("round 1: ")


async def test_a_missing_tool_gives_no_verdict_and_names_no_node(site: Site) -> None:
    site.mark("no-tool", *site.nodes)
    done = await sickbay(*site.arguments())
    assert done.code == 3
    assert "No verdict: no node is named." in done.out
    assert "no verdict: 16 nodes" in done.out
    assert "exit code 3: all_reduce_perf: not found" in done.out
    assert "SUSPECT" not in done.out


async def test_a_test_that_hangs_is_ended_with_all_that_it_started_and_gives_no_verdict(
    site: Site,
) -> None:
    site.mark("hangs", "gpu-03")
    site.mark("bad", "gpu-09")
    done = await sickbay(*site.arguments(), "--limit", "1s")
    assert done.code == 1, done.err
    assert "SUSPECT gpu-09" in done.out
    assert "NOT KNOWN gpu-03: its test beside gpu-" in done.out
    assert "no end within 1 s" in done.out
    await until(lambda: not _alive(int((site.folder / "hanging").read_text())))


def _alive(pid: int) -> bool:
    """A zombie is not: it waits for a parent that may never ask."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_search_ends_its_tests_and_goes_on_without_repeating_one(
    site: Site, number: signal.Signals
) -> None:
    site.mark("bad", "gpu-05")
    site.mark("hangs", "gpu-12")
    process = await start(*site.arguments())
    # The whole group hangs, because of the one node.
    await until((site.folder / "hanging").exists)
    process.send_signal(number)
    _, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130
    assert f"to go on: sickbay bisect --resume {site.state}" in err.decode()
    await until(lambda: not _alive(int((site.folder / "hanging").read_text())))
    assert len(site.state.read_text().splitlines()) == 1

    site.mark("hangs")
    (site.folder / "asked").unlink()
    done = await sickbay("bisect", "--resume", str(site.state))
    assert (done.code, "SUSPECT gpu-05" in done.out) == (1, True)
    everything = site.asked()
    assert len(everything) == len(set(everything))

    # The file has each outcome: another search of it runs no test.
    again = await sickbay("bisect", "--resume", str(site.state))
    assert site.asked() == everything
    assert again.out.splitlines()[1:] == done.out[done.out.index("\n\n") :].splitlines()[1:]


async def test_a_line_that_a_killed_search_has_half_written_is_a_test_that_has_not_ended(
    site: Site,
) -> None:
    site.mark("bad", "gpu-05")
    first = await sickbay(*site.arguments(), "-o", "json")
    whole = site.state.read_bytes().splitlines(keepends=True)
    for kept in (1, 3, len(whole) - 1):
        site.state.write_bytes(b"".join(whole[:kept]) + whole[kept][:10])
        (site.folder / "asked").unlink()
        done = await sickbay("bisect", "--resume", str(site.state), "-o", "json")
        assert json.loads(done.out) == json.loads(first.out)
        assert len(site.asked()) == len(whole) - kept
        assert len(site.state.read_bytes().splitlines()) == len(whole)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--command", "true {nodes}"], "expected one of: --nodes FILE"),
        (["--nodes", "NODES", "--command", "true"], "expected {nodes} or {nodes_file} in it"),
        (["--nodes", "NODES", "--command", ""], "--command: expected the site's test"),
        (["--nodes", "NODES", "--command", "no-such {nodes}"], "there is no program no-such"),
        (["--nodes", "NODES", "--command", "'a {nodes}"], "--command: No closing quotation"),
        (["--nodes", "/none", "--command", "true {nodes}"], "--nodes: /none can't be read"),
        (["--resume", "/none"], "--resume: /none can't be opened"),
        (["--resume", "NODES"], "is no file of `sickbay bisect`"),
        (["--resume", "NODES", "--nodes", "NODES"], "--nodes is in the file that is resumed"),
        (["--nodes", "NODES", "--known-good", "a b"], "'a b': expected a node's name"),
        (["--nodes", "NODES", "--quarantine"], "--quarantine asks for confirmation"),
        (["--selector", "a=b", "--command", "true {nodes}"], "--selector needs a kubeconfig"),
    ],
)
async def test_a_command_line_that_makes_no_sense_exits_with_2(
    site: Site, arguments: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(site.folder))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    given = [str(site.folder / "nodes") if one == "NODES" else one for one in arguments]
    done = await in_process("bisect", *given)
    assert (done.code, text in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("gpu-1\n", "1 nodes; expected two or more"),
        ("gpu-1\ngpu-1\n", "nodes:2: gpu-1 is there twice"),
        ("gpu-1 rack 1\n", "nodes:1: expected NODE, or NODE and its DOMAIN"),
        ("-x\n", "nodes:1: '-x': expected a node's name"),
    ],
)
async def test_a_file_of_nodes_that_makes_no_sense_is_named_with_its_line(
    site: Site, lines: str, text: str
) -> None:
    (site.folder / "nodes").write_text(lines)
    done = await sickbay(*site.arguments())
    assert (done.code, text in done.err) == (2, True), done.err


async def test_a_state_file_that_is_there_is_never_written_over(site: Site) -> None:
    site.state.write_text("mine")
    done = await sickbay(*site.arguments())
    assert (done.code, "is there already" in done.err) == (2, True)
    assert site.state.read_text() == "mine"


async def test_two_searches_never_use_one_file(site: Site) -> None:
    site.mark("hangs", "gpu-12")
    process = await start(*site.arguments())
    await until((site.folder / "hanging").exists)
    done = await sickbay("bisect", "--resume", str(site.state))
    assert (done.code, "another sickbay bisect is using it" in done.err) == (2, True)
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(process.communicate(), 30)


async def test_with_quarantine_and_yes_the_suspects_are_quarantined_by_the_person(
    site: Site, tmp_path: Path
) -> None:
    database = tmp_path / "cluster.db"
    LocalStore(database, wall=lambda: NIGHT).close()
    site.mark("bad", "gpu-05")

    async def run(*more: str) -> Done:
        site.state.unlink(missing_ok=True)
        return await sickbay(*site.arguments(), "--local", str(database), *more)

    assert (await run()).code == 1
    with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
        assert store.quarantines() == []
    done = await run("--quarantine", "--yes")
    assert done.code == 1, done.err
    with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
        [found] = store.quarantines()
    assert (found.node, found.spec.kind, found.spec.action) == ("gpu-05", "manual", "cordon")
    assert found.spec.reason.startswith("fabric bisection: its test failed beside gpu-")
