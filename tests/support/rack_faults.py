"""The driver's lines of a switch tray that fails, as an agent tells of them.

On a GB200 NVL72 each node that the tray serves logs Xid 149 (NETIR_LINK_EVT, fatal) of a GPU and, a
millisecond later, Xid 154 of the same GPU: its recovery action is now "Drain and Reset".
"""

from aggregator.health.model import ClearedBy, Fault
from tests.support.replica import fault

DRIVER = "580.82.07"
#: By NVIDIA's table: NETIR_LINK_DOWN of a link whose signal is bad, and of one whose peer is.
RESET, PEER = "0x02a00011", "0x01500011"


def link_error(gpu: str, now: float, intr_info: str = RESET) -> Fault:
    details = {"unit": "NETIR_LINK_EVT", "intr_info": intr_info, "error_status": "0x00000000"}
    return xid(149, gpu, now, details)


def verdict(gpu: str, now: float, word: str = "drain-and-reset") -> Fault:
    return xid(154, gpu, now, {"verdict": word})


def xid(code: int, gpu: str, now: float, details: dict[str, str] | None = None) -> Fault:
    return fault(
        f"xid:{code}",
        gpu,
        first_at=now,
        last_at=now,
        occurrences=(now,),
        cleared_by=ClearedBy.GPU_RESET,
        details=details or {},
    )
