"""File servers that do not answer the kernel, or have put this client out: NFS and Lustre.

- ``nfs: server 192.0.2.1 not responding, still trying``, also of lockd, rpcbind and nfs4.
- ``NFS: state manager: check lease failed on NFSv4 server 192.0.2.1 with error 5``
- ``LustreError: 167-0: scratch-OST0001-osc-ffff: This client was evicted by scratch-OST0001; in
  progress operations using this service will fail.``
- ``Lustre: scratch-OST0001-osc-ffff: Connection to scratch-OST0001 (at 192.0.2.1@o2ib) was lost; in
  progress operations using this service will wait for recovery to complete``

The component is the server, which serves many nodes: disk-mounts sees whether the mount here hangs.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.loglines import first_bytes, sighting, text
from nodeagent.model import FaultSighting
from nodeagent.sources import Sources
from nodeagent.sources.kmsg import Record, is_packet_log

NAME = "file-server"

_STARTS = (
    *(b"nfs: ", b"nfs4: ", b"nfs3: ", b"nfsacl: ", b"NFS: ", b"NFSv4: ", b"lockd: server "),
    *(b"rpcbind: server ", b"Lustre"),
)
_SERVER = rb"(\S{1,100})"
_RPC = re.compile(
    rb"(?:nfs[34]?|nfsacl|lockd|rpcbind): server " + _SERVER + rb" not responding, "
    rb"(still trying|timed out)"
)
_NFS_STATE = re.compile(
    rb"NFS: (?:state manager(?:: [\w ]{1,60}|[\w ]{1,60})? failed on NFSv4 server "
    + _SERVER
    + rb"|migration recovery failed \(server ([^\s()]{1,100})\)"
    rb"|\w{1,40}: (?:lost \d{1,10} locks|Lock reclaim failed!))"
    rb"|NFSv4: state recovery failed for open file "
)
_LUSTRE = re.compile(
    rb"Lustre(?:Error)?: (?:\d{1,10}-\d{1,10}: |\d{1,10}:(?:\d{1,10}:)?\([\w.:()]{1,120}\) )?"
    rb"(?:\S{1,120}: (?:This client was (evicted) by " + _SERVER + rb";"
    rb"|Connection to " + _SERVER + rb" \(at \S{1,100}\) was lost;)"
    rb"|Evicted from " + _SERVER + rb" \(at \S{1,100}\) after server handle changed )"
)


class FileServer:
    """Reads records as they come."""

    first = first_bytes(_STARTS)

    def read(self, record: Record) -> Sequence[FaultSighting]:
        """The server's failure in this record. Raises no exception, whatever the record."""
        line = record.text
        if not line.startswith(_STARTS) or is_packet_log(line):
            return ()
        found = _parse(line)
        if found is None:
            return ()
        kind, server, details = found
        return (
            sighting(record, check=NAME, code=f"{NAME}:{kind}", component=server, details=details),
        )


def _parse(line: bytes) -> tuple[str, str, dict[str, str]] | None:
    rpc = _RPC.match(line)
    if rpc is not None:
        return "not-responding", text(rpc[1]), {"outcome": text(rpc[2])}
    state = _NFS_STATE.match(line)
    if state is not None:
        return "state-lost", text(state[1] or state[2] or b""), {}
    lustre = _LUSTRE.match(line)
    if lustre is not None:
        kind = "connection-lost" if lustre[3] else "evicted"
        return kind, text(lustre[2] or lustre[3] or lustre[4]), {}
    return None


def _build(_sources: Sources, _options: Mapping[str, Any]) -> FileServer:
    return FileServer()


SPEC = CheckSpec(
    name=NAME,
    sees="NFS servers that do not answer, NFSv4 state that is lost, Lustre servers that evicted "
    "this client or lost its connection",
    source="kernel log, lines of NFS, SUNRPC and Lustre",
    cost="a comparison of 6 bytes for each kernel record",
    blind_to="filesystems in user space (FUSE, GPFS); a server that answers and is slow; that the "
    "server answers again",
    interval=0,
    deadline=0,
    build=_build,
)
