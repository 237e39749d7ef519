"""Which replica is the controller: the answer of the Lease, as a gateway needs it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ControllerAddress:
    """The replica that holds the Lease, and the host:port of its gRPC listener."""

    name: str
    address: str


class ControllerDirectory(Protocol):
    """Implemented by what reads the Lease."""

    def controller(self) -> ControllerAddress | None:
        """The other replica that the Lease names, or None, also where we are the controller."""
        ...

    def renewed_within(self, seconds: float) -> bool:
        """Whether that replica was seen to renew the Lease ``seconds`` seconds ago or later."""
        ...

    def on_change(self, call: Callable[[], None]) -> None:
        """Have it called, in the event loop, when `controller` gives another answer."""
        ...
