"""The part of the node that a kernel log line is about: a GPU, a device, an interface, a mount."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Protocol

from nodeagent.checks.disk_common import Watch
from nodeagent.dataclass import dataclass
from nodeagent.sources import Sources
from nodeagent.sources.block_devices import Stacks
from nodeagent.sources.gpus import normalise
from nodeagent.sources.mountinfo import Mount
from nodeagent.sources.pci_bus import PciBus

Fields = Mapping[str, str]

#: Kinds of places whose fields name a block device, and all kinds.
OF_MOUNTS = frozenset({"mount", "controller", "pool", "transport"})
KINDS = OF_MOUNTS | {"gpu", "device", "adapter", "interface", "rdma"}

#: A path of a drive ("nvme0c1n1") has no block device: its name is without the path's.
_PATH = re.compile(r"(?<=\d)c\d+(?=n)")


@dataclass(frozen=True, slots=True)
class LinePlace:
    """``before``, ``after``: words for people around the kernel's, of which ``most`` are kept."""

    component: str
    details: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    after: str = ""
    most: int = 512


class LinePlaces(Protocol):
    """Where on the node a line's fields point."""

    def find(self, kind: str, fields: Fields) -> Sequence[LinePlace]:
        """The parts of this ``kind`` that the fields name; empty for one that the node lacks."""
        ...


class NodePlaces:
    """The node's own, through sysfs and the mount table."""

    def __init__(
        self,
        sources: Sources,
        watch: Watch | None = None,
        bus: PciBus | None = None,
        stacks: Stacks | None = None,
    ) -> None:
        self._sources = sources
        self._bus = bus or PciBus(sources.machine)
        self._classes = sources.machine.sys / "class"
        self._watch = watch
        self._stacks = stacks or Stacks(sources.machine)
        self._finders: Mapping[str, Callable[[Fields], Sequence[LinePlace]]] = {
            "gpu": self._gpu,
            "device": self._device,
            "adapter": self._adapter,
            "interface": partial(self._of_class, "net", "iface"),
            "rdma": partial(self._of_class, "infiniband", "rdma"),
            "mount": self._mounts_on,
            "controller": self._mounts_on_controller,
            "pool": self._mounts_of_pool,
            "transport": self._mounts_behind,
        }

    def find(self, kind: str, fields: Fields) -> Sequence[LinePlace]:
        return self._finders[kind](fields)

    def _gpu(self, fields: Fields) -> Sequence[LinePlace]:
        address = normalise(fields["gpu"])
        if address is None or not self._sources.gpus.has_gpu(address):
            return ()
        self._sources.driver_log.failed_to_start(address, self._sources.machine.clock.boottime())
        return (LinePlace(self._sources.gpus.component(address), {"pci": address}),)

    def _device(self, fields: Fields) -> Sequence[LinePlace]:
        address = pci_address(fields)
        if not self._bus.has(address):
            return ()
        names: list[str] = []
        for each in self._bus.behind(address):
            names += self._gpu_name(each)
            names += self._bus.interfaces(each)
        behind = list(dict.fromkeys(names))
        component = next(iter(self._gpu_name(address)), f"pci:{address}")
        after = f" (leads to {', '.join(behind)})" if behind else ""
        details = {"pci": address, "behind": " ".join(behind)}
        return (LinePlace(component, details, after=after, most=300),)

    def _gpu_name(self, address: str) -> list[str]:
        slot = normalise(address)
        own = slot is not None and self._sources.gpus.has_gpu(slot)
        return [self._sources.gpus.component(address)] if own else []

    def _adapter(self, fields: Fields) -> Sequence[LinePlace]:
        address = pci_address(fields)
        if not self._bus.has(address):
            return ()
        names = " ".join(self._bus.interfaces(address))
        return (LinePlace(f"pci:{address}", {"driver": fields["driver"], "interfaces": names}),)

    def _of_class(self, kind: str, field_name: str, fields: Fields) -> Sequence[LinePlace]:
        """An interface in the node's own network namespace, or an RDMA device."""
        name = fields[field_name]
        there = name not in (".", "..") and (self._classes / kind / name).exists()
        return (LinePlace(name),) if there else ()

    def _mounts_on(self, fields: Fields) -> Sequence[LinePlace]:
        device = device_of(fields)
        sector = fields.get("sector")
        self._refresh()
        return _on(self._stacks.points(device, None if sector is None else int(sector)), device)

    def _mounts_on_controller(self, fields: Fields) -> Sequence[LinePlace]:
        self._refresh()
        return _on(self._stacks.controller(fields["controller"]), fields["controller"])

    def _mounts_of_pool(self, fields: Fields) -> Sequence[LinePlace]:
        """The watched filesystems of a ZFS pool; the pool itself where there is none."""
        pool = fields["pool"]
        points = [
            mount.name
            for mount in self._mounts() or ()
            if mount.fstype == "zfs" and mount.source.partition("/")[0] == pool
        ]
        return _on(points, pool) or (LinePlace(pool, {"device": pool}),)

    def _mounts_behind(self, fields: Fields) -> Sequence[LinePlace]:
        """The mounts on the disks behind a session or port; itself where sysfs has no disk."""
        name = transport_of(fields)
        kind = "iscsi_session" if "session" in fields else "fc_remote_ports"
        disks = [
            each.name for each in (self._classes / kind / name).glob("device/target*/*/block/*")
        ]
        self._refresh()
        points = [point for disk in disks for point in self._stacks.points(disk, None)]
        return _on(sorted({*points}), name) if disks else (LinePlace(name),)

    def _refresh(self) -> None:
        if self._stacks.due():
            mounts = self._mounts()
            if mounts is not None:
                self._stacks.read_stacks(mounts)

    def _mounts(self) -> Sequence[Mount] | None:
        """The watched mounts, or None: disk-readonly reports a table that cannot be read."""
        try:
            return () if self._watch is None else self._watch.mounts()
        except OSError:
            return None


def device_of(fields: Fields) -> str:
    """The block device that a line names, or its numbers ("253:0")."""
    return _PATH.sub("", fields.get("dev") or fields.get("numbers", ""))


def transport_of(fields: Fields) -> str:
    """The iSCSI session or the port of Fibre Channel that a line names."""
    return f"session{fields['session']}" if "session" in fields else f"rport-{fields['port']}"


def pci_address(fields: Fields) -> str:
    """The PCI device that a line names; ``sid`` is its bus and function as a number."""
    if "sid" in fields:
        source = int(fields["sid"], 16)
        return f"0000:{source >> 8:02x}:{source >> 3 & 31:02x}.{source & 7}"
    address = fields.get("bdf", "")
    return fields.get("pci") or (address if address.count(":") == 2 else f"0000:{address}")


def _on(points: Sequence[str], device: str) -> Sequence[LinePlace]:
    return [
        LinePlace(point, {"device": device}, before=f"{device}, under {point}: ", most=400)
        for point in points
    ]
