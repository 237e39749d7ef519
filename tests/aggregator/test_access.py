"""The parts of access control: remembered reviews, certificates, proxies, static tokens."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from aggregator.access.client_certificate import CaCertificates, ClientCertificateAuthenticator
from aggregator.access.front_proxy import FrontProxyAuthenticator, ProxyHeaders
from aggregator.access.gate import METRICS, READ, AccessGate
from aggregator.access.identity import AccessRefused, RequestFacts, UserIdentity
from aggregator.access.review_budget import ADDRESS_BURST, ALLOWED_FOR, REFUSED_FOR
from aggregator.access.static_tokens import StaticTokens, StaticTokensError
from aggregator.access.subject_access_review import REFUSED_BURST, SubjectAccessAuthorizer
from aggregator.access.token_review import MAX_TOKEN, TokenReviewAuthenticator
from aggregator.cluster.port import Unreachable
from aggregator.cluster.users import Access, User
from aggregator.runtime.shared_answers import MOST, SharedAnswers
from tests.support.pki import Authority
from tests.support.present import present
from tests.support.text_files import text_file
from tests.support.waiting import until

ALICE = User("alice", ("oncall", "system:authenticated"))


@dataclass
class Reviews:
    """An API server: users by token, rights as (user, verb), and how often it was asked."""

    users: dict[str, User] = field(default_factory=lambda: {"good": ALICE})
    rights: set[tuple[str, str]] = field(default_factory=lambda: {("alice", "list")})
    away: bool = False
    asked: list[str] = field(default_factory=list)
    wait: asyncio.Event | None = None

    async def review_token(self, token: str, audiences: Sequence[str]) -> User | None:
        await self._answer(f"token {token} {','.join(audiences)}".strip())
        return self.users.get(token)

    async def review_access(self, user: User, access: Access) -> bool:
        await self._answer(f"{user.name} {access}")
        return (user.name, access.verb) in self.rights

    async def _answer(self, what: str) -> None:
        self.asked.append(what)
        if self.wait is not None:
            await self.wait.wait()
        if self.away:
            raise Unreachable("the API server at 10.0.0.1:443 is out of reach")


@dataclass
class Clock:
    time: float = 1000.0

    def now(self) -> float:
        return self.time


async def refusal(gate: AccessGate, facts: RequestFacts, *rights: Access) -> AccessRefused:
    with pytest.raises(AccessRefused) as raised:
        await gate.require(facts, *(rights or (READ,)))
    return raised.value


def gate_of(reviews: Reviews, clock: Clock, *, audiences: Sequence[str] = ()) -> AccessGate:
    tokens = TokenReviewAuthenticator(reviews, audiences=audiences, now=clock.now)
    return AccessGate([tokens], SubjectAccessAuthorizer(reviews, now=clock.now), anonymous=False)


# -- tokens and rights ----------------------------------------------------------------------


async def test_a_token_and_a_right_are_asked_for_once_until_the_answer_is_old() -> None:
    reviews, clock = Reviews(), Clock()
    gate = gate_of(reviews, clock)
    for _ in range(5):
        assert (await gate.require(RequestFacts(token="good"), READ)).name == "alice"
    asked = ["token good", "alice list quarantines.sickbay.dev"]
    assert reviews.asked == asked
    clock.time += ALLOWED_FOR - 1
    await gate.require(RequestFacts(token="good"), READ)
    assert reviews.asked == asked
    clock.time += 2
    await gate.require(RequestFacts(token="good"), READ)
    assert reviews.asked == asked * 2


async def test_a_token_that_has_ended_works_no_longer_than_its_answer_counts() -> None:
    reviews, clock = Reviews(), Clock()
    gate = gate_of(reviews, clock)
    await gate.require(RequestFacts(token="good"), READ)
    reviews.users.clear()
    clock.time += ALLOWED_FOR + 1
    refused = await refusal(gate, RequestFacts(token="good"))
    assert (refused.status, refused.reason) == (401, "invalid_token")


async def test_a_right_that_is_granted_works_after_seconds() -> None:
    reviews, clock = Reviews(rights=set()), Clock()
    gate = gate_of(reviews, clock)
    refused = await refusal(gate, RequestFacts(token="good"))
    assert (refused.status, refused.reason) == (403, "no_right")
    assert "list quarantines.sickbay.dev" in refused.error
    assert "--clusterrole=sickbay-viewer --user=alice" in refused.hint
    reviews.rights.add(("alice", "list"))
    await refusal(gate, RequestFacts(token="good"))
    clock.time += REFUSED_FOR + 1
    assert await gate.require(RequestFacts(token="good"), READ)


async def test_an_api_server_that_is_away_allows_nothing_new_and_is_asked_again() -> None:
    reviews, clock = Reviews(away=True), Clock()
    gate = gate_of(reviews, clock)
    refused = await refusal(gate, RequestFacts(token="good"))
    assert refused.status == 503
    assert "10.0.0.1" in refused.error
    reviews.away = False
    assert await gate.require(RequestFacts(token="good"), READ)
    reviews.away = True
    assert await gate.require(RequestFacts(token="good"), READ)
    assert (await refusal(gate, RequestFacts(token="another"))).status == 503
    clock.time += ALLOWED_FOR + 1
    assert (await refusal(gate, RequestFacts(token="good"))).status == 503


async def test_clients_that_come_together_share_a_review_and_one_that_goes_ends_it_for_none() -> (
    None
):
    reviews, clock = Reviews(wait=asyncio.Event()), Clock()
    assert reviews.wait is not None
    gate = gate_of(reviews, clock)
    callers = [
        asyncio.create_task(gate.require(RequestFacts(token="good"), READ)) for _ in range(20)
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    callers[0].cancel()
    reviews.wait.set()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(one) for one in found[1:]] == [UserIdentity] * 19
    assert reviews.asked.count("token good") == 1


@pytest.mark.parametrize("token", ["x" * (MAX_TOKEN + 1), "a\x00b", "tök"])
async def test_a_token_that_can_be_none_costs_the_api_server_nothing(token: str) -> None:
    reviews = Reviews()
    assert (await refusal(gate_of(reviews, Clock()), RequestFacts(token=token))).status == 401
    assert reviews.asked == []


async def test_an_address_that_tries_many_tokens_is_slowed_and_others_are_not() -> None:
    reviews, clock = Reviews(), Clock()
    gate = gate_of(reviews, clock)
    await gate.require(RequestFacts(token="good", address="10.0.0.9"), READ)
    kinds = [
        (await refusal(gate, RequestFacts(token=f"guess {n}", address="10.0.0.9"))).reason
        for n in range(int(ADDRESS_BURST) + 10)
    ]
    assert kinds.count("invalid_token") == ADDRESS_BURST - 1
    assert kinds[-1] == "too_many_tokens"
    assert await gate.require(RequestFacts(token="good", address="10.0.0.9"), READ)
    other = await refusal(gate, RequestFacts(token="wrong", address="10.0.0.10"))
    assert other.reason == "invalid_token"
    clock.time += 1
    again = await refusal(gate, RequestFacts(token="one more", address="10.0.0.9"))
    assert again.reason == "invalid_token"


async def test_readers_behind_one_address_are_reviewed_again_each_minute() -> None:
    """A proxy has all of them behind it, each with a token of their own."""
    tokens = [f"token {number}" for number in range(200)]
    reviews, clock = Reviews(users=dict.fromkeys(tokens, ALICE)), Clock()
    gate = gate_of(reviews, clock)
    for token in tokens:
        clock.time += 1
        await gate.require(RequestFacts(token=token, address="10.0.0.9"), READ)
    clock.time += ALLOWED_FOR
    for token in tokens:
        await gate.require(RequestFacts(token=token, address="10.0.0.9"), READ)
    assert sum(one.startswith("token ") for one in reviews.asked) == 2 * len(tokens)


async def test_audiences_are_asked_for() -> None:
    reviews = Reviews()
    gate = gate_of(reviews, Clock(), audiences=("sickbay-page",))
    await gate.require(RequestFacts(token="good"), READ)
    assert reviews.asked[0] == "token good sickbay-page"


async def test_the_memory_of_answers_is_bounded() -> None:
    cache: SharedAnswers[int] = SharedAnswers(Clock().now, lasts=lambda *_: 60.0)

    async def answer() -> int:
        return 1

    for number in range(MOST + 100):
        await cache.get(number, answer)
    assert len(cache) == MOST


async def test_a_remembered_answer_waits_for_no_other_that_is_made() -> None:
    cache: SharedAnswers[bool] = SharedAnswers(Clock().now, lasts=lambda *_: 60.0, at_once=1)
    done = asyncio.Event()
    done.set()
    await cache.get("remembered", done.wait)
    done.clear()
    slow = asyncio.create_task(cache.get("slow", done.wait))
    await asyncio.sleep(0)
    assert await asyncio.wait_for(cache.get("remembered", done.wait), 30)
    done.set()
    await slow


async def test_reviews_of_rights_that_a_user_lacks_to_many_nodes_are_bounded() -> None:
    reviews, clock = Reviews(rights={("alice", "get"), ("bob", "delete")}), Clock()
    authorizer = SubjectAccessAuthorizer(reviews, now=clock.now)

    async def allows(verb: str, node: str, user: User = ALICE) -> bool:
        access = Access(verb, "sickbay.dev", "quarantines", name=node)
        return await authorizer.allows(UserIdentity(user, "token"), access)

    many = [f"n-{number}" for number in range(int(REFUSED_BURST))]
    assert [await allows("get", one) for one in many] == [True] * len(many)
    assert [await allows("delete", one) for one in many] == [False] * len(many)
    before = len(reviews.asked)
    with pytest.raises(AccessRefused, match="too many rights"):
        await allows("delete", "another")
    assert len(reviews.asked) == before
    assert not await authorizer.allows(UserIdentity(ALICE, "token"), READ)
    assert await allows("delete", "another", User("bob"))
    clock.time += 1
    assert not await allows("delete", "another")
    clock.time += 60
    before, reviews.wait = len(reviews.asked), asyncio.Event()
    more = [allows("delete", f"m-{number}") for number in range(2 * len(many))]
    together = asyncio.gather(*more, return_exceptions=True)
    await until(lambda: len(reviews.asked) >= before + len(many))
    reviews.wait.set()
    assert (await together).count(False) == len(reviews.asked) - before == len(many)


async def test_one_of_several_rights_suffices() -> None:
    reviews = Reviews(rights={("alice", "get")})
    gate = gate_of(reviews, Clock())
    assert await gate.require(RequestFacts(token="good"), READ, METRICS)
    assert (await refusal(gate, RequestFacts(token="good"), READ)).status == 403


# -- certificates and proxies -------------------------------------------------------------------


def der(path: Path) -> bytes:
    return x509.load_pem_x509_certificate(path.read_bytes()).public_bytes(Encoding.DER)


@pytest.fixture
def people(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "people")


@pytest.fixture
def proxies(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "proxies")


def by_certificate(people: Authority, wall: float = 0.0) -> ClientCertificateAuthenticator:
    return ClientCertificateAuthenticator(CaCertificates(people.certificate), wall=lambda: wall)


def by_proxy(proxies: Authority) -> FrontProxyAuthenticator:
    return FrontProxyAuthenticator(
        CaCertificates(proxies.certificate),
        names=("login-proxy",),
        headers=ProxyHeaders("X-Remote-User", "X-Remote-Group"),
        wall=lambda: 0.0,
    )


def headers(certificate: bytes | None = None, **values: Sequence[str]) -> RequestFacts:
    named = {key.replace("_", "-"): found for key, found in values.items()}
    return RequestFacts(certificate=certificate, header=lambda name: named.get(name, ()))


async def test_a_certificate_names_its_user_and_groups(people: Authority) -> None:
    pair = people.user("a", "alice", ["oncall", "hall-2"])
    found = await by_certificate(people).authenticate(
        RequestFacts(certificate=der(pair.certificate))
    )
    assert found is not None
    assert found.user == User("alice", ("oncall", "hall-2", "system:authenticated"))
    assert found.ambient


async def test_a_certificate_of_another_authority_names_no_user(
    people: Authority, proxies: Authority
) -> None:
    pair = proxies.user("a", "alice", ["system:masters"])
    found = await by_certificate(people).authenticate(
        RequestFacts(certificate=der(pair.certificate))
    )
    assert found is None


async def test_a_connection_that_outlives_its_certificate_is_refused(people: Authority) -> None:
    pair = people.user("a", "alice", [])
    late = by_certificate(people, wall=4e9)
    with pytest.raises(AccessRefused, match="expired"):
        await late.authenticate(RequestFacts(certificate=der(pair.certificate)))


async def test_an_authority_that_is_exchanged_counts_at_once(
    people: Authority, proxies: Authority
) -> None:
    authenticator = by_certificate(people)
    pair = proxies.user("a", "alice", [])
    facts = RequestFacts(certificate=der(pair.certificate))
    assert await authenticator.authenticate(facts) is None
    fresh = people.certificate.with_name("fresh")
    fresh.write_bytes(proxies.certificate.read_bytes())
    fresh.replace(people.certificate)
    assert await authenticator.authenticate(facts) is not None


async def test_the_proxys_headers_name_user_and_groups(proxies: Authority) -> None:
    proxy = der(proxies.user("p", "login-proxy", []).certificate)
    facts = headers(proxy, X_Remote_User=["alice"], X_Remote_Group=["oncall,hall-2", "x"])
    found = present(await by_proxy(proxies).authenticate(facts))
    assert found.user == User("alice", ("oncall", "hall-2", "x", "system:authenticated"))


async def test_the_proxys_headers_are_refused_from_any_other_connection(
    people: Authority, proxies: Authority
) -> None:
    others = [
        None,
        b"no certificate",
        der(people.user("p", "login-proxy", []).certificate),
        der(proxies.user("q", "another-proxy", []).certificate),
    ]
    for certificate in others:
        for named in ({"X_Remote_User": ["admin"]}, {"X_Remote_Group": ["system:masters"]}):
            with pytest.raises(AccessRefused) as raised:
                await by_proxy(proxies).authenticate(headers(certificate, **named))
            assert (raised.value.status, raised.value.reason) == (401, "forged_proxy_header")


@pytest.mark.parametrize("users", [[], ["a", "b"], [""], ["x" * 300], ["system:admin"]])
async def test_a_proxy_names_one_ordinary_user(proxies: Authority, users: list[str]) -> None:
    proxy = der(proxies.user("p", "login-proxy", []).certificate)
    facts = headers(proxy, X_Remote_User=users, X_Remote_Group=["g"])
    with pytest.raises(AccessRefused, match="one user"):
        await by_proxy(proxies).authenticate(facts)


async def test_a_proxy_can_not_name_the_groups_of_kubernetes(proxies: Authority) -> None:
    proxy = der(proxies.user("p", "login-proxy", []).certificate)
    facts = headers(proxy, X_Remote_User=["alice"], X_Remote_Group=["system:masters", "oncall"])
    found = present(await by_proxy(proxies).authenticate(facts))
    assert found.user.groups == ("oncall", "system:authenticated")


async def test_without_headers_the_proxys_certificate_is_no_identity(proxies: Authority) -> None:
    proxy = der(proxies.user("p", "login-proxy", []).certificate)
    assert await by_proxy(proxies).authenticate(headers(proxy)) is None


# -- static tokens ---------------------------------------------------------------------------


VIEWER, OPERATOR = "v" * 22, "o" * 22


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    return text_file(
        tmp_path / "tokens",
        f"# of hall 2\n{VIEWER},dashboards,viewer\n\n{OPERATOR},hall-2,operator\n",
    )


async def test_a_viewer_reads_and_an_operator_acts(tokens_file: Path) -> None:
    tokens = StaticTokens(tokens_file)
    gate = AccessGate([tokens], tokens, anonymous=False, actions=True)
    release = Access("delete", "sickbay.dev", "quarantines", name="node-1")
    assert (await gate.require(RequestFacts(token=VIEWER), READ)).name == "dashboards"
    assert (await gate.require(RequestFacts(token=OPERATOR), release)).name == "hall-2"
    assert (await refusal(gate, RequestFacts(token=VIEWER), release)).status == 403
    for token in ("", "v" * 21, VIEWER.upper(), f"{VIEWER} "):
        assert (await refusal(gate, RequestFacts(token=token))).status == 401


async def test_a_changed_file_counts_at_once_and_a_broken_one_not_at_all(tokens_file: Path) -> None:
    tokens = StaticTokens(tokens_file)
    gate = AccessGate([tokens], tokens, anonymous=False)
    tokens_file.write_text("broken\n")  # noqa: ASYNC240 - a few bytes
    assert await gate.require(RequestFacts(token=VIEWER), READ)
    tokens_file.write_text(f"{OPERATOR},hall-2,operator\n")  # noqa: ASYNC240
    refused = await refusal(gate, RequestFacts(token=VIEWER))
    assert (refused.status, "access.tokens_file" in refused.error) == (401, True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "has no token"),
        ("short,a,viewer", ":1: the token is shorter"),
        (f"{VIEWER},a,admin", ":1: the line has another form; expected TOKEN,USER,ROLE"),
        (f"{VIEWER},,viewer", ":1: the line has another form; expected TOKEN,USER,ROLE"),
        (f"{VIEWER}", ":1: the line has another form; expected TOKEN,USER,ROLE"),
    ],
)
def test_a_file_that_can_not_be_used_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = text_file(tmp_path / "tokens", f"{line}\n")
    with pytest.raises(StaticTokensError) as raised:
        StaticTokens(file)
    assert said in str(raised.value)
    assert VIEWER not in str(raised.value)
