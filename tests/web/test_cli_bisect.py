"""`sickbay bisect`, as a process, with a real program as the site's test."""

import asyncio
import json
import os
import signal
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest

from aggregator.cluster.local.store import LocalStore
from tests.support.present import present
from tests.support.waiting import PATIENCE, until
from tests.web.cli import Done, in_process, sickbay, start, unwritten
from tests.web.support import NIGHT

#: Fails if a bad node is in the group; writes each group that it is asked about. A search starts it
#: dozens of times, and an import of pathlib and subprocess takes most of a start.
PROGRAM = """#!{python} -IS
import sys
here = __file__.rpartition("/")[0]
def words(name):
    try:
        with open(name if name.startswith("/") else here + "/" + name) as file:
            return file.read().split()
    except FileNotFoundError:
        return []
nodes = words(sys.argv[1]) if sys.argv[1].startswith("/") else sys.argv[1].split(",")
with open(here + "/asked", "a") as asked:
    asked.write(",".join(nodes) + "\\n")
if set(nodes) & set(words("hangs")):
    import os, subprocess
    child = subprocess.Popen(["sleep", "1000"])
    with open(here + "/child", "w") as file:
        file.write(str(child.pid))
    os.rename(here + "/child", here + "/hanging")
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

    def mark(self, what: str, *nodes: str) -> None:
        (self.folder / what).write_text(" ".join(nodes))

    def arguments(self, words: str = "{nodes}") -> tuple[str, ...]:
        return (
            *("bisect", "--nodes", str(self.folder / "nodes")),
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
    assert done.out.splitlines()[0] == "round 1: 1 test"
    assert done.out.splitlines()[1].startswith("  test 1: passed: 16 nodes")
    assert "1 test in 1 round" in done.out
    assert "The whole group passed: nothing was found." in done.out
    assert site.asked() == [",".join(site.nodes)]


async def test_a_bad_node_is_printed_with_its_tests_and_the_command_that_quarantines_it(
    site: Site,
) -> None:
    site.mark("bad", "gpu-05")
    done = await sickbay(*site.arguments(), "--namespace", "elsewhere")
    assert done.code == 1, done.err
    assert "1 suspect, 0 pairs of groups." in done.out
    [suspect] = [line for line in done.out.splitlines() if line.startswith("SUSPECT")]
    assert suspect.startswith("SUSPECT gpu-05: it failed next to gpu-")
    [command] = [line for line in done.out.splitlines() if "sickbay quarantine" in line]
    assert command.startswith("  sickbay quarantine gpu-05 --action cordon --reason 'fabric bis")
    assert command.endswith(" --namespace elsewhere")
    assert "All the rest pass together; 15 nodes were in groups that passed." in done.out


@pytest.mark.parametrize("full", [False, True])
async def test_a_result_that_can_not_be_written_is_no_verdict(site: Site, *, full: bool) -> None:
    code, err = await unwritten(*site.arguments(), full=full)
    assert (code, err.count("\n")) == (3, full), err
    assert err.startswith("sickbay: the answer can't be written: " if full else "")


async def test_a_reader_that_goes_in_the_middle_is_no_verdict(site: Site) -> None:
    """The tests of a round run in tasks of their own."""
    site.mark("hangs", "gpu-12")
    process = await start(*site.arguments())
    await until((site.folder / "hanging").exists)
    present(process.stdout)._transport.close()  # type: ignore[attr-defined]
    os.kill(int((site.folder / "hanging").read_text()), signal.SIGKILL)
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 3
    assert process.stderr is not None
    assert "Traceback" not in (await process.stderr.read()).decode()


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
    assert "NOT KNOWN gpu-03: its test next to gpu-" in done.out
    assert "it did not end within 1 s" in done.out
    await until(lambda: not _alive(int((site.folder / "hanging").read_text())))


def _alive(pid: int) -> bool:
    """A zombie is not: it waits for a parent that may never ask."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_search_ends_its_tests_and_names_no_node(
    site: Site, number: signal.Signals
) -> None:
    site.mark("hangs", "gpu-12")
    process = await start(*site.arguments())
    # The whole group hangs, because of the one node.
    await until((site.folder / "hanging").exists)
    process.send_signal(number)
    out, err = await asyncio.wait_for(process.communicate(), 300)
    assert (process.returncode, b"SUSPECT" in out) == (130, False)
    assert "interrupted: no node is named" in err.decode()
    await until(lambda: not _alive(int((site.folder / "hanging").read_text())))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--command", "true {nodes}"], "expected one of: --nodes FILE"),
        (["--nodes", "NODES", "--command", "true"], "expected {nodes} or {nodes_file} in it"),
        (["--nodes", "NODES", "--command", ""], "--command: expected the site's test"),
        (["--nodes", "NODES", "--command", "no-such {nodes}"], "there is no program no-such"),
        (["--nodes", "NODES", "--command", "'a {nodes}"], "--command: No closing quotation"),
        (["--nodes", "/none", "--command", "true {nodes}"], "/none can't be read: No such"),
        (["--nodes", "/dev/null", "--command", "true {nodes}"], "it is a device and no regular"),
        (["--nodes", "NODES", "--known-good", "a b"], "'a b': expected a node's name"),
        (["--nodes", "NODES", "--quarantine"], "stdin is no terminal; add --yes\n"),
        (["--nodes", "NODES", "--yes"], "--yes has no use without --quarantine"),
        (["--nodes", "NODES", "--domain-label", "a"], "--domain-label has no use without"),
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
        ("gpu-1\n", "1 node; expected two or more"),
        ("gpu-1\ngpu-1\n", "nodes:2: gpu-1 is there twice"),
        ("gpu-1\nALL\n", "nodes:2: 'ALL' means every node to Slurm"),
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


async def test_a_byte_order_mark_is_no_part_of_a_node(site: Site) -> None:
    (site.folder / "nodes").write_bytes(b"\xef\xbb\xbfgpu-1\r\ngpu-2\r\n")
    assert (await sickbay(*site.arguments())).code == 0
    assert site.asked() == ["gpu-1,gpu-2"]


async def test_with_quarantine_and_yes_the_suspects_are_quarantined_by_the_person(
    site: Site, tmp_path: Path
) -> None:
    database = tmp_path / "cluster.db"
    LocalStore(database, wall=lambda: NIGHT).close()
    site.mark("bad", "gpu-05")

    async def run(*more: str) -> Done:
        return await sickbay(*site.arguments(), "--local", str(database), *more)

    assert (await run()).code == 1
    with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
        assert store.quarantines() == []
    done = await run("--quarantine", "--yes")
    assert done.code == 1, done.err
    with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
        [found] = store.quarantines()
    assert (found.node, found.spec.kind, found.spec.action) == ("gpu-05", "manual", "cordon")
    assert found.spec.reason.startswith("fabric bisection: its test failed next to gpu-")


async def test_a_quarantine_that_is_not_possible_is_refused_before_the_first_round(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(site.folder))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    site.mark("bad", "gpu-05")
    (tmp_path / "text").write_text("no database, and longer than the header of one" * 100)
    for more, text in (
        ([], "there is no kubeconfig"),
        (["--local", str(tmp_path / "none")], "there is no database"),
        (["--local", str(tmp_path / "text")], "is no local cluster's database"),
    ):
        done = await in_process(*site.arguments(), "--quarantine", "--yes", *more)
        assert (done.code, text in done.err) == (2, True), done.err
        assert not (site.folder / "asked").exists()


async def test_a_quarantine_that_fails_after_the_search_leaves_its_exit_code(
    site: Site, tmp_path: Path
) -> None:
    database = tmp_path / "cluster.db"
    LocalStore(database, wall=lambda: NIGHT).close()
    site.mark("bad", "gpu-05")
    # The file goes while the search is under way.
    text = site.program.read_text()
    site.program.write_text(
        f"{text.rstrip()}\n".replace(
            "sys.exit(1 if",
            f"import os\nif os.path.exists({str(database)!r}): os.unlink({str(database)!r})\n"
            "sys.exit(1 if",
        )
    )
    done = await sickbay(*site.arguments(), "--local", str(database), "--quarantine", "--yes")
    assert "SUSPECT gpu-05" in done.out
    assert done.code == 1
    assert "sickbay: --quarantine: --local: there is no database" in done.err


async def test_a_suspect_that_is_in_quarantine_already_is_an_error_line_and_exit_code_1(
    site: Site, tmp_path: Path
) -> None:
    database = tmp_path / "cluster.db"
    LocalStore(database, wall=lambda: NIGHT).close()
    site.mark("bad", "gpu-00")
    more = ("--local", str(database), "--quarantine", "--yes")
    assert (await sickbay(*site.arguments(), *more)).code == 1
    again = await sickbay(*site.arguments(), *more)
    assert (again.code, "sickbay: --quarantine: gpu-00: " in again.err) == (1, True), again.err
