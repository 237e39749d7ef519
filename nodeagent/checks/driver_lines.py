"""Which GPU of this node a line of the NVIDIA driver is about; for `xid` and `nvidia_driver`."""

from nodeagent.sources.driver_log import DriverLog
from nodeagent.sources.gpus import GpuMap, normalise
from nodeagent.sources.kmsg import is_packet_log


class DriverLines:
    """A base of checks of the driver's lines.

    ``foreign`` counts lines about GPUs that the node does not have, ``packets`` lines that were a
    logged packet's prefix, which is an attempted forgery. ``log`` gets the driver's messages about
    each GPU.
    """

    def __init__(self, gpus: GpuMap, log: DriverLog | None = None) -> None:
        self.foreign = 0
        self.packets = 0
        self._gpus = gpus
        self._log = log or DriverLog()

    def _is_packet(self, line: bytes) -> bool:
        """Whether the line is a logged packet; it is counted then."""
        found = is_packet_log(line)
        self.packets += found
        return found

    def _own(self, raw_address: bytes) -> str | None:
        """The address of an error's GPU ("0000:3b:00"); None where it is not of this node."""
        address = normalise(raw_address.decode("ascii"))
        if address is None or not self._gpus.has_gpu(address):
            self.foreign += 1
            return None
        self._log.erred(address)
        return address
