"""slurmrestd: Debian's, which reads, and a newer one by its published OpenAPI document."""

import base64
import copy
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

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
from tests.support.slurm import Slurm, needs_rest, needs_slurm

DOCUMENTS = Path(__file__).parents[1] / "fixtures/slurm"
#: Documents of Slurm 24.11, which was tried, and 25.11.
PUBLISHED = ("v0.0.40", "v0.0.42", "v0.0.44")


def token_of(user: str, key: bytes, *, ends: float) -> str:
    """As `scontrol token` makes it (RFC 7519, HS256)."""
    parts = ({"alg": "HS256", "typ": "JWT"}, {"exp": int(ends), "iat": 1, "sun": user})
    text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
    return f"{text}.{_encoded(hmac.new(key, text.encode(), hashlib.sha256).digest())}"


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


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
    await rest.write_reason("w1", "sickbay: xid:48")
    assert slurm.shown("w1")["Reason"] == "sickbay: xid:48"
    await rest.undrain("w1")
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


class NewSlurm:
    """A server by the published document: a request that it does not allow fails the test."""

    def __init__(self, version: str) -> None:
        self.document = json.loads((DOCUMENTS / f"openapi-{version}.json").read_text())
        self.published = version
        self.versions = [version]
        self.nodes: dict[str, dict[str, Any]] = {
            name: {
                "name": name,
                "hostname": name,
                "address": f"{name}.example.test",
                "state": ["IDLE"],
                "reason": "",
                "reason_set_by_user": "",
                "reason_changed_at": {"set": True, "infinite": False, "number": 0},
                "boot_time": {"set": True, "infinite": False, "number": 17},
                "instance_id": "",
                "partitions": ["main"],
            }
            for name in expand("n[1-6]")
        }
        self.jobs: list[dict[str, Any]] = []
        self.error: Mapping[str, Any] | None = None
        self.status = 200
        self.token = token_of("ann", b"k", ends=2e9)
        self.wrong: list[str] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        return app

    async def answer(self, request: web.Request) -> web.Response:
        if request.headers.get("X-SLURM-USER-TOKEN") != self.token:
            return web.Response(status=401, text="Authentication failure")
        if request.path == "/openapi/v3":
            return web.json_response(self.described())
        path, version = request.path, request.path.split("/")[2]
        if version not in self.versions:
            return web.Response(status=404, text="Unable to find requested URL")
        named = next((one for one in self.nodes if path == f"/slurm/{version}/node/{one}"), "")
        route = path.replace(f"/{named}", "/{node_name}") if named else path
        method = self.document["paths"].get(route.replace(version, self.published), {})
        if request.method.lower() not in method and "/node/" not in path:
            self.wrong.append(f"{request.method} {path}")
        body = await request.json() if request.can_read_body else None
        if body is not None:
            self.check(body)
        answer: dict[str, Any] = {"errors": [self.error] if self.error else [], "warnings": []}
        if self.error is None and body is not None:
            self.update(self.nodes[named], body)
        elif self.error is None and path.endswith("/jobs/"):
            answer["jobs"] = self.jobs
        elif self.error is None and path.endswith("/diag/"):
            answer["statistics"] = {"req_time_start": {"set": True, "number": 5}}
        elif self.error is None and "/node" in path:
            nodes = [self.nodes[named]] if named else list(self.nodes.values())
            if "/node/" in path and not named:  # as Slurm 24.11
                text = f"Failure to query node {path.rpartition('/')[2]}"
                answer["errors"] = [{"error": "No error", "error_number": 0, "description": text}]
            answer["nodes"] = [] if answer["errors"] else nodes
        return web.json_response(answer, status=self.status)

    def described(self) -> dict[str, Any]:
        paths = self.document["paths"]
        return {
            "paths": {
                path.replace(self.published, version): copy.copy(paths[path])
                for version in self.versions
                for path in paths
            }
        }

    def check(self, body: Mapping[str, Any]) -> None:
        schemas = self.document["components"]["schemas"]
        known = schemas[f"{self.published}_update_node_msg"]["properties"]
        for key, value in body.items():
            found = known.get(key, {})
            found = schemas[found["$ref"].rpartition("/")[2]] if "$ref" in found else found
            kind = found.get("type")
            allowed = found.get("items", {}).get("enum", value)
            right = isinstance(value, list if kind == "array" else str)
            if kind is None or not right or not set(value) <= set(allowed):
                self.wrong.append(f"{key}: {value}")

    def update(self, node: dict[str, Any], body: Mapping[str, Any]) -> None:
        if "reason" in body:
            node["reason"], node["reason_set_by_user"] = body["reason"], "ann"
            node["reason_changed_at"] = {"set": True, "infinite": False, "number": 99}
        if "DRAIN" in body.get("state", ()):
            node["state"] = ["IDLE", "DRAIN"]
        if "UNDRAIN" in body.get("state", ()):
            node["state"], node["reason"] = ["IDLE"], ""


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
    await rest.write_reason("n1", "sickbay: y")
    await rest.undrain("n1")
    assert (await rest.read_nodes(["n1"]))[0].shown == "IDLE"
    assert (await rest.read_controller()).started == "5"
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
