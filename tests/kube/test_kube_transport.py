"""The transport against a server of the test's own: deadlines, pauses, rotated credentials."""

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.credentials import CredentialSources
from aggregator.cluster.kubernetes.errors import Failure
from aggregator.cluster.kubernetes.http_session import MOST_CONNECTIONS
from aggregator.cluster.kubernetes.limiter import Limiter, Priority
from aggregator.cluster.kubernetes.retry import TRIES
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.cluster.port import UNGUARDED, Guard, GuardRefused, Refused, Unreachable
from tests.controlplane.plane import ControlPlane
from tests.support.replica import Turned
from tests.support.waiting import PATIENCE, until

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def kubeconfig(path: Path, url: str, user: dict[str, object]) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))
    return path


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server:
        yield str(server.make_url("/")).rstrip("/")


@asynccontextmanager
async def transport_of(
    sources: CredentialSources,
    *,
    deadline: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Transport]:
    limiter = Limiter(qps=1000, burst=1000, clock=clock)
    transport = Transport(sources, limiter, clock=clock, rng=random.Random(1), deadline=deadline)
    try:
        await transport.open()
        yield transport
    finally:
        await transport.close()


def sources_of(folder: Path, url: str, **user: object) -> CredentialSources:
    path = kubeconfig(folder / "config", url, user or {"token": "t1"})
    return CredentialSources(str(path), "", {})


async def get(transport: Transport, lane: Priority = Priority.TAINT) -> bytes:
    return await transport.get("/api/v1/things", lane)


async def test_a_server_that_hangs_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    hang = asyncio.Event()

    async def handler(_: web.Request) -> web.Response:
        await hang.wait()
        return web.Response()

    async with serving(handler) as url:
        async with transport_of(sources_of(tmp_path, url), deadline=0.3) as transport:
            with pytest.raises(Unreachable, match=r"GET /api/v1/things: .* no answer in 0\.3 s"):
                await get(transport)
            assert transport.counters.answers["GET", "things", 0] == 1
            assert transport.counters.durations["GET", "things"].count == 1
        hang.set()


async def test_a_server_that_is_away_says_where_it_was_looked_for(tmp_path: Path) -> None:
    async with transport_of(sources_of(tmp_path, "http://127.0.0.1:9")) as transport:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9 is out of reach"):
            await get(transport)


async def test_a_busy_server_is_left_alone_for_as_long_as_it_asks_but_for_leases(
    tmp_path: Path,
) -> None:
    busy, clock = [True], Turned()

    async def handler(_: web.Request) -> web.Response:
        if busy[0]:
            return web.json_response(
                {"message": "too many requests"}, status=429, headers={"Retry-After": "1"}
            )
        return web.json_response({})

    async with (
        serving(handler) as url,
        transport_of(sources_of(tmp_path, url), clock=clock) as transport,
    ):
        with pytest.raises(Unreachable) as raised:
            await get(transport)
        assert raised.value.retry_after == 1.0
        busy[0] = False
        waits = asyncio.create_task(get(transport, Priority.RELEASE))
        await get(transport, Priority.LEASE)
        clock.time += 0.9
        await get(transport, Priority.LEASE)
        assert not waits.done()
        clock.time += 0.4  # with its jitter, the pause takes 1.25 s at most
        await waits
        assert transport.counters.throttled == 1


async def test_a_lease_waits_for_no_connection_while_requests_lists_and_releases_hang(
    tmp_path: Path,
) -> None:
    hang, hanging = asyncio.Event(), 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal hanging
        if request.path == "/api/v1/things":
            hanging += 1
            await hang.wait()
        return web.json_response({})

    async with serving(handler) as url, transport_of(sources_of(tmp_path, url)) as transport:
        lanes = [Priority.TAINT] * 32 + [Priority.READ] * 32 + [Priority.RELEASE] * 200
        asked = [asyncio.create_task(get(transport, lane)) for lane in lanes]
        await until(lambda: hanging == MOST_CONNECTIONS)
        async with asyncio.timeout(PATIENCE):
            await transport.get("/lease", Priority.LEASE)
        hang.set()
        await asyncio.gather(*asked)


async def test_a_server_that_fails_for_a_while_is_told_each_time_and_counted(
    tmp_path: Path,
) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=500, text="etcd is away")

    async with serving(handler) as url, transport_of(sources_of(tmp_path, url)) as transport:
        for _ in range(3):
            with pytest.raises(Unreachable, match="etcd is away"):
                await get(transport)
        assert transport.counters.answers["GET", "things", 500] == 3 * TRIES
        assert transport.counters.durations["GET", "things"].count == 3 * TRIES


async def test_a_read_whose_answer_is_lost_is_asked_again_and_a_write_is_not(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.method)
        if len(asked) == 1 or request.method == "POST":
            assert request.transport is not None
            request.transport.abort()
        return web.Response(text="{}")

    async with serving(handler) as url, transport_of(sources_of(tmp_path, url)) as transport:
        assert await get(transport) == b"{}"
        assert asked == ["GET", "GET"]
        with pytest.raises(Unreachable):
            await transport.request("POST", "/things", Priority.TAINT, body=b"{}", guard=UNGUARDED)
        assert asked == ["GET", "GET", "POST"]


async def test_a_reset_request_reopens_watches_but_for_those_that_were_read_lately(
    tmp_path: Path,
) -> None:
    """The request begins at 100 and finds its connection reset at 110."""
    now, read_at = [100.0], {"early": 101.0, "late": 109.0}
    watches: dict[str, web.StreamResponse] = {}
    done = {name: asyncio.Event() for name in read_at}
    ended: list[str] = []
    over = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        if name := request.query.get("name"):
            watches[name] = web.StreamResponse()
            await watches[name].prepare(request)
            await over.wait()
            return watches[name]
        for name, at in read_at.items():
            now[0] = at
            await watches[name].write(b"line")
            await done[name].wait()
        now[0] = 110.0
        reset(request)
        return web.json_response({})

    async def follow(transport: Transport, name: str) -> None:
        query = {"name": name}
        async with transport.stream("/w", query=query, accept="x") as stream:
            with contextlib.suppress(aiohttp.ClientError):
                while await stream.readany():
                    done[name].set()
        ended.append(name)

    async with (
        serving(handler) as url,
        transport_of(sources_of(tmp_path, url), deadline=60, clock=lambda: now[0]) as transport,
    ):
        tasks = [asyncio.create_task(follow(transport, name)) for name in read_at]
        await until(lambda: len(watches) == 2)
        with pytest.raises(Unreachable):
            await transport.request("POST", "/api/v1/things", Priority.TAINT, guard=UNGUARDED)
        await until(lambda: ended == ["early"])
        assert not tasks[1].done()
        over.set()
        await asyncio.gather(*tasks)


def reset(request: web.Request) -> None:
    """End the request's connection by RST, as a peer that knows nothing of it does."""
    assert request.transport is not None
    ours = request.transport.get_extra_info("socket")
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.transport.abort()


async def test_a_redirect_is_not_followed_with_our_credentials(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.path == "/api/v1/things"
        raise web.HTTPFound("/elsewhere")

    async with serving(handler) as url, transport_of(sources_of(tmp_path, url)) as transport:
        with pytest.raises(Refused):
            await get(transport)


async def test_one_connection_serves_request_after_request(tmp_path: Path) -> None:
    peers = set()

    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return web.json_response({})

    async with serving(handler) as url, transport_of(sources_of(tmp_path, url)) as transport:
        for _ in range(20):
            await get(transport)
        assert len(peers) == 1


async def test_a_rotated_token_is_read_again_and_the_request_goes_through(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    valid = ["old"]
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        known = request.headers["Authorization"] == f"Bearer {valid[0]}"
        return web.json_response({}, status=200 if known else 401)

    async with serving(handler) as url:
        sources = sources_of(tmp_path, url, tokenFile=str(token))
        async with transport_of(sources) as transport:
            await get(transport)
            valid[0] = "new"
            token.write_text("new")
            # All requests under way when it was rotated go through, on one reading.
            await asyncio.gather(*(get(transport) for _ in range(5)))
            assert seen.count("Bearer old") == 6
            valid[0] = "newer"
            with pytest.raises(Refused) as raised:  # the file still says "new"
                await get(transport)
            assert raised.value.status == 401


async def test_a_guard_is_asked_after_the_turn_and_what_it_refuses_is_not_sent(
    tmp_path: Path,
) -> None:
    came: list[str] = []
    busy, wanted = [True], [True]

    async def handler(request: web.Request) -> web.Response:
        came.append(request.method)
        if busy[0]:
            return web.json_response({}, status=429, headers={"Retry-After": "1"})
        return web.json_response({})

    async def guard() -> None:
        if not wanted[0]:
            raise GuardRefused("not wanted any more")

    async def post(transport: Transport) -> bytes:
        return await transport.request("POST", "/api/v1/things", Priority.TAINT, guard=Guard(guard))

    async with serving(handler) as url, transport_of(sources_of(tmp_path, url)) as transport:
        with pytest.raises(Unreachable):
            await get(transport)
        busy[0] = False
        came.clear()
        queued = asyncio.create_task(post(transport))  # behind the pause that was asked for
        await asyncio.sleep(0)
        wanted[0] = False
        with pytest.raises(GuardRefused):
            await queued
        assert came == []
        wanted[0] = True
        await post(transport)
        assert came == ["POST"]


async def test_a_guard_is_asked_again_before_a_request_is_sent_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    came: list[str] = []
    asked: list[int] = []

    async def handler(request: web.Request) -> web.Response:
        came.append(request.headers["Authorization"])
        (tmp_path / "token").write_text("new")
        return web.json_response({}, status=401)

    async def guard() -> None:
        asked.append(len(came))
        if came:
            raise GuardRefused("not wanted any more")

    async with serving(handler) as url:
        sources = sources_of(tmp_path, url, tokenFile=str(tmp_path / "token"))
        async with transport_of(sources) as transport:
            with pytest.raises(GuardRefused):
                await transport.try_request(
                    "DELETE", "/api/v1/things", Priority.EVICTION, guard=Guard(guard)
                )
    assert asked == [0, 1]
    assert came == ["Bearer old"]


async def test_a_tokens_file_may_end_with_a_line_break_as_kubectl_writes_it(tmp_path: Path) -> None:
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.json_response({})

    token = tmp_path / "token"
    async with serving(handler) as url:
        token.write_text("t1\n")
        async with transport_of(sources_of(tmp_path, url, tokenFile="token")) as transport:
            await get(transport)
        token.write_text("hunter2\nt1\n")
        async with transport_of(sources_of(tmp_path, url, tokenFile="token")) as transport:
            with pytest.raises(Unreachable, match="our token has a line break in it") as raised:
                await get(transport)
    assert seen == ["Bearer t1"]
    assert "hunter2" not in str(raised.value)


async def test_a_proxy_that_refuses_us_is_named_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        there = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        sources = sources_of(tmp_path, "https://127.0.0.1:9")
        for given in (f"http://me:hunter2@{there}", f"me:hunter2@{there}"):
            monkeypatch.setenv("HTTPS_PROXY", given)
            async with transport_of(sources) as transport:
                with pytest.raises(Unreachable) as raised:
                    await get(transport)
            told = "".join(traceback.format_exception(raised.value))
            assert f"the proxy {there} answered 407 Proxy Authentication Required" in told
            assert "hunter2" not in told


async def test_a_proxy_of_the_environment_that_is_no_address_is_refused_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://me:hunter2@proxy:70000")
    says = "HTTPS_PROXY can't be used; expected http://HOST:PORT"
    with pytest.raises(Refused, match=says) as raised:
        async with transport_of(sources_of(tmp_path, "https://127.0.0.1:9")):
            pass
    assert "hunter2" not in str(raised.value)


async def test_in_a_pod_its_own_service_account_is_used(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "ca.crt").write_bytes(control_plane.ca_file.read_bytes())
    token = tmp_path / "token"
    token.write_text(control_plane.token_for("default", "default", audience=None))
    environ = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(control_plane.port),
        "KUBECONFIG": "/nowhere",
    }
    sources = CredentialSources("", "", environ, service_account=tmp_path)
    async with transport_of(sources) as transport:
        answer = await transport.try_request(
            "GET", "/api/v1/secrets", Priority.TAINT, guard=UNGUARDED
        )
        assert isinstance(answer, Failure)
        assert "system:serviceaccount:default:default" in answer.message
    token.write_text("")
    with pytest.raises(Refused, match="service account"):
        async with transport_of(sources):
            pass


def sources_by_plugin(folder: Path, url: str) -> CredentialSources:
    """A user whose token comes of a plugin, and ends one day."""
    plugin = folder / "plugin"
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "from-plugin", "expirationTimestamp": "2999-01-01T00:00:00Z"},
    }
    plugin.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    plugin.chmod(0o755)
    call = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}
    return sources_of(folder, url, exec=call)


async def test_a_plugins_token_is_used(tmp_path: Path) -> None:
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({})

    async with (
        serving(handler) as url,
        transport_of(sources_by_plugin(tmp_path, url)) as transport,
    ):
        await get(transport)
    assert seen == ["Bearer from-plugin"]


async def test_connections_that_replace_dead_ones_alone_renew_the_credentials(
    tmp_path: Path,
) -> None:
    async def handler(request: web.Request) -> web.Response:
        reset(request)
        return web.json_response({})

    def renewing() -> list[asyncio.Task[object]]:
        return [one for one in asyncio.all_tasks() if one.get_name() == "kube-credentials"]

    async with (
        serving(handler) as url,
        transport_of(sources_by_plugin(tmp_path, url)) as transport,
    ):
        before = renewing()
        with pytest.raises(Unreachable):
            await transport.request("POST", "/api/v1/things", Priority.TAINT, guard=UNGUARDED)
        await until(lambda: len(before) == 1 and before[0].done())
        assert len(renewing()) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "can't be used"),
        ("[]", "can't be used"),
        ('{"clusters": [], "contexts": [], "users": [], "current-context": "x"}', "x"),
        ("current-context: x", "can't be used"),
    ],
)
async def test_a_broken_kubeconfig_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(Refused, match=says) as raised:
        async with transport_of(CredentialSources(str(path), "", {})):
            pass
    assert str(path) in str(raised.value)


async def test_a_missing_kubeconfig_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"set cluster\.kubeconfig"):
        async with transport_of(CredentialSources("", "", {"HOME": str(tmp_path)})):
            pass


async def test_a_context_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", {"token": "t"})
    with pytest.raises(Refused, match="prod"):
        async with transport_of(CredentialSources(str(path), "prod", {})):
            pass


@pytest.mark.parametrize(
    ("more", "says"), [({}, "process returned 1"), ({"args": "hunter2"}, "can't be used: ")]
)
async def test_a_failing_plugin_says_what_it_said(
    tmp_path: Path, more: dict[str, str], says: str
) -> None:
    call = {"apiVersion": "client.authentication.k8s.io/v1", "command": "false", **more}
    with pytest.raises(Refused, match=says) as raised:
        async with transport_of(sources_of(tmp_path, "http://127.0.0.1:1", exec=call)):
            pass
    assert "hunter2" not in str(raised.value)


async def test_a_plugin_without_a_command_is_refused_without_what_stands_beside_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the error nor the log quotes it."""
    call: dict[str, object] = {"apiVersion": "client.authentication.k8s.io/v1", "command": None}
    call["env"] = [{"name": "PASSWORD", "value": "hunter2"}]
    with pytest.raises(Refused, match="Expected key command in") as raised:
        async with transport_of(sources_of(tmp_path, "http://127.0.0.1:1", exec=call)):
            pass
    assert "hunter2" not in f"{raised.value} {caplog.text}"


async def test_a_query_and_a_body_arrive_as_they_were_meant(tmp_path: Path) -> None:
    got = {}

    async def handler(request: web.Request) -> web.Response:
        got["query"] = dict(request.query)
        got["type"] = {"type": request.headers["Content-Type"]}
        got["body"] = await request.json()
        return web.Response(body=b'{"a": 1}')

    async with serving(handler) as url, transport_of(sources_of(tmp_path, url)) as transport:
        body = await transport.request(
            "PATCH",
            "/api/v1/things",
            Priority.TAINT,
            query={"fieldSelector": "spec.nodeName=a&b"},
            body=b'{"x": "y"}',
            guard=UNGUARDED,
        )
    assert body == b'{"a": 1}'
    assert got["query"] == {"fieldSelector": "spec.nodeName=a&b"}
    assert got["type"] == {"type": "application/merge-patch+json"}
    assert got["body"] == {"x": "y"}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (paths.NODES, "nodes"),
        (f"{paths.node('n1')}/status", "nodes/status"),
        (paths.eviction("ml", "p1"), "pods/eviction"),
        (paths.pod("ml", "p1"), "pods"),
        (paths.PODS, "pods"),
        (paths.NAMESPACES, "namespaces"),
        (paths.record("sickbay"), "configmaps"),
        (paths.quarantine("n1"), "quarantines"),
        (paths.lease("sickbay", "sickbay"), "leases"),
        (paths.token("sickbay", "page"), "serviceaccounts/token"),
        (paths.ACCESS_REVIEWS, "selfsubjectaccessreviews"),
        (paths.api_group("batch"), "discovery"),
        (paths.api_version("v1"), "discovery"),
        ("/version", "discovery"),
    ],
)
def test_a_request_is_counted_by_the_kind_that_its_path_names(path: str, kind: str) -> None:
    assert paths.kind_of(path) == kind
