"""Tokens are verified offline: their account, their node, and the cluster's key for them."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import jwt
import pytest

from aggregator.cluster.port import Unreachable
from aggregator.ingest.identity import LEEWAY, Caller, IdentityError, Refusal
from aggregator.ingest.jwks import MAX_AGE, MAX_INTERVAL, MIN_INTERVAL, JwksCache
from aggregator.ingest.tokens import MAX_TOKEN, TokenAuthenticator
from tests.support.pki import TokenIssuer, unsigned
from tests.support.waiting import until

RSA = TokenIssuer()
EC = TokenIssuer(algorithm="ES256", kid="key-ec")
STRANGER = TokenIssuer()  # the same kid, another key


@dataclass
class Cluster:
    """The API server's discovery, which a test can take away."""

    issuers: list[TokenIssuer]
    up: bool = True
    asked: int = 0
    now: float = 1000.0
    gate: asyncio.Event | None = None
    text: str | None = None
    issuer: str = field(default=RSA.issuer)

    async def fetch(self) -> tuple[str, str]:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        if not self.up:
            raise Unreachable("connection refused")
        first, *others = self.issuers
        return self.issuer, self.text or first.jwks(*others)

    def store(self, cache: Path) -> JwksCache:
        return JwksCache(self.fetch, cache, now=lambda: self.now)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "state" / "jwks.json"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster([RSA, EC])


def saved(cache: Path) -> Any:
    return json.loads(cache.read_text())


def stamp(cache: Path) -> tuple[int, int]:
    return cache.stat().st_mtime_ns, cache.stat().st_ino


def spoil(cache: Path, text: str) -> None:
    cache.parent.mkdir()
    cache.write_text(text)


def authenticator(store: JwksCache, **how: Any) -> TokenAuthenticator:
    return TokenAuthenticator(
        store,
        **{
            "audience": "sickbay",
            "service_account": "sickbay:sickbay-agent",
            "issuer": "",
            "now": time.time,
            **how,
        },
    )


@pytest.mark.parametrize("issuer", [RSA, EC], ids=["RS256", "ES256"])
async def test_our_agents_token_proves_its_node(
    cluster: Cluster, cache: Path, issuer: TokenIssuer
) -> None:
    verifier = authenticator(cluster.store(cache))
    claims = issuer.claims("node-7")
    identity = await verifier.verify(issuer.sign(claims))
    assert identity.node == "node-7"
    assert identity.node_uid == "uid-of-node-7"
    assert identity.pod_uid == "pod-on-node-7"
    assert identity.expires == claims["exp"]


def bound(**parts: Any) -> dict[str, Any]:
    sound = RSA.claims()["kubernetes.io"] | parts
    return {key: value for key, value in sound.items() if value is not None}


def token(**others: Any) -> str:
    """A sound token except for this; ``bound`` is its kubernetes.io claim."""
    if "bound" in others:
        others["kubernetes.io"] = others.pop("bound")
    return RSA.sign(RSA.claims(**others))


NO_UID = bound(node={"name": "x"})
NUMBERS = bound(node={"name": 1, "uid": 2})
OTHER_ACCOUNT, BAD, NO_NODE = Refusal.OTHER_ACCOUNT, Refusal.BAD_TOKEN, Refusal.NO_NODE

REFUSED: list[tuple[str, str, Refusal]] = [
    ("another account", token(account="tenant:default"), OTHER_ACCOUNT),
    ("another namespace", token(account="evil:sickbay-agent"), OTHER_ACCOUNT),
    ("no account", token(sub=None), BAD),
    ("another audience", token(audience="vault"), BAD),
    ("no audience", token(aud=None), BAD),
    ("another issuer", token(iss="https://elsewhere"), BAD),
    ("expired", token(expires_in=-60), Refusal.EXPIRED),
    ("not yet", token(nbf=int(time.time()) + 86_400), BAD),
    ("no expiry", token(exp=None), BAD),
    ("expiry no number", token(exp="never"), BAD),
    ("another key of that name", STRANGER.token(), BAD),
    ("an unknown key", TokenIssuer(kid="other").token(), BAD),
    ("not bound", token(bound=None), NO_NODE),
    ("bound to no node", token(bound=bound(node=None)), NO_NODE),
    ("bound to no pod", token(bound=bound(pod=None)), NO_NODE),
    ("a node without uid", token(bound=NO_UID), NO_NODE),
    ("a node that is no text", token(bound=NUMBERS), NO_NODE),
    ("unsigned", unsigned(RSA.claims(), RSA.kid), BAD),
    ("no token", "garbage", BAD),
    ("far too long", "a" * 20_000, BAD),
]


@pytest.mark.parametrize(
    ("forged", "why"), [(t, w) for _, t, w in REFUSED], ids=[name for name, _, _ in REFUSED]
)
async def test_no_other_token_does(
    cluster: Cluster, cache: Path, forged: str, why: Refusal
) -> None:
    with pytest.raises(IdentityError) as refused:
        await authenticator(cluster.store(cache)).verify(forged)
    assert refused.value.refusal is why
    assert forged not in str(refused.value)


async def test_a_public_key_is_never_taken_for_a_shared_secret(
    cluster: Cluster, cache: Path
) -> None:
    """The classic: HS256 with the published key as the secret, under its kid."""
    import hashlib
    import hmac

    signed = jwt.encode(RSA.claims(), "x" * 32, algorithm="HS256", headers={"kid": RSA.kid})
    head, body, _ = signed.split(".")
    secret = json.dumps(RSA.jwk()).encode()
    mac = hmac.new(secret, f"{head}.{body}".encode(), hashlib.sha256).digest()
    forged = f"{head}.{body}.{jwt.utils.base64url_encode(mac).decode()}"
    with pytest.raises(IdentityError) as refused:
        await authenticator(cluster.store(cache)).verify(forged)
    assert refused.value.refusal is Refusal.BAD_TOKEN


async def test_a_token_that_is_too_long_is_not_even_read(cluster: Cluster, cache: Path) -> None:
    def of(length: int) -> str:
        """A token of ours of this length or a little more, with a claim that fills it."""
        short = len(RSA.sign({**RSA.claims(), "filling": ""}))
        return RSA.sign({**RSA.claims(), "filling": "x" * ((length - short) * 3 // 4)})

    verifier = authenticator(cluster.store(cache))
    fits = of(MAX_TOKEN - 8)
    assert MAX_TOKEN - 16 < len(fits) <= MAX_TOKEN
    assert (await verifier.verify(fits)).node == "node-1"
    asked, cluster.now = cluster.asked, cluster.now + MAX_AGE + 1
    with pytest.raises(IdentityError, match=f"longer than {MAX_TOKEN} characters") as refused:
        await verifier.verify(of(MAX_TOKEN + 8))
    assert refused.value.refusal is Refusal.BAD_TOKEN
    assert cluster.asked == asked


async def test_a_text_of_the_greatest_length_is_still_read(cluster: Cluster, cache: Path) -> None:
    with pytest.raises(IdentityError, match="no signed token"):
        await authenticator(cluster.store(cache)).verify("x" * MAX_TOKEN)


@pytest.mark.parametrize("kid", ["", None])
async def test_a_token_that_names_no_key_asks_nobody_for_one(
    cluster: Cluster, cache: Path, kid: str | None
) -> None:
    verifier = authenticator(cluster.store(cache))
    header = {} if kid is None else {"kid": kid}
    nameless = jwt.encode(RSA.claims(), RSA.key, algorithm=RSA.algorithm, headers=header)
    with pytest.raises(IdentityError, match="does not name the key that signed it") as refused:
        await verifier.verify(nameless)
    assert refused.value.refusal is Refusal.BAD_TOKEN
    assert cluster.asked == 0


@pytest.mark.parametrize(
    ("ahead", "word"),
    [
        (-LEEWAY - 1.0, "not valid for another"),
        (-LEEWAY - 0.1, "not valid for another"),
        (-LEEWAY, ""),
        (0.0, ""),
        (3600.0 + LEEWAY - 0.1, ""),
        (3600.0 + LEEWAY, "expired"),
    ],
)
async def test_a_token_counts_from_its_first_moment_to_its_last(
    cluster: Cluster, cache: Path, ahead: float, word: str
) -> None:
    begins = int(time.time())
    shown = RSA.sign({**RSA.claims(), "nbf": begins, "exp": begins + 3600})
    verifier = authenticator(cluster.store(cache), now=lambda: begins + ahead)
    if not word:
        assert (await verifier.verify(shown)).expires == begins + 3600
        assert await verifier.verify_account(shown) == begins + 3600
        return
    with pytest.raises(IdentityError, match=word):
        await verifier.verify(shown)


@pytest.mark.parametrize("times", [{"exp": True}, {"exp": "9999999999"}, {"nbf": "now"}])
async def test_what_is_no_time_is_no_bound_of_a_token(
    cluster: Cluster, cache: Path, times: dict[str, object]
) -> None:
    verifier = authenticator(cluster.store(cache), now=lambda: 0.5)
    with pytest.raises(IdentityError) as refused:
        await verifier.verify(RSA.sign({**RSA.claims(), "nbf": 0, **times}))
    assert refused.value.refusal is Refusal.BAD_TOKEN


async def test_a_configured_issuer_outranks_the_published_one(
    cluster: Cluster, cache: Path
) -> None:
    cluster.issuer = "https://published"
    store = cluster.store(cache)
    with pytest.raises(IdentityError):
        await authenticator(store).verify(RSA.token())
    await authenticator(store, issuer=RSA.issuer).verify(RSA.token())


async def test_a_token_speaks_for_its_own_node_only(cluster: Cluster, cache: Path) -> None:
    verifier = authenticator(cluster.store(cache))
    shown = {"authorization": f"Bearer {RSA.token('node-1')}"}
    credentials = await verifier.authenticate(Caller("ipv4:10.0.0.1:1", shown))
    assert credentials.claimed("node-1").node == "node-1"
    with pytest.raises(IdentityError) as refused:
        credentials.claimed("node-2")
    assert refused.value.refusal is Refusal.ANOTHER_NODE
    assert refused.value.proven
    with pytest.raises(IdentityError) as refused:
        await verifier.authenticate(Caller("ipv4:10.0.0.1:1"))
    assert refused.value.refusal is Refusal.NO_CREDENTIALS


@pytest.mark.parametrize(
    ("shown", "read"),
    [
        ("Bearer TOKEN", True),
        ("bearer TOKEN", True),
        ("BEARER   TOKEN ", True),
        ("Basic TOKEN", False),
        ("TOKEN", False),
        ("Bearer", False),
        ("Bearer ", False),
        ("Token TOKEN", False),
        ("", False),
    ],
)
async def test_a_token_is_shown_as_a_bearer_s_and_in_no_other_scheme(
    cluster: Cluster, cache: Path, shown: str, *, read: bool
) -> None:
    verifier = authenticator(cluster.store(cache))
    text = shown.replace("TOKEN", RSA.token("node-1"))
    caller = Caller("ipv4:10.0.0.1:1", {"authorization": text})
    if read:
        assert (await verifier.authenticate(caller)).claimed("node-1").node == "node-1"
        return
    with pytest.raises(IdentityError, match="authorization: Bearer TOKEN") as refused:
        await verifier.authenticate(caller)
    assert refused.value.refusal is Refusal.NO_CREDENTIALS


async def test_a_renewal_is_for_the_same_node_object(cluster: Cluster, cache: Path) -> None:
    verifier = authenticator(cluster.store(cache))
    first = await verifier.verify(RSA.token("node-1", expires_in=60))
    later = await verifier.renew(first, RSA.token("node-1", expires_in=3600))
    assert later.expires is not None
    assert first.expires is not None
    assert later.expires > first.expires + 3000
    namesake = bound(node={"name": "node-1", "uid": "made anew"})
    for bad in (RSA.token("node-2"), token(bound=namesake)):
        with pytest.raises(IdentityError) as refused:
            await verifier.renew(first, bad)
        assert refused.value.refusal is Refusal.ANOTHER_NODE


# -- the keys -----------------------------------------------------------------------------------


async def test_keys_are_asked_for_once_however_many_agents_come(
    cluster: Cluster, cache: Path
) -> None:
    cluster.gate = asyncio.Event()
    verifier = authenticator(cluster.store(cache))
    coming = [asyncio.create_task(verifier.verify(RSA.token(f"node-{n}"))) for n in range(200)]
    await asyncio.sleep(0)
    cluster.gate.set()
    assert {identity.node for identity in await asyncio.gather(*coming)} == {
        f"node-{n}" for n in range(200)
    }
    assert cluster.asked == 1


async def test_a_restart_while_the_api_server_is_away_works_from_disk(
    cluster: Cluster, cache: Path
) -> None:
    await authenticator(cluster.store(cache)).verify(RSA.token())
    cluster.up = False
    store = cluster.store(cache)
    store.load()
    assert (await authenticator(store).verify(EC.token())).node == "node-1"
    await until(lambda: store.trouble)  # the refresh in the background says that it failed
    assert "connection refused" in store.trouble


async def test_without_keys_and_without_api_server_the_agent_is_told_to_try_again(
    cluster: Cluster, cache: Path
) -> None:
    cluster.up = False
    verifier = authenticator(cluster.store(cache))
    with pytest.raises(IdentityError) as refused:
        await verifier.verify(RSA.token())
    assert refused.value.passing
    cluster.up = True
    with pytest.raises(IdentityError):  # not asked again at once
        await verifier.verify(RSA.token())
    assert cluster.asked == 1
    cluster.now += 2 * MIN_INTERVAL
    await verifier.verify(RSA.token())


async def test_a_key_that_is_unknown_while_the_api_server_is_away_may_be_a_new_one(
    cluster: Cluster, cache: Path
) -> None:
    """The agent is told to try again: its token is good once the keys can be read."""
    new = TokenIssuer(kid="new")
    verifier = authenticator(cluster.store(cache))
    await verifier.verify(RSA.token())
    with pytest.raises(IdentityError) as refused:
        await verifier.verify(new.token())
    assert refused.value.refusal is Refusal.BAD_TOKEN
    cluster.up = False
    cluster.now += 2 * MIN_INTERVAL
    with pytest.raises(IdentityError, match="connection refused") as refused:
        await verifier.verify(new.token())
    assert refused.value.refusal is Refusal.KEYS_UNAVAILABLE
    cluster.up, cluster.issuers = True, [RSA, new]
    cluster.now += 4 * MIN_INTERVAL
    await verifier.verify(new.token())


async def test_a_request_for_keys_that_fails_by_our_own_mistake_is_no_word_about_the_token(
    cache: Path,
) -> None:
    async def mistaken() -> tuple[str, str]:
        raise RuntimeError("a mistake of ours")

    verifier = authenticator(JwksCache(mistaken, cache, now=lambda: 1000.0))
    with pytest.raises(RuntimeError):
        await verifier.verify(RSA.token())
    with pytest.raises(IdentityError, match="try again") as refused:
        await verifier.verify(RSA.token())  # not asked again at once
    assert refused.value.passing


async def test_a_rotated_key_is_fetched_and_a_withdrawn_one_forgotten(
    cluster: Cluster, cache: Path
) -> None:
    verifier = authenticator(cluster.store(cache))
    await verifier.verify(RSA.token())
    cluster.issuers = [EC]
    new = TokenIssuer(kid="key-2")
    cluster.issuers = [new]
    cluster.now += MIN_INTERVAL
    await verifier.verify(new.token())
    assert cluster.asked == 2
    assert saved(cache)["jwks"]["keys"][0]["kid"] == "key-2"
    with pytest.raises(IdentityError) as refused:
        await verifier.verify(RSA.token())
    assert refused.value.refusal is Refusal.BAD_TOKEN


async def test_made_up_key_ids_do_not_reach_the_api_server_more_than_now_and_then(
    cluster: Cluster, cache: Path
) -> None:
    verifier = authenticator(cluster.store(cache))
    await verifier.verify(RSA.token())
    forger = TokenIssuer()
    for n in range(100):
        cluster.now += 1.0
        with pytest.raises(IdentityError):
            await verifier.verify(forger.sign(forger.claims(), header={"kid": f"made-up-{n}"}))
    assert cluster.asked <= 1 + 100 / MIN_INTERVAL


async def test_an_api_server_that_stays_away_is_asked_ever_more_rarely(
    cluster: Cluster, cache: Path
) -> None:
    cluster.up = False
    verifier, sound = authenticator(cluster.store(cache)), RSA.token()
    for _ in range(3600):
        cluster.now += 1.0
        with pytest.raises(IdentityError) as refused:
            await verifier.verify(sound)
        assert refused.value.refusal is Refusal.KEYS_UNAVAILABLE
    assert 12 <= cluster.asked <= 20  # every 300 s in the end


async def test_the_pauses_between_requests_double_with_each_failure_and_end_with_an_answer(
    cluster: Cluster, cache: Path
) -> None:
    cluster.up = False
    store = cluster.store(cache)
    asked_at: list[float] = []
    began = cluster.now
    for second in range(1400):
        cluster.now, before = began + second, cluster.asked
        with pytest.raises(IdentityError) as refused:
            await store.key("key-rsa-unknown")
        assert refused.value.refusal is Refusal.KEYS_UNAVAILABLE
        assert "connection refused" in str(refused.value)
        asked_at += [float(second)] * (cluster.asked - before)
    pauses = [after - before for before, after in pairwise(asked_at)]
    assert asked_at[0] == 0
    assert pauses[:6] == [20, 40, 80, 160, 300, 300]
    assert set(pauses[4:]) == {MAX_INTERVAL}
    cluster.up, cluster.now = True, cluster.now + MAX_INTERVAL
    await store.key(RSA.kid)
    assert store.trouble == ""
    # After an answer: never more often than the shortest pause, and at that again.
    for wait, more in ((MIN_INTERVAL - 0.5, 0), (0.5, 1), (MIN_INTERVAL - 0.5, 0), (0.5, 1)):
        cluster.now += wait
        before = cluster.asked
        with pytest.raises(IdentityError) as refused:
            await store.key("key-rsa-unknown")
        assert refused.value.refusal is Refusal.BAD_TOKEN
        assert cluster.asked - before == more


@pytest.mark.parametrize("age", [MAX_AGE - 1, MAX_AGE, MAX_AGE + 1])
async def test_keys_are_old_after_an_hour(cluster: Cluster, cache: Path, age: float) -> None:
    store = cluster.store(cache)
    await store.key(RSA.kid)
    assert cluster.asked == 1
    cluster.now += age
    cluster.gate = asyncio.Event()
    await store.key(RSA.kid)  # the caller does not wait
    await asyncio.sleep(0)
    assert cluster.asked == (2 if age > MAX_AGE else 1)
    cluster.gate.set()
    if age > MAX_AGE:
        await until(lambda: store._fetching is None)
        await store.key(RSA.kid)
        assert cluster.asked == 2


async def test_an_api_server_that_does_not_answer_is_given_up(
    cluster: Cluster, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.ingest.jwks.FETCH_TIMEOUT", 0.05)
    cluster.gate = asyncio.Event()
    store = cluster.store(cache)
    with pytest.raises(IdentityError) as refused:
        await store.key(RSA.kid)
    assert refused.value.refusal is Refusal.KEYS_UNAVAILABLE
    assert "TimeoutError" in store.trouble
    monkeypatch.undo()
    cluster.gate = None
    cluster.now += MAX_INTERVAL
    assert (await store.key(RSA.kid)).key_id == RSA.kid


async def test_the_file_is_written_when_what_is_published_changes_and_whole(
    cluster: Cluster, cache: Path
) -> None:
    store = cluster.store(cache)
    await store.key(RSA.kid)
    assert saved(cache) == {"issuer": RSA.issuer, "jwks": json.loads(RSA.jwks(EC))}
    assert store.issuer == RSA.issuer
    assert [file.name for file in cache.parent.iterdir()] == [cache.name], "nothing beside it"
    first = stamp(cache)
    cluster.now += MAX_AGE + 1
    await store.key(RSA.kid)
    await until(lambda: store._fetching is None)
    assert cluster.asked == 2
    assert stamp(cache) == first, "the same is not written"
    cluster.issuer = "https://another"
    cluster.now += MAX_AGE + 1
    await store.key(RSA.kid)
    await until(lambda: store._fetching is None)
    assert saved(cache)["issuer"] == store.issuer == "https://another"


async def test_old_keys_are_looked_at_again_without_keeping_anybody_waiting(
    cluster: Cluster, cache: Path
) -> None:
    verifier = authenticator(cluster.store(cache))
    await verifier.verify(RSA.token())
    cluster.now += MAX_AGE + 1
    cluster.gate = asyncio.Event()
    await verifier.verify(RSA.token())  # though the API server does not answer
    await asyncio.sleep(0)
    assert cluster.asked == 2
    cluster.gate.set()


@pytest.mark.parametrize("text", ['{"keys": []}', "[]", "no json", '{"keys": [{"kty": "oct"}]}'])
async def test_published_nonsense_does_not_replace_good_keys(
    cluster: Cluster, cache: Path, text: str
) -> None:
    store = cluster.store(cache)
    verifier = authenticator(store)
    await verifier.verify(RSA.token())
    cluster.now += MAX_AGE
    cluster.text = text
    with pytest.raises(IdentityError):
        await verifier.verify(TokenIssuer(kid="new").token())
    assert store.trouble
    await verifier.verify(RSA.token())


@pytest.mark.parametrize("text", ["", "{", "{}", '{"issuer": "x", "jwks": {"keys": []}}', "[1]"])
async def test_a_spoilt_file_is_asked_for_anew(cluster: Cluster, cache: Path, text: str) -> None:
    spoil(cache, text)
    store = cluster.store(cache)
    store.load()
    await authenticator(store).verify(RSA.token())
    assert saved(cache)["issuer"] == RSA.issuer


async def test_one_key_that_cannot_be_used_does_not_hide_the_others(
    cluster: Cluster, cache: Path
) -> None:
    odd: list[object] = [{"kty": "EC", "kid": "odd"}, {"kty": "oct"}, 7, {}]
    cluster.text = json.dumps({"keys": [*odd, RSA.jwk()]})
    await authenticator(cluster.store(cache)).verify(RSA.token())


async def test_a_disk_that_cannot_be_written_is_no_reason_to_refuse(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    verifier = authenticator(cluster.store(tmp_path / "file" / "jwks.json"))
    await verifier.verify(RSA.token())
