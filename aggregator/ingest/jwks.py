"""The cluster's published keys, with which service account tokens are verified offline.

They are fetched when there are none, when a token names a key that we don't have (the cluster
rotated them), and once an hour (the cluster may have removed one). Fetches are never more often
than `MIN_INTERVAL`, regardless of the tokens that clients send, and with backoff while no answer
comes. The last answer is kept on disk, so that after a restart while the API server is away agents
are still verified.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import jwt

from aggregator.cluster.port import ClusterError
from aggregator.ingest.identity import IdentityError, Refusal
from aggregator.runtime.backoff import Backoff
from aggregator.runtime.private_file import replace_file
from aggregator.tls.key_set import KeysError, read_key_set
from sickbay.json_text import read_json

log = logging.getLogger(__name__)

#: Reads (issuer, JWKS as JSON text) from the API server. Raises `ClusterError`.
Fetch = Callable[[], Awaitable[tuple[str, str]]]

#: The algorithms by which kube-apiserver signs service account tokens. HMAC is not among them: a
#: public key must never be taken for a shared secret.
ALGORITHMS = ("RS256", "ES256", "ES384", "ES512")

#: Seconds.
MIN_INTERVAL = 10.0
MAX_INTERVAL = 300.0
_BACKOFF = Backoff(first=MIN_INTERVAL, most=MAX_INTERVAL)
MAX_AGE = 3600.0
FETCH_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class KeySet:
    """The current signing keys, by their ``kid``."""

    issuer: str
    text: str = field(repr=False)
    keys: dict[str, jwt.PyJWK] = field(repr=False)


def read_keys(issuer: str, text: str) -> KeySet:
    """``text`` is a JWKS. Raises KeysError, and ValueError for other text."""
    usable = read_key_set(read_json(text), ALGORITHMS)
    keys = {str(key.key_id): key for key in usable if key.key_id}
    if not keys:
        raise KeysError("no key is published with an id")
    return KeySet(issuer, text, keys)


class JwksCache:
    """Keys by ``kid``, from memory, the disk or the API server.

    ``now`` is monotonic seconds. Many callers that miss a key at once share one request.
    """

    def __init__(self, fetch: Fetch, cache: Path, *, now: Callable[[], float]) -> None:
        self._fetch = fetch
        self._cache = cache
        self._now = now
        self._set: KeySet | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._fetched_at: float | None = None  # when the last request began
        self._fresh_at: float | None = None  # when the API server last answered
        self._failures = 0
        #: Why the last request failed; empty after one that succeeded. For the page and /readyz.
        self.trouble = ""

    def load(self) -> None:
        """Load the keys from disk. A file that can't be used is reported, and the keys are
        fetched.
        """
        try:
            saved = read_json(self._cache.read_text("utf-8"))
            self._set = read_keys(str(saved["issuer"]), json.dumps(saved["jwks"]))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning(
                "the keys kept on disk can't be used; requesting those of the API server",
                extra={"file": str(self._cache), "error": str(error)},
            )

    @property
    def issuer(self) -> str:
        """The published issuer; empty while there are no keys."""
        return self._set.issuer if self._set is not None else ""

    async def key(self, kid: str) -> jwt.PyJWK:
        """The key ``kid``, or `IdentityError`: bad, or for now unavailable."""
        found = self._known(kid)
        if found is not None:
            if self._stale() and self._may_fetch():
                self._start_fetch()  # not awaited: the present keys are enough for this caller
            return found
        if self._fetching is not None or self._may_fetch():
            await asyncio.shield(self._start_fetch())
            found = self._known(kid)
            if found is not None:
                return found
        if self.trouble or self._set is None:
            text = f"the cluster's keys can't be read now ({self.trouble or 'none yet'}): try again"
            raise IdentityError(Refusal.KEYS_UNAVAILABLE, text)
        raise IdentityError(Refusal.BAD_TOKEN, "signed by a key that the cluster does not publish")

    def _known(self, kid: str) -> jwt.PyJWK | None:
        return self._set.keys.get(kid) if self._set is not None else None

    def _stale(self) -> bool:
        return self._fresh_at is None or self._now() - self._fresh_at > MAX_AGE

    def _may_fetch(self) -> bool:
        if self._fetched_at is None:
            return True
        wait = _BACKOFF.longest(self._failures + 1)
        return self._now() - self._fetched_at >= wait

    def _start_fetch(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._fetched_at = self._now()
            self._fetching = asyncio.get_running_loop().create_task(self._refresh())
            self._fetching.add_done_callback(self._on_fetched)
        return self._fetching

    def _on_fetched(self, task: asyncio.Task[None]) -> None:
        self._fetching = None
        if not task.cancelled() and task.exception() is not None:
            log.error("the request for the cluster's keys failed", exc_info=task.exception())

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                issuer, text = await self._fetch()
            fresh = read_keys(issuer, text)
        except (ClusterError, OSError, ValueError) as error:
            self._failures += 1
            self.trouble = str(error) or type(error).__name__
            log.warning(
                "the cluster's keys can't be read",
                extra={"event": "keys.unreadable", "error": self.trouble},
            )
            return
        self._failures = 0
        self.trouble = ""
        self._fresh_at = self._now()
        changed = self._set is None or (self._set.issuer, self._set.text) != (issuer, text)
        self._set = fresh
        if changed:
            await asyncio.to_thread(self._save, fresh)

    def _save(self, keys: KeySet) -> None:
        """Without the file a restart needs the API server."""
        text = json.dumps({"issuer": keys.issuer, "jwks": read_json(keys.text)})
        try:
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._cache, text.encode())
        except OSError as error:
            log.warning(
                "the cluster's keys can't be kept on disk",
                extra={"file": str(self._cache), "error": str(error)},
            )
