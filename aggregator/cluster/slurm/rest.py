"""Slurm through slurmrestd: JSON over HTTP, with the token of a user.

The version of the API is the newest that the server's own OpenAPI document and this module have.
Before v0.0.39 (Slurm 23.02) slurmrestd can't change a node: there `scontrol` writes.
https://slurm.schedmd.com/rest.html
"""

import base64
import binascii
import logging
import re
import ssl
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from aggregator.cluster.port import UNGUARDED, Guard, NotFound, Refused, Unreachable
from aggregator.cluster.slurm.client import (
    NO_NODE,
    NO_RIGHT,
    ControllerFacts,
    SlurmPrograms,
    checked_names,
    nodes_of,
    refusal,
)
from aggregator.cluster.slurm.state import (
    SlurmJob,
    SlurmNode,
    UnreadableOutput,
    first_error,
    jobs_on,
    number_of,
)
from aggregator.rfc3339 import write_time
from aggregator.runtime.guarded_connector import GuardedConnector, checked_by
from sickbay.json_text import read_json

log = logging.getLogger("sickbay.slurm")

#: The last numbers of v0.0.NN that were compared with this module: 36 to 38 are of one form, and
#: those of the data parsers of another.
KNOWN = range(36, 46)
#: The first version that can change a node.
_WRITES = 39
#: Up to this number nodes are read one by one; more, with all others in one answer.
_FEW = 4
_PATH = re.compile(r"/slurm/v0\.0\.(\d{2,3})/nodes/?")
_LONGEST_TOKEN = 16_384
#: Seconds. slurmctld resets its statistics in the first moments of a day.
_DAY, _RESET_WITHIN = 86_400, 60


@dataclass(slots=True)
class SlurmRest:
    """`SlurmClient` by slurmrestd at ``url``; the token's file is read for each request.

    ``user`` empty: the token's own. ``programs`` write to a server that can't. ``limit``: seconds.
    """

    url: str
    token_file: Path
    programs: SlurmPrograms
    name: str = ""
    ca_file: Path | None = None
    limit: float = 30.0
    wall: Callable[[], float] = time.time
    _paths: Mapping[str, str] = field(default_factory=dict)
    _version: int = 0

    @property
    def user(self) -> str:
        if self._version and self._version < _WRITES:
            return self.programs.user
        return self.name or str(_claims(self._token()).get("sun", ""))

    async def read_nodes(self, names: Collection[str] | None = None) -> list[SlurmNode]:
        if names is not None and len(names) <= _FEW:
            found = [await self._read_node(name) for name in sorted(checked_names(names))]
            return [one for one in found if one is not None]
        answer = await self._get("nodes")
        nodes = nodes_of(answer)
        return nodes if names is None else [one for one in nodes if one.name in names]

    async def _read_node(self, name: str) -> SlurmNode | None:
        try:
            found = nodes_of(await self._get("node/{node_name}", name))
        except NotFound:
            return None
        # A server may answer for an unknown name with an empty list.
        return next((one for one in found if one.name == name), None)

    async def read_jobs(self, node: str) -> list[SlurmJob]:
        [name] = checked_names([node])
        try:
            return jobs_on(await self._get("jobs"), name)
        except UnreadableOutput as error:
            raise Unreachable(str(error)) from error

    async def read_controller(self) -> ControllerFacts:
        """When slurmctld's statistics began: at its start, or at the last midnight (UTC), which
        shows no start.
        """
        found = (await self._get("diag")).get("statistics")
        began = number_of(found.get("req_time_start")) if isinstance(found, Mapping) else 0
        is_midnight = began % _DAY < _RESET_WITHIN
        return ControllerFacts("" if is_midnight else str(began))

    async def drain(self, node: str, reason: str, *, guard: Guard) -> None:
        await self._update(node, {"state": ["DRAIN"], "reason": reason}, guard=guard)

    async def undrain(self, node: str, *, guard: Guard) -> None:
        await self._update(node, {"state": ["UNDRAIN"]}, guard=guard)

    async def write_reason(self, node: str, words: str, *, guard: Guard) -> None:
        await self._update(node, {"reason": words}, guard=guard)

    async def reboot(self, node: str, *, guard: Guard) -> None:
        """By the programs: slurmrestd has no request for it."""
        await self.programs.reboot(node, guard=guard)

    async def cancel_reboot(self, node: str) -> None:
        await self.programs.cancel_reboot(node)

    async def _update(self, node: str, change: dict[str, Any], *, guard: Guard) -> None:
        [name] = checked_names([node])
        await self._discover()
        if self._version < _WRITES:
            await self._by_programs(name, change, guard)
            return
        path = self._path("node/{node_name}", name)
        try:
            await self._request("POST", path, body=change, guard=guard)
        except (NotFound, Refused, Unreachable) as error:
            if isinstance(error, _NoSuchPath):
                self._version = 0
            extra = {"event": "slurm.update", "node": name, "rc": 1, "error": str(error)[-500:]}
            log.info("slurm node not updated", extra=extra | {"change": _shown(change)})
            raise
        extra = {"event": "slurm.update", "node": name, "rc": 0, "change": _shown(change)}
        log.info("slurm node updated", extra=extra)

    async def _by_programs(self, name: str, change: Mapping[str, Any], guard: Guard) -> None:
        if "DRAIN" in change.get("state", ()):
            await self.programs.drain(name, change["reason"], guard=guard)
        elif "state" in change:
            await self.programs.undrain(name, guard=guard)
        else:
            await self.programs.write_reason(name, change["reason"], guard=guard)

    # -- requests ------------------------------------------------------------------------

    async def _get(self, what: str, name: str = "") -> dict[str, Any]:
        await self._discover()
        try:
            return await self._request("GET", self._path(what, name), guard=UNGUARDED)
        except _NoSuchPath:
            self._version = 0  # the server was replaced by another version
            await self._discover()
            return await self._request("GET", self._path(what, name), guard=UNGUARDED)

    def _path(self, what: str, name: str) -> str:
        if what not in self._paths:
            text = f"{self.url} has no /slurm/v0.0.{self._version}/{what}"
            raise Refused(f"{text}; start slurmrestd with the plugin slurmctld (-s)")
        return self._paths[what].replace("{node_name}", quote(name, safe=""))

    async def _discover(self) -> None:
        """Choose the version, and learn its paths."""
        if self._version:
            return
        document = await self._request("GET", "/openapi/v3", guard=UNGUARDED)
        paths = document.get("paths")
        offered = {int(m[1]) for path in paths or () if (m := _PATH.fullmatch(str(path)))}
        both = offered & set(KNOWN)
        if not both:
            shown = ", ".join(f"v0.0.{one}" for one in sorted(offered)) or "none"
            raise Refused(
                f"slurmrestd at {self.url} has the versions {shown}; expected one from "
                f"v0.0.{KNOWN[0]} to v0.0.{KNOWN[-1]}"
            )
        version = max(both)
        begin = f"/slurm/v0.0.{version}/"
        self._paths = {
            path.removeprefix(begin).rstrip("/"): path
            for path in map(str, paths or ())
            if path.startswith(begin)
        }
        self._version = version
        log.info("slurmrestd's version was chosen", extra={"version": f"v0.0.{version}"})

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        guard: Guard,
    ) -> dict[str, Any]:
        """The answer, without errors in it. A connection of its own: slurmrestd is near."""
        token = self._token()
        user = self.name or str(_claims(token).get("sun", ""))
        headers = {"X-SLURM-USER-TOKEN": token} | ({"X-SLURM-USER-NAME": user} if user else {})
        timeout = aiohttp.ClientTimeout(total=self.limit)
        tls = ssl.create_default_context(cafile=self.ca_file) if self.ca_file else True
        try:
            async with aiohttp.ClientSession(
                timeout=timeout, connector=GuardedConnector(ssl=tls)
            ) as session:
                with checked_by(guard):
                    response = await session.request(
                        method, self.url + path, json=body, headers=headers, allow_redirects=False
                    )
                async with response:
                    status, content = response.status, await response.read()
        except TimeoutError:
            text = f"slurmrestd at {self.url} did not answer within {self.limit:g} s"
            raise Unreachable(text) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"slurmrestd at {self.url} can't be reached: {error}") from error
        return self._answer(method, path, status, content)

    def _answer(self, method: str, path: str, status: int, content: bytes) -> dict[str, Any]:
        try:
            answer = msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError):
            answer = None
        error_text = first_error(answer) if isinstance(answer, dict) else ""
        if status == 200 and isinstance(answer, dict) and not error_text:
            return answer
        shown = error_text or content[:200].decode(errors="replace").strip() or "an empty answer"
        text = f"{method} {path}: {status} {shown}"
        if NO_NODE in error_text or error_text.startswith(_UNKNOWN_NODE):
            raise NotFound(text)
        if status in (401, 403) or any(part in shown for part in NO_RIGHT):
            raise Refused(f"{refusal(text, self.user)} ({self._about_token()})")
        if error_text.startswith("Unspecified error"):
            # Slurm 22.05 has these words for a slurmctld that is away, and for each bad token.
            text += "; slurmctld does not answer slurmrestd, or does not accept the token"
            raise Unreachable(f"{text} ({self._about_token()})")
        if status == 404 and not error_text:
            raise _NoSuchPath(text)
        if status == 429 or "Rate limit" in error_text:
            raise Unreachable(text, status=429, retry_after=5.0)
        if status in (400, 405):
            raise Refused(text)
        raise Unreachable(text)

    # -- the token -----------------------------------------------------------------------

    def _token(self) -> str:
        try:
            with self.token_file.open(encoding="ascii") as opened:
                token = opened.read(_LONGEST_TOKEN).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(f"{self.token_file} can't be read: {error}; {_EXPECTED}") from error
        # scontrol token prints SLURM_JWT=TOKEN.
        token = token.removeprefix("SLURM_JWT=")
        if token.count(".") != 2 or not token.isprintable() or " " in token:
            raise Refused(f"{self.token_file} has no token; {_EXPECTED}")
        return token

    def _about_token(self) -> str:
        claims = _claims(self._token())
        ends, about = claims.get("exp"), f"user {self.user}, token of {self.token_file}"
        if not isinstance(ends, int | float) or not 0 < ends < 1e11:
            return about
        over = "expired" if ends < self.wall() else "ends"
        return f"{about}, which {over} at {write_time(ends)}"


#: Slurm 24.11 answers a read of a node that it does not know with this error inside a 200.
_UNKNOWN_NODE = "No error: Failure to query node "
_EXPECTED = "expected the output of: scontrol token username=NAME lifespan=SECONDS"


class _NoSuchPath(Unreachable):
    """The server does not know the path."""


def _claims(token: str) -> Mapping[str, Any]:
    """The token's claims, for people: slurmctld alone verifies it."""
    part = token.split(".")[1]
    try:
        claims = read_json(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _shown(change: Mapping[str, Any]) -> str:
    """The first change, in the words of `scontrol`."""
    state = change.get("state")
    return f"state={state[0].lower()}" if state else f"reason={change['reason']}"
