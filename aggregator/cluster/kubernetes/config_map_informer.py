"""The changes of one ConfigMap; an error of this ConfigMap alone never loses the cluster view.

Releases need neither the record nor the stop switch. So a missing right to read them, or a server
that fails on them alone, must not end the watches of quarantines and nodes. Each act reads both
again before it is sent, and fails or is held while they can't be read.
"""

import asyncio
import logging
import random
from collections.abc import Callable

import msgspec
from attrs import define, field

from aggregator.cluster.kubernetes.reflector import Watch
from aggregator.cluster.port import ClusterError, ClusterEvent
from aggregator.runtime.backoff import Backoff

log = logging.getLogger("sickbay.kubernetes")

#: Two to five seconds between two tries, however many failed.
_BACKOFF = Backoff(first=5.0, most=5.0, spread=0.6)


@define(eq=False, repr=False, slots=False)
class ConfigMapInformer:
    """``read`` makes the event of the object, or of its absence (None). ``what`` names it."""

    _what: str
    _watch: Watch
    _read: Callable[[msgspec.Raw | None], ClusterEvent]
    _rng: random.Random
    _listed: bool = field(default=False, init=False)
    _trouble: str = field(default="", init=False)

    async def list(self, emit: Callable[[ClusterEvent], None]) -> None:
        """Report its present state. Raises ClusterError, except for its own errors alone."""
        self._listed = False
        try:
            found = await self._watch.read_all()
        except ClusterError as error:
            self._bear(error)
            return
        self._listed = True
        if self._trouble:
            log.info("%s can be read again", self._what)
            self._trouble = ""
        emit(self._read(found[0] if found else None))

    async def follow(self, emit: Callable[[ClusterEvent], None]) -> None:
        """Report its changes, for ever. Raises as `list` does."""
        while True:
            if not self._listed:
                await asyncio.sleep(_BACKOFF.pause(1, self._rng))
                await self.list(emit)
                continue
            try:
                await self._watch.each(
                    lambda one: emit(self._read(None if one.type == "DELETED" else one.object))
                )
            except ClusterError as error:
                self._bear(error)
                self._listed = False

    def _bear(self, error: ClusterError) -> None:
        """Raises it again unless the server refused, or failed on, this object alone, maybe."""
        if error.status != 403 and error.status < 500:
            raise error
        if self._trouble != str(error):
            self._trouble = str(error)
            text = f"{self._what} can't be read: no new action begins, and releases go on"
            log.warning(text, extra={"error": self._trouble})
