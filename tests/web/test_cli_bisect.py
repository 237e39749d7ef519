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
from tests.web.cli import Done, in_process, sickbay, start
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
    assert done.out.splitlines()[0] == "round 1: 1 test"
    assert done.out.splitlines()[1].startswith("  test 1: passed: 16 nodes")
    assert f"1 test in 1 round; {site.state}" in done.out
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
async def test_an_interrupted_search_ends_its_tests_and_goes_on_without_repeating_one(
    site: Site, number: signal.Signals
) -> None:
    site.mark("bad", "gpu-05")
    site.mark("hangs", "gpu-12")
    process = await start(*site.arguments())
    # The whole group hangs, because of the one node.
    await until((site.folder / "hanging").exists)
    process.send_signal(number)
    _, err = await asyncio.wait_for(process.communicate(), 300)
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
        (["--nodes", "/none", "--command", "true {nodes}"], "/none can't be read: No such"),
        (["--nodes", "/dev/null", "--command", "true {nodes}"], "it is a device and no regular"),
        (["--resume", "/none"], "--resume: /none can't be opened"),
        (["--resume", "NODES"], "is no file of `sickbay bisect`"),
        (["--resume", "NODES", "--nodes", "NODES"], "--nodes is in the file that is resumed"),
        (["--resume", "NODES", "--command", "a"], "--command is in the file that is resumed"),
        (["--nodes", "NODES", "--known-good", "a b"], "'a b': expected a node's name"),
        (["--nodes", "NODES", "--quarantine"], "stdin is no terminal; add --yes\n"),
        (["--nodes", "NODES", "--yes"], "--yes has no use without --quarantine"),
        (["--nodes", "NODES", "--domain-label", "a"], "--domain-label has no use without"),
        (["--resume", "/dev/zero"], "--resume: /dev/zero is no regular file"),
        (["--resume", "/dev/null"], "--resume: /dev/null is no regular file"),
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


@pytest.mark.parametrize("content", [b"gpu-1\ngpu-2", b"gpu-1", b'[1]\n{"a": 2}\nx', b"\xff\n\xff"])
async def test_a_file_that_is_none_of_a_search_is_refused_and_loses_no_byte(
    site: Site, content: bytes
) -> None:
    site.state.write_bytes(content)
    done = await in_process("bisect", "--resume", str(site.state))
    assert (done.code, "is no file of `sickbay bisect`" in done.err) == (2, True), done.err
    assert site.state.read_bytes() == content


async def test_a_file_above_the_bound_is_refused(site: Site) -> None:
    with site.state.open("wb") as file:
        file.truncate(64 * 2**20 + 1)
    done = await in_process("bisect", "--resume", str(site.state))
    assert (done.code, "has more than 64 MiB" in done.err) == (2, True), done.err
    assert site.state.stat().st_size == 64 * 2**20 + 1


_HEAD = {
    "sickbay_bisect": 1,
    "nodes": ["n0", "n1"],
    "command": ["true", "{nodes}"],
    "limit": 600.0,
    "parallel": 16,
    "known_good": ["n9"],
    "domains": {"n0": "rack-1"},
}
_TEST = {
    "test": 1,
    "nodes": ["n0", "n1"],
    "outcome": "passed",
    "code": 0,
    "seconds": 0.5,
    "message": "",
    "output": "",
}
_DAMAGES: dict[tuple[str, str], list[object]] = {
    ("head", "nodes"): ["n0n1", ["n0"], ["n0", "n0"], ["n0", "-x"], None],
    ("head", "command"): [[], "x", ["true"], ["a\0", "{nodes}"], [1]],
    ("head", "limit"): ["x", -1, 0, True, float("nan"), 1e12],
    ("head", "parallel"): ["q", 0, 1.5, True],
    ("head", "known_good"): [7, "n9", [1]],
    ("head", "domains"): [[], {"n7": "a"}, {"n0": 1}, {"n0": ""}],
    ("head", "more"): [1],
    ("test", "test"): ["1", 0, None, 1.0],
    ("test", "nodes"): [None, [1, 2], ["n0", "n7"], "n0n1", ["n0"]],
    ("test", "outcome"): ["maybe", None, []],
    ("test", "seconds"): ["x", -1],
    ("test", "code"): ["x"],
    ("test", "output"): [None],
}


def _file_of(head: object, *tests: object) -> bytes:
    lines = (json.dumps(one).encode() + b"\n" for one in (head, *tests))
    return b"".join(lines) + b'{"test": 2, "no'


async def _is_damaged(site: Site, content: bytes, *texts: str) -> None:
    site.state.write_bytes(content)
    done = await in_process("bisect", "--resume", str(site.state))
    assert done.code == 2, done.err
    for text in (f"--resume: {site.state} is damaged: ", "; expected ", *texts):
        assert text in done.err
    assert site.state.read_bytes() == content


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [(*key, value) for key, values in _DAMAGES.items() for value in values],
)
async def test_a_damaged_value_is_named_with_its_line_and_the_file_stays_as_it_is(
    site: Site, where: str, name: str, value: object
) -> None:
    if where == "head":
        await _is_damaged(site, _file_of({**_HEAD, name: value}), "line 1: ", name)
    else:
        await _is_damaged(site, _file_of(_HEAD, {**_TEST, name: value}), "line 2: ", name)


async def test_damaged_lines_are_named_and_the_file_stays_as_it_is(site: Site) -> None:
    for name in _TEST:
        rest = {key: value for key, value in _TEST.items() if key != name}
        await _is_damaged(site, _file_of(_HEAD, rest), f"line 2: {name} is missing")
    for name in [*_HEAD][1:]:
        rest = {key: value for key, value in _HEAD.items() if key != name}
        await _is_damaged(site, _file_of(rest), f"line 1: {name} is missing")
    await _is_damaged(site, _file_of(_HEAD, _TEST, _TEST), "line 3: test 1 is there twice")
    await _is_damaged(site, _file_of(_HEAD, [1]), "line 2: it is no object")
    await _is_damaged(site, json.dumps(_HEAD).encode() + b"\n\n", "line 2: it is no JSON")
    await _is_damaged(site, b"", "line 1: it is not whole")
    await _is_damaged(site, b'{"sickbay_bisect": 1, "no', "line 1: it is not whole")
    site.state.write_bytes(_file_of(_HEAD, _TEST))
    assert (await sickbay("bisect", "--resume", str(site.state))).code == 0


async def test_a_search_whose_program_is_gone_does_not_go_on(site: Site) -> None:
    content = _file_of({**_HEAD, "command": ["no-such", "{nodes}"]}, _TEST)
    site.state.write_bytes(content)
    done = await in_process("bisect", "--resume", str(site.state))
    assert (done.code, "--resume: there is no program no-such" in done.err) == (2, True)


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
    await asyncio.wait_for(process.communicate(), 300)


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
        assert not site.state.exists()
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
    site.state.unlink()
    again = await sickbay(*site.arguments(), *more)
    assert (again.code, "sickbay: --quarantine: gpu-00: " in again.err) == (1, True), again.err
