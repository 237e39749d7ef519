"""A gateway's page: what readers, people who act, and attackers get by it, on real listeners."""

import asyncio
import base64
import io
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from aggregator.access.client_certificate import CaCertificates, ClientCertificateAuthenticator
from aggregator.access.front_proxy import FrontProxyAuthenticator, ProxyHeaders
from aggregator.access.gate import AccessGate
from aggregator.access.identity import AccessRefused
from aggregator.access.static_tokens import StaticTokens
from aggregator.cli.client import Client
from aggregator.cli.errors import Unreached
from aggregator.composition.access import page_verifier
from aggregator.events import EventKind, Transition
from aggregator.ingest.identity import IdentityError, Refusal
from aggregator.leader.lease import Candidate
from aggregator.web import connections, gateway_page
from aggregator.web.access_guard import PageAccess
from aggregator.web.tls import Certificate
from tests.support.pki import Authority, KeyPair
from tests.support.present import present
from tests.support.waiting import PATIENCE, until
from tests.web.gateways import TOKEN, GatewayOf, gateway_of
from tests.web.support import NIGHT, Everyone, Hands, Served, running_clocks, serving, small_fleet

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
VIEWER, OPERATOR = "v" * 22, "o" * 22


async def verify(token: str) -> None:
    if token != TOKEN:
        raise AccessRefused(403, "invalid_replica_token", "this is no replica's token", "")


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(small_fleet(Hands()), running_clocks()) as running:
        yield running


@pytest.fixture
async def gateway(served: Served) -> AsyncIterator[GatewayOf]:
    async with gateway_of(served) as running:
        yield running


async def get(
    served: Served, url: str, headers: dict[str, str] | None = None
) -> tuple[int, str, dict[str, str]]:
    async with served.session.get(url, headers=headers, allow_redirects=False) as answer:
        return answer.status, await answer.text(), dict(answer.headers)


# -- what readers get ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/", "/nodes?sort=name&q=node%2D2", "/nodes/node-2", "/nodes/none", "/api/v1/fleet/none"],
)
async def test_an_answer_is_the_controllers(served: Served, gateway: GatewayOf, path: str) -> None:
    own, passed = await get(served, served.url + path), await get(served, gateway.url + path)
    assert own[0] == passed[0]
    assert own[1].count("node") == passed[1].count("node")
    for name in ("Content-Type", "Location", "Content-Security-Policy", "X-Frame-Options"):
        assert own[2].get(name) == passed[2].get(name)


async def test_compressed_answers_and_their_etags_go_through(
    served: Served, gateway: GatewayOf
) -> None:
    async with served.session.get(f"{gateway.url}/api/v1/openapi.json") as answer:
        assert answer.headers["Content-Encoding"] in {"gzip", "deflate"}
        assert "paths" in await answer.json()
    async with served.session.head(f"{gateway.url}/static/style.css") as answer:
        assert answer.status == 200
        assert await answer.read() == b""


async def test_events_come_as_they_happen(served: Served, gateway: GatewayOf) -> None:
    async with served.session.get(f"{gateway.url}/api/v1/stream") as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        await wait_for_line(stream, b"event: hello")
        served.feed.record_event(Transition(NIGHT, EventKind.HELD, "node-3", "node-3: held"))
        await wait_for_line(stream, b"event: transition")
    await until(lambda: served.feed.streams == 0)


async def wait_for_line(stream: aiohttp.ClientResponse, wanted: bytes) -> None:
    async with asyncio.timeout(PATIENCE):
        async for line in stream.content:
            if line.startswith(wanted):
                return
    raise AssertionError(f"the stream ended without {wanted!r}")


async def test_a_stream_ends_when_another_replica_is_the_controller(
    served: Served, gateway: GatewayOf
) -> None:
    async with served.session.get(f"{gateway.url}/api/v1/stream") as stream:
        await wait_for_line(stream, b"event: hello")
        gateway.name_controller(Candidate("sickbay-aggregator-2", "e2", page="http://127.0.0.1:1"))
        with pytest.raises(aiohttp.ClientError):  # not an end that looks like a whole answer
            async with asyncio.timeout(PATIENCE):
                await stream.read()


async def test_an_open_stream_does_not_delay_the_end_of_the_gateway(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is closed when this replica becomes the controller, which serves the same address."""
    monkeypatch.setattr(connections, "_GRACE", 2 * PATIENCE)
    async with (
        gateway_of(served) as gateway,
        served.session.get(f"{gateway.url}/api/v1/stream") as stream,
    ):
        await wait_for_line(stream, b"event: hello")
        async with asyncio.timeout(PATIENCE):
            await gateway.page.close()


async def test_an_end_in_the_middle_of_an_answer_is_no_whole_answer(served: Served) -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half of it")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with played(half) as url, gateway_of(url) as gateway:
        with pytest.raises(aiohttp.ClientError):
            await get(served, f"{gateway.url}/api/v1/fleet")


@asynccontextmanager
async def played(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    """A controller that answers each request by ``handler``."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


# -- no controller ---------------------------------------------------------------------------------


async def test_without_a_controller_the_page_says_why_and_who_was_the_last(
    served: Served, gateway: GatewayOf
) -> None:
    gateway.controller = Candidate("sickbay-aggregator-2", "e2", page="http://127.0.0.1:1")
    gateway.problems = ["the <API> server does not answer"]
    status, text, headers = await get(served, f"{gateway.url}/nodes")
    assert (status, headers["Retry-After"]) == (503, "2")
    assert "sickbay-aggregator-2 renewed the Lease last, 12 s ago" in text
    assert "Whether sickbay-aggregator-2 acts is not known here" in text
    assert "7 are connected to sickbay-aggregator-1" in text
    assert "the &lt;API&gt; server does not answer" in text
    assert headers["X-Frame-Options"] == "DENY"
    status, text, headers = await get(served, f"{gateway.url}/api/v1/fleet")
    problem = json.loads(text)
    assert (status, problem["error"]) == (503, "no controller")
    assert "does not answer: " in problem["hint"]


async def test_a_command_without_a_controller_may_read_the_cluster_itself(
    gateway: GatewayOf,
) -> None:
    gateway.name_controller(None)
    client = Client(gateway.url, timeout=PATIENCE)
    with pytest.raises(Unreached, match=r"^no controller\n  No controller can be reached: "):
        await asyncio.to_thread(client.get, "quarantines")


async def test_before_any_renewal_was_seen_the_page_says_that(
    served: Served, gateway: GatewayOf
) -> None:
    gateway.controller = None
    _, text, _ = await get(served, gateway.url)
    assert "The last renewal of the Lease was seen 12 s ago. Nothing is acted on" in text
    gateway.ago = None
    _, text, _ = await get(served, gateway.url)
    assert "no holder of the Lease is known here" in text
    assert "sickbay-aggregator-1 has seen no renewal of the Lease in" in text


async def test_a_controller_that_hangs_is_left(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_page, "_BEGINS_WITHIN", 0.2)

    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError

    async with played(hang) as url, gateway_of(url) as gateway:
        status, text, _ = await get(served, f"{gateway.url}/api/v1/fleet")
        assert status == 503
        assert "no answer in time" in text


async def test_an_action_that_got_no_answer_may_have_been_carried_out(
    served: Served, gateway: GatewayOf
) -> None:
    async def vanish(request: web.Request) -> web.StreamResponse:
        present(request.transport).abort()
        return web.Response()

    doubt = "This request may have been carried out"

    async def texts(url: str) -> list[bool]:
        found = []
        for method in ("GET", "POST"):
            async with served.session.request(method, f"{url}/api/v1/stop") as answer:
                assert answer.status == 503
                found.append(doubt in await answer.text())
        return found

    async with played(vanish) as url, gateway_of(url) as unlucky:
        assert await texts(unlucky.url) == [False, True]
    gateway.controller = Candidate("r0", "e2", page="http://127.0.0.1:1")  # no connection
    assert await texts(gateway.url) == [False, False]


async def test_a_reader_that_takes_nothing_holds_no_answer_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_page, "_PAUSE", 0.2)

    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65_536)

    async with played(flood) as url, gateway_of(url) as gateway:
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1)
        writer.write(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: len(gateway.page._open) == 1)
        await until(lambda: not gateway.page._open)
        writer.close()
        del reader


async def test_a_controller_without_an_address_is_named_with_the_missing_key(
    served: Served, gateway: GatewayOf
) -> None:
    gateway.controller = Candidate("laptop", "e2")
    status, text, _ = await get(served, gateway.url)
    assert status == 503
    assert "laptop is the controller, and its configuration has no section replicas" in text


async def test_no_token_leaves_by_plaintext_for_another_machine(
    served: Served, gateway: GatewayOf
) -> None:
    gateway.controller = Candidate("r0", "e2", page="http://replica-0.example:8080")
    status, text, _ = await get(served, gateway.url)
    assert status == 503
    assert "without TLS, and is not on this machine" in text


async def test_two_gateways_that_name_each_other_pass_nothing_on_for_ever(served: Served) -> None:
    async with gateway_of("http://127.0.0.1:1") as one, gateway_of(one.url) as other:
        one.controller = Candidate("other", "e2", page=other.url)
        status, text, _ = await get(served, one.url)
        assert status == 503
        assert "is not the controller" in text


async def test_a_replica_without_its_token_says_so(served: Served, gateway: GatewayOf) -> None:
    gateway.token = ""
    status, text, _ = await get(served, f"{gateway.url}/api/v1/fleet")
    assert status == 503
    assert "replicas.token_file: /token can't be read" in text


@pytest.mark.parametrize(
    ("refusal", "status"),
    [(Refusal.EXPIRED, 503), (Refusal.KEYS_UNAVAILABLE, 503), (Refusal.OTHER_ACCOUNT, 403)],
)
async def test_a_replica_that_cannot_prove_itself_now_refuses_no_reader_for_good(
    refusal: Refusal, status: int
) -> None:
    async def refuse(_: str) -> float:
        raise IdentityError(refusal, "so it is")

    with pytest.raises(AccessRefused, match="could not prove itself: so it is") as refused:
        await page_verifier(refuse)("a token")
    assert refused.value.status == status
    assert ("Try again later" in refused.value.hint) is (status == 503)


# -- its own ---------------------------------------------------------------------------------------


async def test_probes_and_metrics_are_the_gateways_own(served: Served, gateway: GatewayOf) -> None:
    gateway.controller = None
    assert (await get(served, f"{gateway.url}/healthz"))[0] == 200
    assert (await get(served, f"{gateway.url}/readyz"))[0] == 200
    gateway.problems = ["the relay hangs"]
    status, text, _ = await get(served, f"{gateway.url}/readyz")
    assert (status, text) == (503, "not ready:\n- the relay hangs\n")
    _, text, _ = await get(served, f"{gateway.url}/metrics")
    lines = text.splitlines()
    for line in (
        "sickbay_controller 0.0",
        "sickbay_relay_up 0.0",
        "sickbay_relay_dropped_total 3.0",
        "sickbay_replica_agents 7.0",
        "sickbay_ready 0.0",
        'sickbay_build_info{version="0.1.0"} 1.0',
        'sickbay_certificate_expires_timestamp_seconds{certificate="agents"} 1.5',
    ):
        assert line in lines
    assert "node-2" not in text


async def test_its_metrics_need_the_same_right_as_the_controllers(
    served: Served, gate: AccessGate
) -> None:
    async with gateway_of(served, access=PageAccess(gate)) as gateway:
        assert (await get(served, f"{gateway.url}/metrics"))[0] == 401
        headers = {"Authorization": f"Bearer {VIEWER}"}
        assert (await get(served, f"{gateway.url}/metrics", headers))[0] == 200


# -- who reads, and who acts -----------------------------------------------------------------------


@pytest.fixture
def gate(tmp_path: Path) -> AccessGate:
    file = tmp_path / "tokens"
    file.write_text(f"{VIEWER},dashboards,viewer\n{OPERATOR},hall-2,operator\n")
    tokens = StaticTokens(file)
    return AccessGate([tokens], tokens, anonymous=False, actions=True)


async def test_the_controller_authenticates_each_reader(gate: AccessGate) -> None:
    access = PageAccess(gate, verify_replica=verify)
    async with (
        serving(small_fleet(Hands()), running_clocks(), access=access) as served,
        gateway_of(served) as gateway,
    ):
        url = f"{gateway.url}/nodes/node-2"
        status, text, _ = await get(served, url)
        assert (status, "node-3" in text) == (401, False)
        assert (await get(served, url, {"Authorization": f"Bearer {VIEWER}"}))[0] == 200
        assert (await get(served, url, {"Authorization": f"Bearer {'x' * 22}"}))[0] == 401
        assert (await get(served, url, {"Cookie": f"sickbay-token={VIEWER}"}))[0] == 200


async def test_no_reader_gets_the_cookie_of_another(gate: AccessGate) -> None:
    access = PageAccess(gate, verify_replica=verify)
    async with (
        serving(small_fleet(Hands()), running_clocks(), access=access) as served,
        gateway_of(served) as gateway,
    ):
        # A cookie jar keeps no cookies of addresses, only of names.
        gateway.controller = Candidate(
            "r0", "e1", page=served.url.replace("127.0.0.1", "localhost")
        )
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as first:
            form = {"token": VIEWER, "next": "/"}
            async with first.post(
                f"{gateway.url}/login", data=form, allow_redirects=False
            ) as answer:
                assert VIEWER in answer.headers["Set-Cookie"]
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as second,
            second.get(f"{gateway.url}/api/v1/fleet") as answer,
        ):
            assert answer.status == 401


async def test_a_form_of_this_site_is_not_taken_for_another_sites(gate: AccessGate) -> None:
    """Browsers send Origin alone by plain HTTP: it is compared with the name that they used."""
    access = PageAccess(gate, verify_replica=verify)
    async with (
        serving(small_fleet(Hands()), running_clocks(), access=access) as served,
        gateway_of(served) as gateway,
    ):
        for origin, wanted in ((gateway.url, 303), ("http://evil.example", 403)):
            async with served.session.post(
                f"{gateway.url}/login",
                data={"token": VIEWER, "next": "/"},
                headers={"Origin": origin},
                allow_redirects=False,
            ) as answer:
                assert answer.status == wanted


@dataclass
class TlsPair:
    """A controller and a gateway with TLS, which take certificates of people and of a proxy."""

    served: Served
    gateway: GatewayOf
    authority: Path
    pairs: dict[str, KeyPair]
    authorizer: Everyone

    async def ask(self, url: str, who: str = "", **headers: str) -> int:
        context = ssl.create_default_context(cafile=str(self.authority))
        if who:
            context.load_cert_chain(self.pairs[who].certificate, self.pairs[who].key)
        async with self.served.session.get(
            f"{url}/api/v1/fleet", ssl=context, headers=headers
        ) as answer:
            return answer.status


@pytest.fixture
async def tls(tmp_path: Path) -> AsyncIterator[TlsPair]:
    site, people = Authority.create(tmp_path / "site"), Authority.create(tmp_path / "people")
    proxies = Authority.create(tmp_path / "proxies")
    own = site.server("page", ["127.0.0.1"])
    certificate = Certificate(
        own.certificate,
        own.key,
        wall=lambda: 0.0,
        client_authorities=(people.certificate, proxies.certificate),
    )
    authorizer = Everyone()
    named = ProxyHeaders("X-Remote-User", "X-Remote-Group")
    proxy = FrontProxyAuthenticator(
        CaCertificates(proxies.certificate), names=("login",), headers=named, wall=lambda: 0.0
    )
    person = ClientCertificateAuthenticator(CaCertificates(people.certificate), wall=lambda: 0.0)
    gate = AccessGate([proxy, person], authorizer, anonymous=False)
    pairs = {
        "alice": people.user("alice", "alice", ["oncall"]),
        "proxy": proxies.user("proxy", "login", []),
    }
    access = PageAccess(gate, verify_replica=verify)
    async with (
        serving(
            small_fleet(Hands()), running_clocks(), ssl=certificate.context, access=access
        ) as served,
        gateway_of(served, ssl=certificate.context, ca_file=site.certificate) as gateway,
    ):
        yield TlsPair(served, gateway, site.certificate, pairs, authorizer)


async def test_a_certificate_and_a_proxys_headers_count_through_a_gateway(tls: TlsPair) -> None:
    bob = {"X-Remote-User": "bob", "X-Remote-Group": "oncall"}
    for who, headers, name in (("alice", {}, "alice"), ("proxy", bob, "bob")):
        assert await tls.ask(tls.gateway.url, who, **headers) == 200
        assert tls.authorizer.last is not None
        assert tls.authorizer.last.name == name
    assert await tls.ask(tls.gateway.url) == 401
    # The headers of a client that is not the proxy are a forgery.
    assert await tls.ask(tls.gateway.url, "alice", **bob) == 401


async def test_a_certificate_in_a_header_is_none_without_a_replicas_token(tls: TlsPair) -> None:
    der = ssl.PEM_cert_to_DER_cert(tls.pairs["alice"].certificate.read_text())
    forged = {"X-Sickbay-Client-Certificate": base64.b64encode(der).decode()}
    assert await tls.ask(tls.served.url, **forged) == 401
    assert await tls.ask(tls.gateway.url, **forged) == 401
    assert await tls.ask(tls.served.url, **forged, **{"X-Sickbay-Replica": "forged"}) == 403
    assert await tls.ask(tls.served.url, **forged, **{"X-Sickbay-Replica": TOKEN}) == 200


async def test_a_controller_with_a_strange_certificate_gets_no_request(
    tls: TlsPair, tmp_path: Path
) -> None:
    strange = Authority.create(tmp_path / "strange")
    async with (
        gateway_of(tls.served, ca_file=strange.certificate) as gateway,
        tls.served.session.get(f"{gateway.url}/api/v1/fleet") as answer,
    ):
        assert answer.status == 503
        assert "certificate" in (await answer.json())["hint"]
    assert tls.authorizer.last is None


async def test_an_authority_that_rotates_is_read_again(tls: TlsPair, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    strange = Authority.create(tmp_path / "strange")
    file.write_bytes(strange.certificate.read_bytes())
    async with gateway_of(tls.served, ca_file=file) as gateway:
        url = f"{gateway.url}/api/v1/fleet"
        assert (await get(tls.served, url))[0] == 503
        file.write_bytes(tls.authority.read_bytes() + b"\n")
        assert (await get(tls.served, url))[0] == 401
        file.unlink()  # the earlier content counts
        assert (await get(tls.served, url))[0] == 401


# -- hostile requests ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", ["@evil.example/", "http://evil.example/x", "//evil.example/x", "evil", "*"]
)
async def test_no_target_makes_a_gateway_ask_another_host(served: Served, target: str) -> None:
    asked: list[str] = []

    async def note(request: web.Request) -> web.Response:
        asked.append(request.headers["Host"])
        return web.Response(text="ok")

    async with played(note) as url, gateway_of(url) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {target} HTTP/1.1\r\nHost: page\r\nConnection: close\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), 300)
        writer.close()
        status = answer.split()[1]
        assert status == b"400" or asked == ["page"]


async def test_a_body_that_is_too_long_is_refused(served: Served, gateway: GatewayOf) -> None:
    async with served.session.post(
        f"{gateway.url}/login", data=io.BytesIO(b"x" * (2 << 20))
    ) as answer:
        assert answer.status == 413


async def test_headers_of_a_connection_and_a_gateways_own_do_not_go_on(served: Served) -> None:
    seen: list[dict[str, str]] = []

    async def note(request: web.Request) -> web.Response:
        seen.append(dict(request.headers))
        return web.Response(text="ok", headers={"Keep-Alive": "timeout=1"})

    async with played(note) as url, gateway_of(url) as gateway:
        _, _, headers = await get(
            served, gateway.url, {"TE": "trailers", "X-Sickbay-Client-Address": "forged"}
        )
        assert "Keep-Alive" not in headers
    assert "TE" not in seen[0]
    assert seen[0]["X-Sickbay-Replica"] == TOKEN
    assert seen[0]["X-Sickbay-Client-Address"] == "127.0.0.1"
