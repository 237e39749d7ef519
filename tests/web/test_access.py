"""Access control as clients of page, API and metrics meet it, on a real server."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from aggregator.access.client_certificate import CaCertificates, ClientCertificateAuthenticator
from aggregator.access.front_proxy import FrontProxyAuthenticator, ProxyHeaders
from aggregator.access.gate import AccessGate
from aggregator.access.identity import RequestFacts
from aggregator.access.static_tokens import StaticTokens
from aggregator.access.subject_access_review import SubjectAccessAuthorizer
from aggregator.access.token_review import TokenReviewAuthenticator
from aggregator.cluster.users import Access as Right
from aggregator.cluster.users import User
from aggregator.web import sse
from aggregator.web.access_guard import PageAccess
from aggregator.web.tls import Certificate
from tests.support.pki import Authority, KeyPair
from tests.support.rewritten_file import Rewritten
from tests.web.support import Everyone, Hands, Served, running_clocks, serving, small_fleet

VIEWER, OPERATOR = "v" * 22, "o" * 22
READS = ("/", "/nodes", "/nodes/node-2", "/api/v1/fleet", "/api/v1/openapi.json", "/metrics")
OPEN = ("/healthz", "/readyz", "/login", "/static/style.css", "/static/live.js")
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture
def gate(tmp_path: Path) -> AccessGate:
    file = tmp_path / "tokens"
    file.write_text(f"{VIEWER},dashboards,viewer\n{OPERATOR},hall-2,operator\n")
    tokens = StaticTokens(file)
    return AccessGate([tokens], tokens, anonymous=False)


@pytest.fixture
async def served(gate: AccessGate) -> AsyncIterator[Served]:
    async with serving(small_fleet(Hands()), Hands().clocks(), access=PageAccess(gate)) as running:
        yield running


async def test_a_file_of_tokens_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path,
) -> None:
    file = Rewritten(tmp_path / "tokens")
    file.write_text(f"{VIEWER},dashboards,viewer\n")
    file.later = f"{OPERATOR},hall-2,operator\n"
    found = await StaticTokens(file).authenticate(RequestFacts(token=OPERATOR))
    assert found is not None


def bears(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("path", READS)
async def test_reading_needs_a_token(served: Served, path: str) -> None:
    for headers in ({}, bears("x" * 22), {"Authorization": f"Basic {VIEWER}"}):
        status, text = await get(served, path, headers)
        assert status == 401
        assert "node-3" not in text
    assert await served.text(path, 200, **bears(VIEWER))


async def get(served: Served, path: str, headers: dict[str, str]) -> tuple[int, str]:
    async with served.session.get(served.url + path, headers=headers) as answer:
        return answer.status, await answer.text()


async def test_paths_that_are_none_are_not_told_to_strangers(served: Served) -> None:
    await served.text("/api/v1/none", 401)
    await served.text("/api/v1/none", 404, **bears(VIEWER))


@pytest.mark.parametrize("path", OPEN)
async def test_probes_and_the_log_in_are_open(served: Served, path: str) -> None:
    assert "node-2" not in await served.text(path)


async def test_a_refusal_says_what_to_do(served: Served) -> None:
    told = await served.json("/api/v1/fleet", 401)
    assert told["error"] == "you are not logged in"
    assert "kubectl create token" in told["hint"]
    assert (await served.text("/metrics", 401)).startswith("you are not logged in\n")
    async with served.session.get(f"{served.url}/api/v1/fleet") as answer:
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")


async def test_a_browser_gets_the_form_in_place_of_the_page(served: Served) -> None:
    text = await served.text("/nodes?q=gpu", 401)
    assert '<form method="post" action="/login">' in text
    assert 'name="next" value="/nodes?q=gpu"' in text


async def log_in(
    served: Served, token: str, path: str = "/nodes", **headers: str
) -> tuple[int, str, str]:
    """Status, Location and Set-Cookie."""
    async with served.session.post(
        f"{served.url}/login",
        data={"token": token, "next": path},
        headers=headers,
        allow_redirects=False,
    ) as answer:
        cookie = answer.headers.get("Set-Cookie", "")
        return answer.status, answer.headers.get("Location", ""), cookie


async def test_a_log_in_sets_a_cookie_that_opens_page_and_stream(served: Served) -> None:
    status, path, cookie = await log_in(served, f" {VIEWER}\n")
    assert (status, path) == (303, "/nodes")
    assert cookie == f"sickbay-token={VIEWER}; HttpOnly; Path=/; SameSite=Strict"
    own = {"Cookie": f"sickbay-token={VIEWER}"}
    assert "node-2" in (await get(served, "/", own))[1]
    async with served.session.get(f"{served.url}/api/v1/stream", headers=own) as stream:
        assert stream.status == 200
        assert await stream.content.readline() == b"retry: 1000\n"
    async with served.session.post(f"{served.url}/logout", allow_redirects=False) as answer:
        assert 'sickbay-token=""' in answer.headers["Set-Cookie"]


@pytest.mark.parametrize("token", ["", "x" * 22, "y" * 5000, "a\tb", "ü"])
async def test_a_log_in_with_another_token_sets_no_cookie(served: Served, token: str) -> None:
    status, _, cookie = await log_in(served, token)
    assert status in {400, 401}
    assert not cookie


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data; boundary=x", b"--y"),
        ("multipart/form-data", b""),
        ("application/x-www-form-urlencoded; charset=none", b"token=x"),
        ("application/x-www-form-urlencoded", b"token=\xff"),
        ("text/plain", b"token"),
    ],
)
async def test_a_log_in_that_is_no_form_is_refused(
    served: Served, kind: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"Content-Type": kind}
    async with served.session.post(f"{served.url}/login", data=body, headers=headers) as answer:
        assert answer.status in {400, 401}
    assert "a request failed" not in caplog.text


@pytest.mark.parametrize(
    "path", ["//evil.example", "https://evil.example", "/\\evil.example", "/login", "", "/\r\nX: y"]
)
async def test_a_log_in_leads_to_this_site_alone(served: Served, path: str) -> None:
    assert (await log_in(served, VIEWER, path))[1] == "/"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
async def test_another_site_can_log_nobody_in_or_out(
    served: Served, headers: dict[str, str]
) -> None:
    assert (await log_in(served, VIEWER, **headers))[0] == 403
    async with served.session.post(f"{served.url}/logout", headers=headers) as answer:
        assert answer.status == 403
    own = {"Origin": served.url}
    assert (await log_in(served, VIEWER, **own))[0] == 303


@pytest.mark.parametrize(("path", "taken"), [("/", 1), ("/?fragment=1", 0)])
async def test_a_cookie_that_has_ended_is_taken_back_with_the_form_that_a_person_sees(
    served: Served, path: str, taken: int
) -> None:
    async with served.session.get(
        f"{served.url}{path}", headers={"Cookie": f"sickbay-token={'x' * 22}"}
    ) as answer:
        assert answer.status == 401
        assert answer.headers.get("Set-Cookie", "").count('sickbay-token=""') == taken


async def test_a_link_of_another_site_is_asked_for_once_more(served: Served) -> None:
    again = '<meta http-equiv="refresh" content="0">'
    assert again in await served.text("/", 401, **{"Sec-Fetch-Site": "cross-site"})
    assert again not in await served.text("/", 401, **{"Sec-Fetch-Site": "same-origin"})


async def test_a_stream_ends_when_its_reader_may_read_no_more(
    gate: AccessGate, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "RECHECK", 0.0)
    monkeypatch.setattr(sse, "BEAT", 0.05)
    async with served.session.get(f"{served.url}/api/v1/stream", headers=bears(VIEWER)) as stream:
        assert await stream.content.readuntil(b"event: beat")
        (tmp_path / "tokens").write_text(f"{OPERATOR},hall-2,operator\n")
        await stream.content.read()


async def test_500_streams_of_readers_are_open_at_once_and_share_a_review() -> None:
    asked = list[str]()

    class Server:
        """Knows one token, and counts how often it is asked."""

        async def review_token(self, token: str, _: Sequence[str]) -> User | None:
            asked.append("token")
            return User("alice") if token == VIEWER else None

        async def review_access(self, user: User, _: Right) -> bool:
            asked.append("right")
            return user.name == "alice"

    clocks = running_clocks()
    tokens = TokenReviewAuthenticator(Server(), audiences=(), now=clocks.now)
    rights = SubjectAccessAuthorizer(Server(), now=clocks.now)
    gate = AccessGate([tokens], rights, anonymous=False)
    async with (
        serving(small_fleet(Hands()), clocks, access=PageAccess(gate)) as running,
        AsyncExitStack() as ending,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):

        async def stream() -> int:
            answer = await ending.enter_async_context(
                session.get(f"{running.url}/api/v1/stream", headers=bears(VIEWER))
            )
            await answer.content.readuntil(b"event: hello")
            return answer.status

        statuses = await asyncio.gather(*(stream() for _ in range(500)))
        assert statuses == [200] * 500
        status, _ = await get(running, "/api/v1/fleet", bears("x" * 22))
        assert status == 401
    assert sorted(asked) == ["right", "token", "token"]


async def test_with_anonymous_reading_a_wrong_token_changes_nothing(tmp_path: Path) -> None:
    async with serving(small_fleet(Hands()), Hands().clocks()) as running:
        for headers in (bears("x" * 22), {"X-Remote-User": "admin"}):
            assert "node-2" in (await get(running, "/", headers))[1]


# -- client certificates and the front proxy, by real TLS ------------------------------------------


Ask = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
async def tls(tmp_path: Path) -> AsyncIterator[tuple[Ask, Everyone]]:
    """A page with TLS that takes certificates of people and of a proxy."""
    site = Authority.create(tmp_path / "site")
    people = Authority.create(tmp_path / "people")
    proxies = Authority.create(tmp_path / "proxies")
    strangers = Authority.create(tmp_path / "strangers")
    own = site.server("page", ["127.0.0.1"])
    trusted = (people.certificate, proxies.certificate)
    certificate = Certificate(
        own.certificate, own.key, wall=lambda: 0.0, client_authorities=trusted
    )
    authorizer = Everyone()
    headers = ProxyHeaders("X-Remote-User", "X-Remote-Group")
    proxy = FrontProxyAuthenticator(
        CaCertificates(proxies.certificate), names=("login",), headers=headers, wall=lambda: 0.0
    )
    person = ClientCertificateAuthenticator(CaCertificates(people.certificate), wall=lambda: 0.0)
    gate = AccessGate([proxy, person], authorizer, anonymous=False)
    pairs = {
        "alice": people.user("alice", "alice", ["oncall"]),
        "proxy": proxies.user("proxy", "login", []),
        "person named like the proxy": people.user("login", "login", []),
        "stranger": strangers.user("stranger", "alice", ["system:masters"]),
    }
    async with serving(
        small_fleet(Hands()), Hands().clocks(), ssl=certificate.context, access=PageAccess(gate)
    ) as running:

        async def ask(who: str = "", **named: str) -> tuple[int, str]:
            pair: KeyPair | None = pairs.get(who)
            context = ssl.create_default_context(cafile=str(site.certificate))
            if pair is not None:
                context.load_cert_chain(pair.certificate, pair.key)
            async with running.session.get(
                f"{running.url}/api/v1/fleet", ssl=context, headers=named
            ) as answer:
                return answer.status, await answer.text()

        yield ask, authorizer


async def test_a_client_certificate_is_an_identity(tls: tuple[Ask, Everyone]) -> None:
    ask, authorizer = tls
    assert (await ask())[0] == 401
    assert (await ask("alice"))[0] == 200
    assert authorizer.last is not None
    assert (authorizer.last.name, authorizer.last.how) == ("alice", "certificate")


async def test_a_certificate_of_strangers_opens_no_connection(tls: tuple[Ask, Everyone]) -> None:
    ask, _ = tls
    with pytest.raises((aiohttp.ClientError, ConnectionError)):
        await ask("stranger")
    assert (await ask("alice"))[0] == 200


async def test_only_the_proxy_can_name_a_user(tls: tuple[Ask, Everyone]) -> None:
    ask, authorizer = tls
    named = {"X-Remote-User": "bob", "X-Remote-Group": "oncall"}
    assert (await ask("proxy", **named))[0] == 200
    assert authorizer.last is not None
    assert authorizer.last.user.name == "bob"
    authorizer.last = None
    for user in ("", "alice", "person named like the proxy"):
        status, text = await ask(user, **named)
        assert status == 401
        assert "front proxy" in text
    assert authorizer.last is None
    assert (await ask("proxy"))[0] == 401, "the proxy itself is no user"
