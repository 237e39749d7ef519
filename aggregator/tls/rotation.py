"""When a new authority is made, when it may sign, and when a serving certificate is renewed. Pure.

The Secret has a list of authorities, and only its end grows. Agents trust all of them. A replica
signs with the newest authority that agents have been able to read for `Rules.publish_wait`. Each
replica measures that by its own monotonic clock. So no replica has to know how far another one is,
and no wall clock decides whether agents know an authority.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from aggregator.tls.authority import Authority, ServingPair
from aggregator.tls.authority_store import StoredAuthorities

#: Authorities that the Secret holds at most. The oldest leave by number and not by their end: a
#: clock that has jumped ahead must not take a trusted authority away.
MOST = 4
#: A certificate is renewed when this share of its lifetime is left.
RENEW_AT = 1 / 3
#: A renewal must extend a certificate by this share of the lifetime: one that ends with its
#: authority would otherwise be renewed without end.
_WORTHWHILE = 0.05


@dataclass(frozen=True, slots=True)
class Rules:
    """Seconds: the lifetime of serving certificates and of authorities, and how long an authority
    is published before it signs.
    """

    lifetime: float
    authority_lifetime: float
    publish_wait: float


@dataclass(frozen=True, slots=True)
class CaChange:
    """The Secret must hold ``keep``, and one new authority where ``add`` is set."""

    keep: tuple[Authority, ...]
    add: bool
    why: str

    @property
    def next_number(self) -> int:
        return 1 + max((one.number for one in self.keep), default=0)


@dataclass(frozen=True, slots=True)
class AwaitRestore:
    """The Secret is lost, and another replica may still know its content."""

    why: str


class Publication:
    """For how long each authority has been in the ConfigMap, as this replica saw it.

    A pause between two reads counts for ``longest_gap`` seconds at most: while the API server was
    away, agents could not read it either.
    """

    def __init__(self, longest_gap: float) -> None:
        self._longest_gap = longest_gap
        self._read_at: float | None = None
        self._age: dict[bytes, float] = {}

    def record_read(self, now: float, certificates: Collection[bytes]) -> None:
        """The ConfigMap held these certificates (PEM) at ``now``, monotonic seconds."""
        gap = 0.0 if self._read_at is None else min(now - self._read_at, self._longest_gap)
        self._age = {one: self._age[one] + gap if one in self._age else 0.0 for one in certificates}
        self._read_at = now

    def age(self, authority: Authority) -> float:
        """Seconds; below 0 where the last read did not find it."""
        return self._age.get(authority.certificate_pem, -1.0)


def next_change(
    stored: StoredAuthorities | None,
    known: Sequence[Authority],
    trusted: Sequence[Authority],
    *,
    rules: Rules,
    earliest: float,
    newest_is_published: bool,
    was_published: bool,
    waited: bool,
) -> CaChange | AwaitRestore | None:
    """The change of the Secret, or None.

    ``known``: what it last held, with keys. ``trusted``: authorities without keys that agents were
    configured to trust before this process started. ``earliest``: the earliest time that it may be.
    ``was_published``: the ConfigMap has certificates, so that there was an authority. ``waited``:
    no other replica has restored the Secret for a while.
    """
    found = stored.authorities if stored is not None else ()
    damaged = stored.damaged if stored is not None else {}
    if not signers(found, earliest):
        if signers(known, earliest):
            return CaChange(_merged(found, known), False, "restored from memory: it was lost")
        expired = [one for one in found if one.key is not None]
        if expired:
            return CaChange(_newest(found), True, "every authority has expired: a new one is made")
        if (was_published or trusted or damaged or found) and not waited:
            return AwaitRestore("it is lost or damaged, and another replica may restore it")
        if was_published or trusted or damaged or found:
            return CaChange(_newest(_merged(found, trusted)), True, "lost: a new authority is made")
        return CaChange((), True, "there is none yet: the first authority is made")
    if damaged:
        lost = [one for one in known if one.number in damaged]
        if lost:
            return CaChange(_merged(found, lost), False, "restored from memory: it was damaged")
        if not waited:
            return AwaitRestore("a part of it is damaged, and another replica may restore it")
        return CaChange(found, False, "the damaged part is removed: no replica knows it")
    newest = signers(found, earliest)[-1]
    if newest.until - earliest < rules.authority_lifetime * RENEW_AT:
        return CaChange(_newest(found), True, "the authority ends: the next one is made")
    if stored is not None and stored.rotation_requested and newest_is_published:
        return CaChange(_newest(found), True, "a person requested the next authority")
    return None


def next_issuer(
    pair: ServingPair | None,
    authorities: Sequence[Authority],
    names: frozenset[str],
    publication: Publication,
    *,
    rules: Rules,
    earliest: float,
    latest: float,
) -> Authority | None:
    """The authority that must sign a new serving certificate now, or None: ``pair`` stays.

    ``earliest`` and ``latest`` bound the time that it may be, wall clock seconds.
    """
    usable = signers(authorities, earliest)
    if not usable:
        return None
    published = [one for one in usable if publication.age(one) >= rules.publish_wait]
    # Without one that has been published for long enough, agents are most likely to know the
    # oldest.
    best = published[-1] if published else usable[0]
    signed_by = pair.issuer_among(authorities) if pair is not None else None
    if pair is None or signed_by is None or pair.names != names:
        return best
    if earliest >= pair.validity.until or latest < pair.validity.since:
        return best
    if published and best.number > signed_by.number:
        return best
    if pair.validity.until - earliest < rules.lifetime * RENEW_AT:
        renewed_by = signed_by if not published and signed_by in usable else best
        until = min(earliest + rules.lifetime, renewed_by.until)
        if until - pair.validity.until > rules.lifetime * _WORTHWHILE:
            return renewed_by
    return None


def signers(authorities: Iterable[Authority], at: float) -> list[Authority]:
    """Those that can sign at ``at``, wall clock seconds; oldest first."""
    usable = (one for one in authorities if one.key is not None and at < one.until)
    return sorted(usable, key=lambda one: one.number)


def _merged(found: Sequence[Authority], more: Sequence[Authority]) -> tuple[Authority, ...]:
    """All of them, oldest first; ``more`` replaces what is found under the same number only where
    it is the same certificate, with its key.
    """
    by_number = {one.number: one for one in found}
    for one in more:
        there = by_number.get(one.number)
        if there is None or (there == one and there.key is None):
            by_number[one.number] = one
    return tuple(by_number[number] for number in sorted(by_number))


def _newest(authorities: Sequence[Authority]) -> tuple[Authority, ...]:
    """The newest, with room for one more."""
    return tuple(sorted(authorities, key=lambda one: one.number))[-(MOST - 1) :]
