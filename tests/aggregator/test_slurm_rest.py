"""slurmrestd: Debian's, which reads, and a newer one by its published OpenAPI document."""

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from aggregator.cluster.port import (
    UNGUARDED,
    Guard,
    GuardRefused,
    NotFound,
    Refused,
    Unreachable,
)
from aggregator.cluster.slurm.client import SlurmPrograms
from aggregator.cluster.slurm.hostlist import expand
from aggregator.cluster.slurm.rest import SlurmRest
from tests.support.new_slurm import NewSlurm, token_of
from tests.support.slurm import NO_NAMES, REASONS, Slurm, needs_rest, needs_slurm

#: Documents of Slurm 24.11, which was tried, and 25.11.
PUBLISHED = ("v0.0.40", "v0.0.42", "v0.0.44")


# -- Debian's slurmrestd ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm"), silent=1, tokens=True) as found:
        yield found


@needs_slurm
@needs_rest
@pytest.mark.root
async def test_a_real_slurmrestd_reads_and_scontrol_writes_where_it_can_not(
    slurm: Slurm, tmp_path: Path
) -> None:
    file, programs = tmp_path / "token", SlurmPrograms(conf=str(slurm.conf))
    file.write_text(slurm.run("scontrol", "token", "username=root", "lifespan=600"))
    rest = SlurmRest(slurm.start_rest(), file, programs)
    assert await rest.read_nodes() == await programs.read_nodes()
    assert [one.name for one in await rest.read_nodes(["w1", "stranger"])] == ["w1"]
    assert rest.user == "root"
    job = slurm.submit("w1")
    await rest.drain("w1", "sickbay: xid:79", guard=UNGUARDED)
    [found] = await rest.read_nodes(["w1"])
    assert (found.has_drain, found.is_at_work, found.reason) == (True, True, "sickbay: xid:79")
    assert await rest.read_jobs("w1") == await programs.read_jobs("w1")
    assert [one.job_id for one in await rest.read_jobs("w1")] == [job]
    assert await rest.read_jobs("s1") == []
    assert int((await rest.read_controller()).started) > 0
    await rest.write_reason("w1", "sickbay: xid:48", guard=UNGUARDED)
    assert slurm.shown("w1")["Reason"] == "sickbay: xid:48"
    await rest.undrain("w1", guard=UNGUARDED)
    assert "DRAIN" not in slurm.state("w1")
    key = slurm.jwt_key.read_bytes()
    for token, why in (
        (
            token_of("root", b"x" * 32, ends=time.time() + 600),
            "does not accept the token .*ends at",
        ),
        (token_of("root", key, ends=time.time() - 60), "does not accept the token .*expired at"),
    ):
        file.write_text(token)
        with pytest.raises(Unreachable, match=why):
            await rest.read_nodes(["w1"])
    for text in ("", "no token", "a.b c.d"):
        file.write_text(text)
        with pytest.raises(Refused, match=r"has no token; expected the output of: scontrol token"):
            await rest.read_nodes(["w1"])
    file.write_text(token_of("root", key, ends=time.time() + 600))  # renewed
    assert len(await rest.read_nodes(["w1"])) == 1
    file.unlink()
    with pytest.raises(Refused, match="can't be read"):
        await rest.read_nodes(["w1"])


# -- a newer one -----------------------------------------------------------------------------


@pytest.fixture(params=PUBLISHED)
async def new(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[NewSlurm, SlurmRest]]:
    server = NewSlurm(request.param)
    runner = web.AppRunner(server.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    (tmp_path / "token").write_text(f"SLURM_JWT={server.token}\n")
    programs = SlurmPrograms(folder="/nonexistent")
    yield server, SlurmRest(f"http://{host}:{port}", tmp_path / "token", programs, limit=60.0)
    assert server.wrong == []
    await runner.cleanup()


async def test_a_newer_slurmrestd_is_read_and_written_by_its_document(
    new: tuple[NewSlurm, SlurmRest],
) -> None:
    server, rest = new
    assert len(await rest.read_nodes()) == 6
    assert [one.name for one in await rest.read_nodes(["n1", "stranger"])] == ["n1"]
    assert len(await rest.read_nodes(expand("n[1-5]"))) == 5
    await rest.drain("n1", "sickbay: x", guard=UNGUARDED)
    [found] = await rest.read_nodes(["n1"])
    assert (found.shown, found.reason, found.reason_user) == ("IDLE+DRAIN", "sickbay: x", "ann")
    assert (rest.user, found.reason_at) == ("ann", 99)
    await rest.write_reason("n1", "sickbay: y", guard=UNGUARDED)
    await rest.undrain("n1", guard=UNGUARDED)
    assert (await rest.read_nodes(["n1"]))[0].shown == "IDLE"
    assert (await rest.read_controller()).started == "40000"
    server.started = 3 * 86_400 + 1  # its statistics began anew at midnight
    assert not (await rest.read_controller()).started
    server.jobs = [
        {
            "job_id": 7,
            "name": "llama",
            "user_name": "ann",
            "account": "vision",
            "partition": "main",
            "job_state": ["RUNNING", "COMPLETING"],
            "nodes": "n[1-3],n6",
            "end_time": {"set": True, "infinite": False, "number": 1_795_887_654},
            "tres_per_node": "gres/gpu:8",
        },
        {"job_id": 8, "job_state": ["PENDING"], "nodes": ""},
        {"job_id": 9, "job_state": ["RUNNING"], "nodes": "n[4-5]"},
    ]
    [job] = await rest.read_jobs("n3")
    assert (job.job_id, job.state, job.gpus, job.ends_at) == ("7", "COMPLETING", 8, 1_795_887_654)


async def test_hostile_text_is_read_as_it_is_and_no_name_is_an_option(
    new: tuple[NewSlurm, SlurmRest],
) -> None:
    server, rest = new
    for reason in REASONS:
        server.nodes["n1"]["reason"] = reason
        assert (await rest.read_nodes(["n1"]))[0].reason == reason
        assert (await rest.read_nodes())[0].reason == reason
        await rest.write_reason("n1", reason, guard=UNGUARDED)
        assert server.nodes["n1"]["reason"] == reason
    server.nodes["n2"]["partitions"] = ["--all", "ALL"]
    assert (await rest.read_nodes(["n2"]))[0].partitions == ("--all", "ALL")
    line = "7|RUNNING|root|all|main|0|N/A|b"
    server.jobs = [
        {"job_id": 7, "job_state": ["RUNNING"], "nodes": "n1", "name": f"<b>\n{line}\x1b[31m"},
        {"job_id": 8, "job_state": ["RUNNING"], "nodes": "--all,ALL", "name": "n1"},
    ]
    assert [one.name for one in await rest.read_jobs("n1")] == [f"<b> {line}?[31m"]
    for name in NO_NAMES:
        with pytest.raises(Refused):
            await rest.read_nodes([name])
        with pytest.raises(Refused):
            await rest.drain(name, "sickbay: x", guard=UNGUARDED)
    assert all(one["state"] == ["IDLE"] for one in server.nodes.values())


async def test_the_newest_version_that_both_have_is_chosen_anew_when_the_server_changes(
    new: tuple[NewSlurm, SlurmRest],
) -> None:
    server, rest = new
    server.versions = ["v0.0.42", "v0.0.43", "v0.0.99"]
    await rest.read_nodes()
    assert rest._version == 43
    server.versions = ["v0.0.44", "v0.0.45"]
    await rest.read_nodes(["n1"])
    assert rest._version == 45
    server.versions = ["v0.0.99"]
    with pytest.raises(Refused, match=r"has the versions v0\.0\.99; expected one from v0\.0\.36"):
        await rest.read_nodes()


@pytest.mark.parametrize(
    ("status", "error", "kind", "text"),
    [
        (200, "Access/permission denied", Refused, "user ann needs AdminLevel Operator"),
        (500, "Invalid node name specified", NotFound, "Invalid node name"),
        (200, "Zero Bytes were transmitted or received", Unreachable, "Zero Bytes"),
        (429, "Rate limit exceeded", Unreachable, "Rate limit"),
        (511, "Protocol authentication error", Refused, "does not accept the proof of user ann"),
        (502, "Unable to contact slurm controller (connect failure)", Unreachable, "Unable to con"),
    ],
)
async def test_an_error_is_found_inside_a_200_too_and_reported_with_the_next_step(
    new: tuple[NewSlurm, SlurmRest], status: int, error: str, kind: type[Exception], text: str
) -> None:
    server, rest = new
    await rest.read_nodes()
    server.status, server.error = status, {"error": error, "error_number": 1}
    with pytest.raises(kind, match=text):
        await rest.drain("n1", "sickbay: x", guard=UNGUARDED)


async def test_a_token_of_another_key_and_a_lost_place_change_nothing(
    new: tuple[NewSlurm, SlurmRest],
) -> None:
    async def refuse() -> None:
        raise GuardRefused("another controller acts")

    server, rest = new
    with pytest.raises(GuardRefused):
        await rest.drain("n1", "sickbay: x", guard=Guard(refuse))
    server.respond = lambda *_: (200, 100_000 * "[")  # type: ignore[method-assign]
    with pytest.raises(Unreachable, match=r"200 \[\["):
        await rest.read_nodes()
    del server.respond
    server.token = "renewed.by.slurm"
    with pytest.raises(Refused, match=r"401 Authentication failure; slurmctld does not accept"):
        await rest.drain("n1", "sickbay: x", guard=UNGUARDED)
    assert server.nodes["n1"]["reason"] == ""


@pytest.mark.parametrize(
    "text",
    [
        *("n[1", "n[a-b]", "n[1-3]]", "n[1-900000]", "a,,b", "n[]"),
        "n[0-9][0-9999][0-9999][0-9999]",
        "n" + "[1]" * 5000,
    ],
)
def test_text_that_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no host list|has more than"):
        expand(text)


def test_host_lists_keep_their_zeros_and_may_have_several_ranges() -> None:
    assert expand("r[1-2]n[08-10],x") == [
        *("r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10", "x"),
    ]
    assert expand("") == []
