"""The log-in by OpenID Connect against a real provider on loopback."""

import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http.cookies import SimpleCookie
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import jwt
import pytest

from aggregator.access.gate import METRICS, READ, AccessGate
from aggregator.access.identity import RequestFacts
from aggregator.access.oidc_log_in import OidcLogIn
from aggregator.access.oidc_session import OidcRoles
from aggregator.access.static_tokens import StaticTokens
from aggregator.cluster.users import Access
from aggregator.composition.access import AccessSetupError, build_access, build_oidc
from aggregator.config.access import AccessConfig, OidcConfig
from aggregator.web.access_guard import PageAccess
from tests.support.present import present
from tests.web.gateways import gateway_of
from tests.web.oidc_issuer import CLIENT, SECRET, Issuer, Key, issuing
from tests.web.support import Hands, Served, serving, small_fleet

VIEWER = "v" * 22
HOSTILE = "<script>alert(1)</script>"


@dataclass
class Site:
    """A page with a log-in by OpenID Connect, its provider, and a browser without a window."""

    served: Served
    issuer: Issuer
    oidc: OidcLogIn
    hands: Hands
    secret: Path
    cookies: dict[str, str]
    set_cookies: list[str]

    async def get(self, path: str, **more: Any) -> tuple[int, str, str]:
        """Status, text and Location. ``path`` may be a whole address."""
        url = path if path.startswith("http") else self.served.url + path
        sent = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        headers = {"Cookie": sent} if sent else {}
        method = more.pop("method", "GET")
        async with self.served.session.request(
            method, url, headers=headers, allow_redirects=False, **more
        ) as answer:
            for line in answer.headers.getall("Set-Cookie", []):
                self.set_cookies.append(line)
                for name, found in SimpleCookie(line).items():
                    if found["max-age"] == "0":
                        self.cookies.pop(name, None)
                    else:
                        self.cookies[name] = found.value
            return answer.status, await answer.text(), answer.headers.get("Location", "")

    async def back(self, path: str = "/nodes") -> str:
        """Begin a log-in; the address by which the issuer sends the browser back."""
        status, _, url = await self.get(f"/login/oidc?next={path}")
        assert status == 303
        kept, self.cookies = self.cookies, {}  # another site gets no cookie of the page
        status, _, back = await self.get(url)
        assert status == 302
        self.cookies = kept
        return back

    async def log_in(self, path: str = "/nodes") -> tuple[int, str]:
        """The answer to the issuer's redirect."""
        status, text, _ = await self.get(await self.back(path))
        return status, text


@asynccontextmanager
async def site_of(folder: Path, algorithm: str = "ES256", **settings: Any) -> AsyncIterator[Site]:
    hands = Hands()
    secret, tokens = folder / "secret", folder / "tokens"
    secret.write_text(SECRET + "\n")
    tokens.write_text(f"{VIEWER},dashboards,viewer\n")
    static = StaticTokens(tokens)
    async with issuing(time.time, algorithm) as issuer:
        made: dict[str, Any] = {
            "issuer": issuer.url,
            "client_id": CLIENT,
            "client_secret_file": str(secret),
            "page": "http://localhost:8080",
            "viewers": ["everyone"],
            "operators": ["sre"],
        }
        config = OidcConfig.model_validate(made | settings)
        oidc = present(build_oidc(config, now=lambda: hands.now, wall=lambda: hands.wall))
        roles = OidcRoles(config.viewers, config.operators, static)
        gate = AccessGate([oidc.sessions, static], roles, anonymous=False)
        access = PageAccess(gate, oidc=oidc)
        async with serving(small_fleet(hands), hands.clocks(), access=access) as served:
            if config.page == "http://localhost:8080":
                oidc = at(oidc, served.url)
            yield Site(served, issuer, oidc, hands, secret, {}, [])


def at(oidc: OidcLogIn, url: str) -> OidcLogIn:
    """The same log-in of a page at this address, which is known only after the server's start."""
    provider = oidc._provider
    provider.settings = replace(provider.settings, page=url)
    return oidc


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with site_of(tmp_path) as made:
        yield made


async def test_a_person_logs_in_reads_and_logs_out(site: Site) -> None:
    status, text, _ = await site.get("/nodes?state=held")
    assert status == 401
    assert f"Log in with {urlsplit(site.issuer.url).netloc}" in text
    assert 'href="/login/oidc?next=/nodes%3Fstate%3Dheld"' in text
    assert 'name="token"' in text  # the other way goes on
    assert "Log out of this browser" not in text
    status, text = await site.log_in("/nodes?state=held")
    assert status == 200
    assert 'content="0; url=/nodes?state=held"' in text
    status, text, _ = await site.get("/nodes?state=held")
    assert status == 200
    assert "node-3" in text
    told = json.loads((await site.get("/api/v1/access"))[1])
    assert (told["user"], told["how"]) == ("oidc:ada@example.com", "oidc")
    assert "Log out of this browser" in (await site.get("/login"))[1]
    stolen = dict(site.cookies)
    status, _, where = await site.get("/logout", method="POST")
    assert (status, where, site.cookies) == (303, "/login", {})
    assert (await site.get("/"))[0] == 401
    site.cookies = stolen
    assert (await site.get("/"))[0] == 401  # logged out is logged out, with a copy of it too


async def test_the_cookies_are_for_this_site_and_no_script(site: Site) -> None:
    await site.log_in()
    begun, session = [line for line in site.set_cookies if "Max-Age=0" not in line]
    assert begun.startswith("sickbay-log-in=")
    assert "SameSite=Lax" in begun
    assert session.startswith("sickbay-session=")
    assert "SameSite=Strict" in session
    assert all("HttpOnly" in line and "Path=/" in line for line in (begun, session))
    assert any('sickbay-log-in=""' in line for line in site.set_cookies)  # used once
    payload = session.split("=", 1)[1].split(";")[0].split(".")[1]
    content = json.loads(base64.urlsafe_b64decode(payload + "=="))
    assert content["groups"] == ["everyone", "sre"]
    assert SECRET not in str(site.set_cookies)


async def test_behind_tls_the_cookies_are_secure_although_a_proxy_ends_it(tmp_path: Path) -> None:
    async with site_of(tmp_path, page="https://page.test") as site:
        _, _, url = await site.get("/login/oidc")
        assert parse_qs(urlsplit(url).query)["redirect_uri"] == [
            "https://page.test/login/oidc/callback"
        ]
        assert site.set_cookies[0].startswith("__Host-sickbay-log-in=")
        _, _, back = await site.get(url)
        status, _, _ = await site.get("/login/oidc/callback?" + urlsplit(back).query)
        assert status == 200
        assert all("Secure" in line for line in site.set_cookies)
        name = "__Host-sickbay-session"
        value = site.cookies[name]
        assert (await site.get("/"))[0] == 200
        # A name that a sibling host could set does not count.
        site.cookies = {"sickbay-session": value}
        assert (await site.get("/"))[0] == 401


@pytest.mark.parametrize(
    ("groups", "reads", "acts"),
    [
        (["everyone"], True, False),
        (["sre"], True, True),
        ("sre", True, True),
        ([], False, False),
        (None, False, False),
        (["SRE", "sre2", 7], False, False),
        ({"sre": True}, False, False),
    ],
)
async def test_groups_have_the_roles_that_the_configuration_gives_them(
    site: Site, groups: object, *, reads: bool, acts: bool
) -> None:
    site.issuer.claims["groups"] = groups
    status, text = await site.log_in()
    assert status == (200 if reads else 403)
    assert ((await site.get("/"))[0] == 200) is reads
    if not reads:
        assert "has a role here" in text
        assert "access.oidc.viewers" in text
        assert "sickbay-session" not in site.cookies
        return
    gate = present(site.served.web._guard_access._access.gate)
    identity = present(await gate.identify(RequestFacts(session=site.cookies["sickbay-session"])))
    assert identity.ambient  # so that an action needs the header of the page's own script
    assert await gate.allows(identity, READ, METRICS)
    assert await gate.allows(identity, Access("delete", "sickbay.dev", "quarantines")) is acts


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"aud": "another"}, "Audience doesn&#39;t match"),
        ({"aud": [CLIENT, "another"]}, "authorized party"),
        ({"azp": "another"}, "authorized party"),
        ({"iss": "https://evil.test"}, "Invalid issuer"),
        ({"nonce": "another"}, "nonce is not that of this log-in"),
        ({"nonce": None}, "nonce is not that of this log-in"),
        ({"nonce": "\ud800"}, "nonce is not that of this log-in"),
        ({"exp": None}, "missing the &#34;exp&#34; claim"),
        ({"exp": True}, "has expired"),
        ({"exp": float("inf")}, "is not valid"),
        ({"nbf": 4e9}, "not yet valid"),
        ({"email": None}, "claim email is None"),
        ({"email": "system:admin"}, "names a user of system:"),
        ({"email_verified": False}, "email address is not verified"),
        ({"email": HOSTILE * 20}, "expected a user&#39;s name"),
    ],
)
async def test_a_token_that_is_not_for_this_log_in_is_refused(
    site: Site, claims: dict[str, Any], says: str
) -> None:
    site.issuer.claims = claims
    status, text = await site.log_in()
    assert status == 401
    assert says in text
    assert "<script>" not in text
    assert "sickbay-session" not in site.cookies


@pytest.mark.parametrize(
    ("ahead", "works"), [(-370, False), (-270, True), (50, True), (900, False)]
)
async def test_clocks_may_differ_by_a_minute(site: Site, ahead: float, *, works: bool) -> None:
    site.issuer.wall = lambda: time.time() + ahead
    status, text = await site.log_in()
    assert status == (200 if works else 401)
    if not works:
        assert "the ID token is not valid" in text
        assert "the clocks of both" in text


async def test_an_answer_to_another_log_in_is_refused(site: Site) -> None:
    back = await site.back()
    query = urlsplit(back).query
    code = parse_qs(query)["code"][0]
    for changed in (f"code={code}&state=another", f"code={code}", query + "&iss=https://evil.test"):
        kept = dict(site.cookies)
        status, text, _ = await site.get("/login/oidc/callback?" + changed)
        assert status in (400, 401)
        assert "sickbay-session" not in site.cookies
        site.cookies = kept
    site.cookies = {}  # a link with somebody else's code, in a browser that began no log-in
    status, text, _ = await site.get(back)
    assert status == 400
    assert "not begun in this browser" in text


async def test_a_code_counts_once_and_a_log_in_ten_minutes(site: Site) -> None:
    back, kept = await site.back(), dict(site.cookies)
    assert (await site.get(back))[0] == 200
    site.cookies = kept
    status, text, _ = await site.get(back)
    assert status == 401
    assert "invalid_grant" in text
    back = await site.back()
    site.hands.advance(601)
    assert (await site.get(back))[0] == 400


@pytest.mark.parametrize("cookie", ["", "x", "a.b.c", "x" * 5000, "é", f"{HOSTILE}"])
async def test_a_forged_session_is_none(site: Site, cookie: str) -> None:
    site.cookies = {"sickbay-session": cookie}
    assert (await site.get("/"))[0] == 401
    for key, algorithm in (("x" * 32, "HS256"), ("", "none")):
        content = {"sub": "ada", "groups": ["sre"], "aud": "sickbay-session", "exp": 9e9}
        site.cookies = {"sickbay-session": jwt.encode(content, key, algorithm)}
        status, text, _ = await site.get("/")
        assert status == 401
        assert "Your log-in has ended" in text
        assert site.cookies == {}  # the browser forgets it, and the next try is a new one
    # The cookie of a log-in under way is no session.
    await site.back()
    site.cookies = {"sickbay-session": site.cookies["sickbay-log-in"]}
    assert (await site.get("/"))[0] == 401


async def test_a_session_ends_in_time_and_with_the_secret(site: Site) -> None:
    await site.log_in()
    site.hands.advance(3590)
    assert (await site.get("/"))[0] == 200
    kept = dict(site.cookies)
    site.secret.write_text("another secret")
    assert (await site.get("/"))[0] == 401
    site.secret.write_text(SECRET)
    site.cookies = kept
    assert (await site.get("/"))[0] == 200
    site.hands.advance(11)
    status, text, _ = await site.get("/")
    assert status == 401
    assert "Your log-in has ended" in text


async def test_a_group_that_lost_its_role_in_the_configuration_counts_no_more(
    tmp_path: Path,
) -> None:
    async with site_of(tmp_path) as site:
        await site.log_in()
        gate = present(site.served.web._guard_access._access.gate)
        assert (await site.get("/"))[0] == 200
        gate._authorizer = OidcRoles([], [], None)
        status, text, _ = await site.get("/")
        assert status == 403
        assert "access.oidc.operators" in text


async def test_the_issuers_keys_may_change(site: Site) -> None:
    assert (await site.log_in())[0] == 200
    site.hands.advance(20)
    site.issuer.rotate(Key.make("second"))
    assert (await site.log_in())[0] == 200
    # Tokens that name unknown keys don't make a request each.
    site.issuer.rotate(Key.make("third"))
    site.issuer.keys[0].published = False
    before = site.issuer.asked.count("/realms/a/jwks")
    for _ in range(3):
        status, text = await site.log_in()
        assert status == 401
    assert "not published" in text
    assert site.issuer.asked.count("/realms/a/jwks") == before


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256"])
async def test_usual_signatures_are_verified(tmp_path: Path, algorithm: str) -> None:
    async with site_of(tmp_path, algorithm) as site:
        assert (await site.log_in())[0] == 200
        forged = Key.make("first", algorithm)
        published = site.issuer.keys[0]
        site.issuer.keys = [forged, published]
        forged.published = False
        status, text = await site.log_in()
        assert status == 401
        assert "Signature verification failed" in text


async def test_a_token_without_a_signature_is_refused(site: Site) -> None:
    site.issuer.unsigned = True
    status, text = await site.log_in()
    assert status == 401
    assert "alg value is not allowed" in text


async def test_a_refusal_of_the_issuer_is_shown_as_text(site: Site) -> None:
    site.issuer.refusal = {"error": "access_denied", "error_description": HOSTILE}
    status, text = await site.log_in()
    assert status == 401
    assert "access_denied" in text
    assert "<script>" not in text


@pytest.mark.parametrize(
    ("path", "answer", "says"),
    [
        ("metadata", {"jwks_uri": "https://["}, "no usable jwks_uri"),
        ("metadata", {"token_endpoint": ["https://a.test"]}, "at `$.token_endpoint`"),
        ("jwks", {"keys": [{"kty": ["RSA"]}, {"kty": {}}, 3]}, "publishes no key"),
        ("jwks", {"keys": [{"kty": "oct"}]}, "publishes no key"),
    ],
)
async def test_an_answer_of_the_issuer_that_has_no_sense_is_named(
    site: Site, path: str, answer: dict[str, Any], says: str
) -> None:
    site.issuer.answers[path] = answer
    where = "/login/oidc" if path == "metadata" else await site.back()
    status, text, _ = await site.get(where)
    assert status == 503
    assert says in text


async def test_groups_that_fit_no_cookie_are_named(tmp_path: Path) -> None:
    """A browser would drop the cookie, and each log-in would lead to the next."""
    groups = [
        f"cn=gpu-operations-{number:03},ou=groups," + "dc=example," * 8 for number in range(40)
    ]
    async with site_of(tmp_path, viewers=groups) as site:
        site.issuer.claims = {"groups": groups}
        status, text = await site.log_in()
        assert status == 403
        assert "names of your 40 groups are too long for a cookie" in text
        assert "sickbay-session" not in site.cookies
        site.issuer.claims = {"groups": groups[:5]}
        assert (await site.log_in("/nodes?q=" + "%22" * 1900))[0] == 200
        assert (await site.get("/"))[0] == 200


@pytest.mark.parametrize("with_tokens", [False, True])
async def test_a_local_clusters_log_in_offers_only_what_it_has(
    site: Site, tmp_path: Path, *, with_tokens: bool
) -> None:
    settings = {
        "issuer": site.issuer.url,
        "client_id": CLIENT,
        "client_secret_file": str(site.secret),
        "page": "http://localhost:8080",
        "viewers": ["everyone"],
    }
    given = {"tokens_file": tmp_path / "tokens"} if with_tokens else {}
    config: Any = SimpleNamespace(
        access=AccessConfig.model_validate({"anonymous": False, "oidc": settings, **given})
    )
    cluster: Any = SimpleNamespace(capabilities=SimpleNamespace(access_reviews=None))
    hands = site.hands
    access = build_access(config, cluster, None, now=lambda: hands.now, wall=lambda: hands.wall)
    fleet = small_fleet(hands)
    fleet.how = " --local /srv/cluster.db"
    site.issuer.status = 502
    async with serving(fleet, hands.clocks(), access=access) as served:
        text = await served.text("/login")
        assert "Log in with" in text
        assert ('name="token"' in text) is with_tokens
        assert "Log out of this browser" not in text
        away = await served.text("/login/oidc", 503)
        assert "sickbay --local" in away
        assert "kubeconfig" not in away
        assert ("a token of access.tokens_file" in away) is with_tokens


async def test_while_the_issuer_is_away_other_log_ins_go_on(site: Site) -> None:
    await site.log_in()
    kept = dict(site.cookies)
    site.cookies = {}
    site.hands.advance(3599)  # its metadata counts an hour
    site.issuer.status = 502
    assert (await site.get("/login/oidc"))[0] == 303
    site.hands.advance(2)
    status, text, _ = await site.get("/login/oidc?next=/nodes")
    assert status == 503
    assert "can&#39;t be used now" in text
    assert "answers 502" in text
    assert "<script>" not in text
    assert 'name="next" value="/nodes"' in text
    bearer = {"Authorization": f"Bearer {VIEWER}"}
    async with site.served.session.get(f"{site.served.url}/nodes", headers=bearer) as answer:
        assert answer.status == 200
    site.cookies = kept
    assert (await site.get("/healthz"))[0] == 200
    # A visitor without a session can't have it requested at will.
    requests = len(site.issuer.asked)
    for _ in range(3):
        assert "answers 502" in (await site.get("/login/oidc"))[1]
    assert len(site.issuer.asked) == requests
    site.issuer.status = 200
    site.issuer.issuer = "https://evil.test"
    site.hands.advance(5)
    status, text, _ = await site.get("/login/oidc")
    assert status == 503
    assert "its metadata names the issuer" in text
    site.issuer.issuer = ""
    site.hands.advance(5)
    assert (await site.log_in())[0] == 200


async def test_a_log_in_goes_by_a_gateway_to_the_controller(site: Site) -> None:
    async with gateway_of(site.served) as gateway:
        at(site.oidc, gateway.url)
        _, _, url = await site.get(f"{gateway.url}/login/oidc?next=/nodes")
        _, _, back = await site.get(url)
        assert back.startswith(gateway.url)
        assert (await site.get(back))[0] == 200
        status, text, _ = await site.get(f"{gateway.url}/nodes")
        assert status == 200
        assert "node-3" in text


async def test_a_path_that_leads_elsewhere_is_not_returned_to(site: Site) -> None:
    for path in ("//evil.test", "https://evil.test", "/%5Cevil.test"):
        status, text = await site.log_in(path)
        assert status == 200
        assert 'url=/"' in text


async def test_a_secret_that_is_missing_is_named_at_the_start(tmp_path: Path) -> None:
    config = OidcConfig.model_validate(
        {
            "issuer": "https://idp.test",
            "client_id": CLIENT,
            "client_secret_file": str(tmp_path / "none"),
            "page": "https://page.test",
            "viewers": ["a"],
        }
    )
    with pytest.raises(AccessSetupError, match="client_secret_file"):
        build_oidc(config, now=lambda: 0.0, wall=lambda: 0.0)
    assert build_oidc(None, now=lambda: 0.0, wall=lambda: 0.0) is None


async def test_without_it_there_is_no_such_route() -> None:
    async with serving(small_fleet(Hands()), Hands().clocks()) as served:
        await served.text("/login/oidc", 404)
        assert "Log in with" not in await served.text("/login")
        async with aiohttp.ClientSession() as session, session.get(served.url) as answer:
            assert answer.status == 200
