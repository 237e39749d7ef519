"""The certificates that the aggregator makes itself, where no files are configured.

All replicas share their authorities through an `AuthorityStore`; each makes a serving certificate
of its own, whose key never leaves it. Without the store the last known authorities continue to
sign. A problem here never acts on a node: agents that can't connect are silent, no more.

Each step reads the ConfigMap before the Secret, and writes one of them at most. The ConfigMap is
made from the Secret alone. So the Secret that was read is never older than the one from which the
ConfigMap was made. A late writer never takes an authority out of it: its write is refused.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.rfc3339 import write_time
from aggregator.runtime.backoff import Backoff
from aggregator.tls.authority import (
    Authority,
    DamagedPem,
    ServingPair,
    bundle,
    create_authority,
    issue,
    issue_placeholder,
    keyless_authority,
    pem_of,
    read_bundle,
)
from aggregator.tls.authority_store import (
    AuthorityConflict,
    AuthorityStore,
    AuthorityStoreError,
    StoredAuthorities,
    StoredBundle,
)
from aggregator.tls.pair_files import PairFiles
from aggregator.tls.rotation import (
    AwaitRestore,
    CaChange,
    Publication,
    Rules,
    next_change,
    next_issuer,
    signers,
)

log = logging.getLogger("sickbay.tls")

#: Seconds between reads of the two objects, at most.
POLL_EVERY = 30.0
#: Replicas that know a lost Secret restore it within this many of these pauses.
RESTORED_WITHIN = 3
_RETRY = Backoff(first=1.0, most=POLL_EVERY)
#: Writes in a row before a pause: two replicas that undo each other's writes must not continue.
_WRITES_IN_A_ROW = 8


@define(eq=False, repr=False, slots=False)
class AutomaticCertificates:
    """Makes authorities and the serving certificate in ``files``, and renews them.

    ``names`` are the DNS names and addresses by which clients reach this replica. ``poll_every``:
    seconds between reads; 0: several within `Rules.publish_wait`.
    """

    _store: AuthorityStore
    files: PairFiles
    _names: frozenset[str]
    _rules: Rules = field(kw_only=True)
    _clocks: Clocks = field(kw_only=True)
    _rng: random.Random = field(kw_only=True)
    _poll_every: float = field(default=0.0, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._is_placeholder = False
        self._poll_every = self._poll_every or min(POLL_EVERY, self._rules.publish_wait / 3)
        self._publication = Publication(longest_gap=2 * self._poll_every)
        #: The last content of the Secret; it is restored from here.
        self._known: tuple[Authority, ...] = ()
        self._trusted: tuple[Authority, ...] = ()
        self._lost_since: float | None = None
        self._in_order: set[bytes] | None = None
        self._logged: dict[str, str] = {}
        self._first = asyncio.Event()
        self._pair = self._prepare()

    @property
    def pair(self) -> ServingPair:
        """The pair that is served."""
        return self._pair

    @property
    def trouble(self) -> str:
        """Why no client can verify the served certificate; empty: it is signed by an authority."""
        if not self._is_placeholder:
            return ""
        reasons = "; ".join(sorted(self._logged.values())) or "the cluster was not read yet"
        return f"there is no certificate that agents trust: {reasons}"

    @property
    def known(self) -> tuple[Authority, ...]:
        """The authorities that this replica last read, oldest first."""
        return self._known

    async def first(self, within: float) -> None:
        """Return when the first certificate is there, at the latest after ``within`` seconds."""
        try:
            async with asyncio.timeout(within):
                await self._first.wait()
        except TimeoutError:
            return

    async def run(self) -> None:
        """For ever."""
        failures = 0
        while True:
            failures = failures + 1 if not await self.settle() else 0
            pause = _RETRY.pause(failures, self._rng) if failures else self._poll_every
            await asyncio.sleep(pause)

    async def settle(self) -> bool:
        """Steps until no write is needed. False: the store failed, or others write as well."""
        try:
            for _ in range(_WRITES_IN_A_ROW):
                if not await self.step():
                    self._end_of("store")
                    return True
        except AuthorityStoreError as error:
            self._log_once(
                "store", "the certificate authority can't be read or written", str(error)
            )
            if self._known:
                self._trust(self._known)
            self._renew_if_due(self._known)
        return False

    async def step(self) -> bool:
        """One read of both objects, and one write at most. True: there may be more to write.

        Raises AuthorityStoreError.
        """
        published = await self._store.read_bundle()
        self._publication.record_read(self._clocks.now(), _certificates(published))
        stored = await self._store.read_authorities()
        change = self._next_change(stored, published)
        if stored is not None and not stored.damaged and signers(stored.authorities, 0.0):
            # Before any write: one that is refused for ever must not keep these from signing.
            self._known = stored.authorities
        try:
            if isinstance(change, CaChange):
                await self._write(change, stored)
                return True
            if isinstance(change, AwaitRestore):
                self._log_once(
                    "secret", f"{self._store.secret_name}: {change.why}", _damage(stored)
                )
                self._renew_if_due(stored.authorities if stored is not None else self._known)
                return False
            assert stored is not None
            self._end_of("secret")
            if await self._publish(stored, published):
                return True
        except AuthorityConflict:
            return True
        self._trust(stored.authorities)
        self._renew_if_due(stored.authorities)
        return False

    def _next_change(
        self, stored: StoredAuthorities | None, published: StoredBundle | None
    ) -> CaChange | AwaitRestore | None:
        lost = stored is None or bool(stored.damaged) or not signers(stored.authorities, 0.0)
        now = self._clocks.now()
        if not lost:
            self._lost_since = None
        elif self._lost_since is None:
            self._lost_since = now
        newest = max(
            stored.authorities if stored is not None else (),
            key=lambda one: one.number,
            default=None,
        )
        return next_change(
            stored,
            self._known,
            self._trusted,
            rules=self._rules,
            earliest=self._clocks.earliest(),
            newest_is_published=newest is not None
            and self._publication.age(newest) >= self._rules.publish_wait,
            was_published=bool(_certificates(published)),
            waited=self._lost_since is not None
            and now - self._lost_since >= RESTORED_WITHIN * self._poll_every,
        )

    async def _write(self, change: CaChange, stored: StoredAuthorities | None) -> None:
        authorities = change.keep
        if change.add:
            made = create_authority(
                change.next_number,
                wall=self._clocks.trusted_wall(),
                lifetime=self._rules.authority_lifetime,
            )
            authorities = (*change.keep, made)
        version = stored.version if stored is not None else ""
        await self._store.write_authorities(authorities, version)
        level = logging.INFO if change.add and not _damage(stored) else logging.WARNING
        log.log(
            level,
            "the certificate authority was written",
            extra={
                "event": "certificate.authority_written",
                "object": self._store.secret_name,
                "reason": change.why,
                "damage": _damage(stored),
                "valid_until": {one.number: write_time(one.until) for one in authorities},
            },
        )

    async def _publish(self, stored: StoredAuthorities, published: StoredBundle | None) -> bool:
        """Write the ConfigMap where it differs from the Secret. Returns whether it did."""
        wanted = {one.certificate_pem for one in stored.authorities}
        if _certificates(published) == wanted:
            self._in_order = wanted
            return False
        if self._in_order == wanted:
            log.warning(
                "the trusted certificates were changed or deleted by others, and are written again;"
                " agents that read them meanwhile can't connect until they read them again",
                extra={"object": self._store.bundle_name},
            )
        await self._store.write_bundle(
            bundle(stored.authorities), published.version if published is not None else ""
        )
        return True

    def _prepare(self) -> ServingPair:
        """Continue with the files of an earlier run, if they are valid; else a placeholder."""
        self._trusted = _authorities_in(self.files.read_bundle())
        pair = self.files.read_pair()
        if (
            pair is not None
            and pair.names == self._names
            and self._clocks.earliest() < pair.validity.until
            and pair.issuer_among(self._trusted) is not None
        ):
            return pair
        return self._place_holder()

    def _place_holder(self) -> ServingPair:
        """Raises OSError."""
        self._is_placeholder = True
        pair = issue_placeholder(
            self._names, wall=self._clocks.trusted_wall(), lifetime=self._rules.lifetime
        )
        if not self.files.read_bundle():
            self.files.write_bundle(pair.certificate_pem)  # its readers need some certificate
        self.files.write_pair(pair)
        return pair

    def _trust(self, authorities: Sequence[Authority]) -> None:
        """Write the file by which this replica verifies the others."""
        text = bundle(authorities)
        if self.files.read_bundle() == text:
            return
        try:
            self.files.write_bundle(text)
        except OSError as error:
            self._log_once("trust", "the trusted certificates can't be written", str(error))
        else:
            self._end_of("trust")

    def _renew_if_due(self, authorities: Sequence[Authority]) -> None:
        """Renew the serving certificate. A disk that refuses is tried again."""
        try:
            self._renew(authorities)
        except OSError as error:
            self._log_once("disk", "the serving certificate can't be written", str(error))
        else:
            self._end_of("disk")

    def _renew(self, authorities: Sequence[Authority]) -> None:
        clocks, rules = self._clocks, self._rules
        issuer = next_issuer(
            self._pair,
            authorities,
            self._names,
            self._publication,
            rules=rules,
            earliest=clocks.earliest(),
            latest=clocks.latest(),
        )
        if issuer is not None:
            wall = clocks.trusted_wall()
            pair = issue(issuer, self._names, wall=wall, lifetime=rules.lifetime)
            self.files.write_pair(pair)
            self._pair, self._is_placeholder = pair, False
            self._first.set()
            until = write_time(pair.validity.until)
            extra = {"authority": issuer.number, "until": until}
            log.info("a serving certificate was made", extra={"event": "certificate.made", **extra})
        elif clocks.earliest() >= self._pair.validity.until:
            self._pair = self._place_holder()
        elif not self._is_placeholder:
            self._first.set()

    def _log_once(self, topic: str, message: str, error: str) -> None:
        """Logged once, however often the same problem is found."""
        text = f"{message}: {error}" if error else message
        if self._logged.get(topic) != text:
            self._logged[topic] = text
            log.error(message, extra={"error": error})

    def _end_of(self, topic: str) -> None:
        if self._logged.pop(topic, ""):
            log.info(
                "the certificates are in order again",
                extra={"event": "certificate.recovered", "topic": topic},
            )


def _certificates(published: StoredBundle | None) -> AbstractSet[bytes]:
    """The certificates in the ConfigMap (PEM); none where it holds other text."""
    return _certificates_in(published.text) if published is not None else frozenset()


@lru_cache(maxsize=2)  # it is read twice a minute, and seldom another one
def _certificates_in(text: bytes) -> frozenset[bytes]:
    try:
        return frozenset(pem_of(one) for one in read_bundle(text))
    except DamagedPem:
        return frozenset()


def _authorities_in(text: bytes) -> tuple[Authority, ...]:
    """The authorities of a bundle, without keys, oldest first."""
    try:
        found = [keyless_authority(one) for one in read_bundle(text)]
    except DamagedPem:
        return ()
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.number))


def _damage(stored: StoredAuthorities | None) -> str:
    damaged = stored.damaged if stored is not None else {}
    return ", ".join(f"ca-{number}: {problem}" for number, problem in sorted(damaged.items()))
