"""A gateway's page in front of a controller's, by real listeners."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aggregator.leader.lease import Candidate
from aggregator.relay.credentials import RelayConfigError
from aggregator.tls.client_context import FollowedAuthorities
from aggregator.web.access_guard import PageAccess
from aggregator.web.gateway_page import GatewayPage, GatewayState
from tests.web.support import Served

TOKEN = "of-a-replica"


@dataclass
class GatewayOf:
    """A running gateway; ``controller`` is the one that its Lease names."""

    candidate: Candidate
    controller: Candidate | None
    url: str = ""
    page: GatewayPage = field(init=False)
    problems: list[str] = field(default_factory=list)
    token: str = TOKEN
    ago: float | None = 12.0

    def own_token(self) -> str:
        if not self.token:
            raise RelayConfigError("replicas.token_file: /token can't be read")
        return self.token

    def name_controller(self, controller: Candidate | None) -> None:
        """As a change of the Lease's holder does."""
        self.controller = controller
        self.page.end_superseded()


@asynccontextmanager
async def gateway_of(
    served: Served | str,
    *,
    ssl: Any = None,
    ca_file: Path | None = None,
    access: PageAccess | None = None,
    agents: Callable[[], int] = lambda: 7,
    problems: Sequence[str] = (),
) -> AsyncIterator[GatewayOf]:
    """``served`` may be a URL instead."""
    url = served if isinstance(served, str) else served.url
    candidate = Candidate("sickbay-aggregator-0", "e1", "127.0.0.1:1", url, "0.1.0")
    gateway = GatewayOf(candidate, candidate, problems=list(problems))
    gateway.page = GatewayPage(
        GatewayState(
            name="sickbay-aggregator-1",
            version="0.1.0",
            controller=lambda: gateway.controller,
            renewed_ago=lambda: gateway.ago,
            problems=lambda: gateway.problems,
            relayed=lambda: gateway.controller is not None,
            dropped=lambda: 3,
            connected=agents,
            certificates=lambda: {"agents": 1.5},
            token=gateway.own_token,
            token_errors=(RelayConfigError,),
        ),
        authorities=FollowedAuthorities(ca_file),
        access=access or PageAccess(),
    )
    bound = await gateway.page.start("127.0.0.1:0", ssl)
    gateway.url = f"{'https' if ssl else 'http'}://{bound}"
    try:
        yield gateway
    finally:
        await gateway.page.close()
