"""Automatic certificates of three replicas under any interleaving, crash, and damage by people.

Each replica is a coroutine that the test resumes one request at a time.
"""

import logging
import random
from collections.abc import Coroutine, Generator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.clock import Clocks
from aggregator.tls.authority import bundle
from aggregator.tls.automatic import RESTORED_WITHIN, AutomaticCertificates
from aggregator.tls.rotation import MOST, Rules
from tests.support.authorities import MemoryAuthorities, MemoryFiles, names_in, trusts
from tests.support.present import present

HOUR = 3600.0
POLL = 600.0
RULES = Rules(lifetime=6 * HOUR, authority_lifetime=24 * HOUR, publish_wait=HOUR)
NAMES = frozenset({"sickbay-aggregator.sickbay.svc", "localhost"})
REPLICAS = range(3)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


class _Turn:
    """Suspends the coroutine once: the request is under way."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def _turn() -> None:
    await _Turn()


class Site:
    """Three replicas, agents that read the ConfigMap, and a clock."""

    def __init__(self) -> None:
        self.time = 1_800_000_000.0
        self.store = MemoryAuthorities()
        self.store.turn = _turn
        self.running: dict[int, AutomaticCertificates] = {}
        self.work: dict[int, Coroutine[Any, Any, bool]] = {}
        self.files = {number: MemoryFiles() for number in REPLICAS}
        #: The content that agents have read, and when an agent last did.
        self.read: dict[bytes, float] = {}

    def start(self, number: int) -> None:
        self.running[number] = AutomaticCertificates(
            self.store,
            self.files[number],
            NAMES,
            rules=RULES,
            clocks=Clocks(lambda: self.time, lambda: self.time),
            rng=random.Random(number),
            poll_every=POLL,
        )

    def crash(self, number: int, *, with_disk: bool) -> None:
        """At whatever request it was."""
        work = self.work.pop(number, None)
        if work is not None:
            work.close()
        self.running.pop(number, None)
        if with_disk:
            self.files[number] = MemoryFiles()

    def request(self, number: int) -> bool:
        """The replica's next request; False where it is done for now."""
        if number not in self.running:
            self.start(number)
        if number not in self.work:
            self.work[number] = self.running[number].settle()
        try:
            self.work[number].send(None)
        except StopIteration:
            del self.work[number]
            return False
        return True

    def settle(self, number: int) -> None:
        """Until it has nothing to do, whatever it was doing before."""
        while self.request(number):
            pass
        while self.request(number):
            pass

    def settle_all(self) -> None:
        for _ in range(2):
            for number in REPLICAS:
                self.settle(number)

    def agent_reads(self) -> None:
        if self.store.trusted:
            self.read[self.store.trusted] = self.time

    def check_trust(self) -> None:
        """An agent that has read the ConfigMap within `publish_wait` trusts each certificate that
        has not ended.
        """
        self.agent_reads()
        for number, replica in self.running.items():
            if replica.trouble or replica.pair.validity.until <= self.time:
                continue
            for text, at in self.read.items():
                if self.time - at <= RULES.publish_wait:
                    assert trusts(text, replica.pair), (number, at, self.time)

    def check_agreement(self) -> None:
        secret = present(self.store.secret)
        assert not secret.damaged
        assert self.store.trusted == bundle(secret.authorities)
        assert 1 <= len(secret.authorities) <= MOST
        for number in REPLICAS:
            replica = self.running[number]
            assert replica.known == secret.authorities
            assert not replica.trouble
            assert replica.pair.issuer_among(secret.authorities) is not None
            assert replica.pair.validity.until > self.time
            assert self.files[number].read_bundle() == self.store.trusted


NUMBERS = st.sampled_from(REPLICAS)
BEFORE_ROTATION = st.lists(
    st.one_of(
        st.tuples(st.just("request"), NUMBERS),
        st.tuples(st.just("crash"), NUMBERS),
        st.tuples(st.just("crash with its disk"), NUMBERS),
    ),
    max_size=60,
)


def do(site: Site, what: str, number: int) -> None:
    if what == "request":
        site.request(number)
    elif what.startswith("crash"):
        site.crash(number, with_disk=what != "crash")


@given(BEFORE_ROTATION)
def test_replicas_that_start_together_agree_on_one_authority(steps: list[tuple[str, int]]) -> None:
    site = Site()
    for step in steps:
        do(site, *step)
        site.check_trust()
    site.settle_all()
    site.check_agreement()
    assert len(site.store.made) == 1
    site.check_trust()


@settings(max_examples=50)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("request"), NUMBERS),
            st.tuples(st.just("crash"), NUMBERS),
            st.tuples(st.just("crash with its disk"), NUMBERS),
            st.tuples(st.just("time"), NUMBERS),
            st.tuples(st.just("time"), NUMBERS),
            st.tuples(st.just("night"), NUMBERS),
        ),
        min_size=10,
        max_size=40,
    )
)
def test_agents_trust_what_is_served_through_every_rotation(steps: list[tuple[str, int]]) -> None:
    site = Site()
    site.settle_all()
    for what, number in steps:
        if what in {"time", "night"}:
            for _ in range(1 if what == "time" else 30):
                site.time += POLL
                site.settle(number)  # one replica works at least
                assert site.running[number].pair.validity.until > site.time
                site.check_trust()
        else:
            do(site, what, number)
            site.check_trust()
    site.settle_all()
    site.check_agreement()


def test_every_replica_goes_over_to_the_next_authority_once_agents_know_it() -> None:
    site = Site()
    site.settle_all()
    numbers = set()
    for _ in range(int(72 * HOUR / POLL)):
        site.time += POLL
        for number in REPLICAS:
            site.settle(number)
        site.check_trust()
        authorities = site.running[0].known
        signers = {site.running[n].pair.issuer_among(authorities) for n in REPLICAS}
        numbers |= {one.number for one in signers if one is not None}
    assert numbers == {1, 2, 3, 4, 5}
    site.check_agreement()


@pytest.mark.parametrize("requests", [0, 1, 2])
def test_a_late_writer_takes_no_authority_from_agents(requests: int) -> None:
    site = Site()
    site.settle_all()
    for _ in range(8):
        site.time += POLL
        site.settle_all()
    for _ in range(requests):
        site.request(0)
    harm(site, "rotate")
    site.settle(1)
    both = site.store.trusted
    assert len(names_in(both)) == 2
    while site.request(0):
        assert site.store.trusted == both
    assert site.store.trusted == both


DAMAGE = st.lists(
    st.one_of(
        st.tuples(st.just("request"), NUMBERS),
        st.tuples(st.just("crash"), NUMBERS),
        st.tuples(st.just("time"), NUMBERS),
        st.tuples(
            st.sampled_from(
                ["delete secret", "damage secret", "delete bundle", "overwrite bundle", "rotate"]
            ),
            NUMBERS,
        ),
    ),
    max_size=60,
)


def harm(site: Site, what: str) -> None:
    secret = site.store.secret
    if what == "delete secret":
        site.store.secret = None
    elif what == "delete bundle":
        site.store.bundle = None
    elif what == "overwrite bundle":
        site.store.put_bundle(b"-----BEGIN CERTIFICATE-----\n")
    elif what == "rotate" and secret is not None and not secret.damaged:
        site.store.put_secret(*secret.authorities, rotate=True)
    elif what == "damage secret" and secret is not None and secret.authorities:
        *rest, last = secret.authorities
        damaged = {**secret.damaged, last.number: "it is not in base64"}
        site.store.put_secret(*rest, damaged=damaged)


@given(DAMAGE)
def test_whatever_people_do_to_the_objects_the_replicas_agree_again(
    steps: list[tuple[str, int]],
) -> None:
    site = Site()
    site.settle_all()
    for what, number in steps:
        harm(site, what)
        if what == "time":
            site.time += POLL
            site.settle(number)
            assert site.running[number].pair.validity.until > site.time
        else:
            do(site, what, number)
    for _ in range(RESTORED_WITHIN + 1):
        site.settle_all()
        site.time += POLL
    site.settle_all()
    site.check_agreement()


@given(st.lists(st.sampled_from(["delete secret", "damage secret", "delete bundle"]), max_size=6))
def test_no_new_authority_is_made_while_one_replica_remembers_the_lost_one(
    losses: list[str],
) -> None:
    site = Site()
    site.settle_all()
    served = site.running[1].pair
    for what in losses:
        harm(site, what)
        site.crash(0, with_disk=True)
        site.settle(0)  # it knows nothing, and waits for the others
        site.settle(1)
        site.settle(0)
        site.check_trust()
    site.settle_all()
    site.check_agreement()
    assert len(site.store.made) == 1
    assert site.running[1].pair is served
