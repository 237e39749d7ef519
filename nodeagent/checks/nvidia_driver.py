"""Lines of the NVIDIA driver that are no Xid and say that a GPU or all programs cannot go on.

- ``NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0xffff:1863)``: the GPU does not start. Its
  "rm_init_adapter failed, device minor number 0" follows it. Drivers of before 331 name no GPU.
- ``NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to
  recover.`` and ``nvidia-uvm: uvm_global.c:425 uvm_global_set_fatal_error_impl[pid:7] Encountered
  a global fatal error: NV_ERR_ECC_ERROR``: every CUDA program fails until the module is loaded
  anew.
- ``NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!``: the
  driver has lost NVLinks, or cannot ask for them.
- ``nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further
  processing``: GPUDirect RDMA.

The component is the GPU where the line names one, else the node.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.driver_lines import DriverLines
from nodeagent.checks.loglines import first_bytes, sighting, text
from nodeagent.model import ClearedBy, FaultSighting
from nodeagent.sources import Sources
from nodeagent.sources.kmsg import Record

NAME = "nvidia-driver"

_STARTS = (b"NVRM: ", b"nvidia-uvm: ", b"nvidia-peermem ", b"nvidia_peermem: ", b"nv_peer_mem ")

_ADDRESS = rb"(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"
_INIT = re.compile(
    rb"NVRM: (?:GPU (?:at )?" + _ADDRESS + rb": )?"
    rb"(?:RmInitAdapter failed! ?(\([0-9a-fA-Fx:]{1,40}\))?"
    rb"|rm_init_adapter(?:\(\d{1,3}\))? failed\b)"
)
_UVM = re.compile(
    rb"NVRM: (?:[\w() ]{1,60}: )?uvm encountered global fatal error (0x[0-9a-fA-F]{1,8})"
    rb"|nvidia-uvm: (?:uvm_[\w.]{1,30}:\d{1,6} )?(?:\w{1,60}(?:\[pid:\d{1,10}\])? )?"
    rb"Encountered a global fatal error: (\w{1,60})"
)
# src/nvidia/src/kernel/gpu/nvlink of NVIDIA's open-gpu-kernel-modules: a function, then a failure
# of links. Failures of the fabric's addresses and of features are left out.
_NVLINK = re.compile(
    rb"NVRM: (?:GPU\d{1,3} )?(knvlink\w{1,80}): (?=.{0,200}(?:"
    rb"Rx Detect Link mask!|postRxDetLinkMask failed|ALI (?:Error|Links)"
    rb"|[Ll]inks? (?:\d{1,3} |mask |setup |connection )?.{0,40}(?:failed|lost|down\b|degraded)"
    rb"|(?:[Ff]ailed to|FAILED TO|[Uu]nable to|Error|[Ll]ost|[Ll]oss).{0,80}"
    rb"\b(?i:(?:nv)?links?\d{0,2})\b|GPU\d{1,3} marked Degraded\b"
    rb"|Timed out retrying to send inband data|NVLINK Degradation))"
)
_PEERMEM = re.compile(
    rb"(?:nvidia-peermem|nv_peer_mem) (\w{1,60}):\d{1,6} ERROR "
    rb"|nvidia_peermem: (Unknown symbol|disagrees about version of symbol) "
)

INIT_FAILED, UVM_FATAL, NVLINK, PEERMEM = "init-failed", "uvm-fatal", "nvlink", "peermem"


class NvidiaDriver(DriverLines):
    """Reads records as they come."""

    first = first_bytes(_STARTS)

    def read(self, record: Record) -> Sequence[FaultSighting]:
        """The driver's trouble in this record. Raises no exception, whatever the record."""
        line = record.text
        if not line.startswith(_STARTS):
            return ()
        found = _parse(line)
        if found is None:
            return ()
        if self._is_packet(line):
            return ()
        kind, raw_address, ends, details = found
        component = ""
        if raw_address:
            address = self._own(raw_address)
            if address is None:
                return ()
            component = self._gpus.component(address)
            details["pci"] = address
        code = f"{NAME}:{kind}"
        return (
            sighting(
                record,
                check=NAME,
                code=code,
                component=component,
                cleared_by=ends,
                details=details,
            ),
        )


def _parse(line: bytes) -> tuple[str, bytes, ClearedBy, dict[str, str]] | None:
    """Kind, address of the GPU if the line names one, the sign that ends it, details."""
    init = _INIT.match(line)
    if init is not None:
        details = {"status": text(init[2] or b"")}
        # Without an address no reset of a GPU can end it: `gpu-inventory` sees one that stays away.
        ends = ClearedBy.GPU_RESET if init[1] else ClearedBy.EXPIRY
        return INIT_FAILED, init[1] or b"", ends, details
    uvm = _UVM.match(line)
    if uvm is not None:
        return UVM_FATAL, b"", ClearedBy.REBOOT, {"error": text(uvm[1] or uvm[2])}
    nvlink = _NVLINK.match(line)
    if nvlink is not None:
        return NVLINK, b"", ClearedBy.EXPIRY, {"function": text(nvlink[1])}
    peermem = _PEERMEM.match(line)
    if peermem is not None:
        return PEERMEM, b"", ClearedBy.EXPIRY, {"function": text(peermem[1] or b"")}
    return None


def _build(sources: Sources, _options: Mapping[str, Any]) -> NvidiaDriver:
    return NvidiaDriver(sources.gpus, sources.driver_log)


SPEC = CheckSpec(
    name=NAME,
    sees="a GPU that the driver cannot start, unified memory (UVM) that has failed for every "
    "program, NVLinks that the driver lost, errors of GPUDirect RDMA (nvidia-peermem)",
    source="kernel log, lines of the NVIDIA driver that are no Xid",
    cost="a comparison of 6 bytes for each kernel record",
    blind_to="which GPU an NVLink line is about; drivers before 570 log the UVM's error in debug "
    "builds alone",
    interval=0,
    deadline=0,
    build=_build,
)
