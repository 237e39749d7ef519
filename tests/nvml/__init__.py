"""GPUs for tests: the real pynvml on a C library of our own, and a PCI bus to go with it.

    gpus = FakeGpus(tmp_path)
    gpus.write([gpu(0), gpu(1)])
    nvml = Nvml(machine=gpus.machine(), worker_env=gpus.env)
    gpus.fail("nvmlDeviceGetRemappedRows", gpu=1, hang=True)

The library is compiled with gcc once per content and kept outside the tree.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeagent.clock import Clock, SystemClock
from nodeagent.sources.host import HostRoots

_SOURCE = Path(__file__).with_name("nvml.c")
_FLAGS = ("-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-Wl,-soname,libnvidia-ml.so.1")

#: "Does not have it", for any count of a GPU.
UNSUPPORTED = -1


@dataclass(frozen=True)
class FakeGpu:
    """A GPU as NVML tells of it; None is "does not have it".

    ``ecc``: volatile corrected, volatile uncorrected, the same two in the GPU's life.
    ``rows``: corrected, uncorrected, pending, failure. ``clocks``: bits of the event reasons.
    ``sm_clock`` is in MHz, ``load`` in per cent.
    ``reserve``: banks with full, high, partial, low, no reserve. ``pages``: the times, in seconds
    since 1970, of those retired for single-bit and double-bit errors; ``pages_pending``.
    ``links``: 1 for each NVLink that is active. ``link_errors``: by (field id, link), for those
    that differ from 0. ``link_fields``: the field ids of error counters that exist;
    ``link_counters``: the older counters, by (counter, link). ``fabric``: state, status, health
    mask, health summary, clique, and the newest version of the structure that the driver knows.
    ``mig``: the present and the pending mode. ``temperature``, ``memory`` and ``thresholds``
    (shutdown, slowdown, memory) in Celsius, ``margin`` below the slowdown as Hopper tells it,
    ``power``: draw and limit in mW. ``c2c``: 1 for each link to the CPU that is active.
    ``ecc_mode``: the present and the pending mode. ``virtualization``: 2 in a guest with a vGPU,
    ``licence``: whether it has one. ``pids``: its compute processes.
    """

    uuid: str
    pci: str
    name: str = "NVIDIA H100 80GB HBM3"
    ecc: tuple[int, int, int, int] = (0, 0, 0, 0)
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    recovery_action: int = 0
    clocks: int | None = 1
    sm_clock: int | None = 345
    load: int | None = 0
    replays: int | None = 0
    reserve: tuple[int, int, int, int, int] | None = (2559, 1, 0, 0, 0)
    pages: tuple[Sequence[float], Sequence[float]] | None = None
    pages_pending: bool = False
    sram: bool | None = False
    links: Sequence[int] = (1,) * 18
    link_fields: Sequence[int] = (161, 162, 163)
    link_errors: Mapping[tuple[int, int], int] = field(default_factory=dict)
    link_counters: Mapping[tuple[int, int], int] = field(default_factory=dict)
    fabric: tuple[int, int, int, int, int, int] | None = (3, 0, 0, 1, 7, 3)
    mig: tuple[int, int] | None = (0, 0)
    temperature: int | None = 41
    memory: int | None = 46
    margin: int | None = None
    thresholds: tuple[int, int, int] | None = (92, 89, 95)
    power: tuple[int, int] = (114_000, 700_000)
    persistence: int | None = 1
    c2c: Sequence[int] = ()
    ecc_mode: tuple[int, int] | None = None
    compute_mode: int | None = None
    virtualization: int | None = None
    licence: int | None = None
    pids: Sequence[int] = ()

    def values(self, index: int) -> list[str]:
        """The lines of the scenario that say all this."""
        found: list[tuple[str, int, Sequence[int]]] = []
        if self.recovery_action >= 0:
            found.append(("field:230", self.recovery_action, [0]))
        for name, value in (
            ("clocks", self.clocks),
            ("load", self.load),
            ("field:94", self.replays),
            ("temperature", self.temperature),
            ("field:82", self.memory),
            ("margin", self.margin),
            ("field:186", self.power[0]),
            ("power-limit", self.power[1]),
            ("persistence", self.persistence),
            ("compute-mode", self.compute_mode),
            ("virtualization", self.virtualization),
            ("licence", self.licence),
            ("field:170", len(self.c2c) or None),
        ):
            if value is not None:
                found.append((name, value, [0]))
        if self.sm_clock is not None:
            found.append(("clock", self.sm_clock, [1]))
        if self.sram is not None:
            found.append(("sram", int(self.sram), [0]))
        for name, values in (
            ("reserve", self.reserve),
            ("fabric", self.fabric),
            ("mig", self.mig),
            ("ecc-mode", self.ecc_mode),
            ("threshold", self.thresholds),
            ("field:171", self.c2c),
        ):
            found += [(name, value, [scope]) for scope, value in enumerate(values or ())]
        if self.pages is not None:
            found.append(("pages", int(self.pages_pending), [0]))
            for cause, times in zip(("single", "double"), self.pages, strict=True):
                found += [(f"pages:{cause}", 1, [int(at * 1e6)]) for at in times]
        found.append(("pid", 1, list(self.pids)))
        found += [("link", state, [link]) for link, state in enumerate(self.links)]
        for number in self.link_fields:
            good = [i for i in range(len(self.links)) if (number, i) not in self.link_errors]
            found.append((f"field:{number}", 0, good))
        found += [(f"field:{n}", count, [link]) for (n, link), count in self.link_errors.items()]
        found += [(f"counter:{n}", c, [link]) for (n, link), c in self.link_counters.items()]
        return [
            f"value {index} {name} {value} {' '.join(map(str, scopes))}"
            for name, value, scopes in found
            if scopes
        ]


def uuid_of(index: int) -> str:
    return f"GPU-{index:08x}-5ec7-4a11-9d00-{index:012x}"


def pci_of(index: int) -> str:
    return f"0000:{0x1B + 0x10 * index:02x}:00"


def gpu(index: int, **values: Any) -> FakeGpu:
    """The GPU at ``index`` of a usual machine, but for ``values``."""
    return FakeGpu(**{"uuid": uuid_of(index), "pci": pci_of(index), **values})


def library() -> Path:
    """The compiled library, built if its source has changed."""
    content = hashlib.sha256(_SOURCE.read_bytes() + " ".join(_FLAGS).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "sickbay/nvml" / content
    target = folder / "libnvidia-ml.so.1"
    if not target.exists():
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            raise RuntimeError("these tests need a C compiler: apt-get install gcc libc6-dev")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / target.name
            subprocess.run([compiler, *_FLAGS, "-o", built, _SOURCE], check=True)
            built.rename(target)  # two test runs may build at once
    return target


#: The text of sysfs for a healthy link.
PCIE_LINK = {
    "current_link_width": "16",
    "max_link_width": "16",
    "current_link_speed": "32.0 GT/s PCIe",
    "aer_dev_correctable": "RxErr 0\nBadTLP 0\nRollover 0\nTimeout 0\nTOTAL_ERR_COR 0",
    "aer_dev_nonfatal": "Undefined 0\nTOTAL_ERR_NONFATAL 0",
    "aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 0",
}


def fake_pci(root: Path, addresses: Iterable[str], driver: str = "nvidia") -> Path:
    """A sysfs under ``root`` with an NVIDIA GPU at each address; those at no address are gone."""
    devices = root / "bus/pci/devices"
    drivers = root / "bus/pci/drivers"
    devices.mkdir(parents=True, exist_ok=True)
    (root / "module/nvidia").mkdir(parents=True, exist_ok=True)
    wanted = {f"{address}.0" for address in addresses}
    for device in devices.iterdir():
        if device.name not in wanted:
            shutil.rmtree(device)
    for name in wanted:
        device = devices / name
        if not device.exists():
            device.mkdir()
            for file, text in PCIE_LINK.items():
                (device / file).write_text(f"{text}\n")
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
        (device / "driver").unlink(missing_ok=True)
        if driver:
            (drivers / driver).mkdir(parents=True, exist_ok=True)
            (device / "driver").symlink_to(f"../../drivers/{driver}")
    return root


def link_the_rest(sys: Path, real: Path = Path("/sys")) -> None:
    """Give the made-up ``sys`` all of this machine's own that it does not have: disks, NICs, ..."""
    for each in real.iterdir():
        ours = sys / each.name
        if not ours.exists():
            ours.symlink_to(each)
        elif not ours.is_symlink() and each.name in ("bus", "module"):
            link_the_rest(ours, each)


class FakeGpus:
    """A machine's GPUs, changed while an agent looks at them. Lives in ``folder``."""

    def __init__(self, folder: Path, gpus: Sequence[FakeGpu] = ()) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._scenario = folder / "scenario"
        self._calls = folder / "calls"
        self._gpus: tuple[FakeGpu, ...] = tuple(gpus)
        self._rules: dict[tuple[str, int], str] = {}
        self._events: list[str] = []
        self._claimed: int | None = None
        self._system: dict[tuple[str, int], int] = {}
        self.sys = folder / "sys"
        self.write(gpus)

    @property
    def env(self) -> Mapping[str, str]:
        """The variables by which a worker (or a whole agent) finds these GPUs."""
        return {
            "LD_LIBRARY_PATH": str(library().parent),
            "SICKBAY_TEST_NVML_SCENARIO": str(self._scenario),
            "SICKBAY_TEST_NVML_CALLS": str(self._calls),
        }

    def machine(
        self, clock: Clock | None = None, root: Path | None = None, proc: Path = Path("/proc")
    ) -> HostRoots:
        """A machine with this PCI bus and, unless ``root`` says so, nothing of the real host.

        ``proc`` has its processes; by default those of the real host.
        """
        empty = self.folder / "root"
        empty.mkdir(exist_ok=True)
        return HostRoots(clock=clock or SystemClock(), root=root or empty, proc=proc, sys=self.sys)

    def write(self, gpus: Sequence[FakeGpu], *, pci: Iterable[str] | None = None) -> None:
        """Let NVML list ``gpus``, and the bus the same ones or those at ``pci``."""
        self._gpus = tuple(gpus)
        fake_pci(self.sys, [gpu.pci for gpu in gpus] if pci is None else pci)
        self._save()

    def fail(
        self,
        call: str,
        gpu: int = -1,
        *,
        code: int | None = None,
        hang: bool = False,
        abort: bool = False,
        open_path: Path | None = None,
    ) -> None:
        """Let ``call`` (an NVML function's name, or "field:230") on ``gpu`` (-1: any) fail.

        ``code`` is returned; ``hang`` lasts until ``heal``; ``open_path`` waits in the kernel for
        as long as an open for writing of that file does.
        """
        if code is not None:
            what = f"error {code}"
        elif hang:
            what = "hang"
        elif abort:
            what = "abort"
        elif open_path is not None:
            what = f"open {open_path}"
        else:
            raise ValueError("say how it fails: code, hang, abort or open_path")
        self._rules[call, gpu] = what
        self._save()

    def claim(self, count: int) -> None:
        """Let NVML say that there are ``count`` GPUs."""
        self._claimed = count
        self._save()

    def confidential(self, *, ready: bool) -> None:
        """Let NVML say that confidential computing is on, and whether its GPUs accept work."""
        self._system |= {("cc", 0): 1, ("cc", 1): int(ready)}
        self._save()

    def exclude(self, *addresses: str) -> None:
        """Let NVML name GPUs that the driver's configuration leaves out."""
        for number, address in enumerate(addresses):
            self._system["excluded", number] = int(address.split(":")[1], 16)
        self._save()

    def drain(self, address: str) -> None:
        """Let NVML say that an administrator has drained this GPU (``nvidia-smi drain``)."""
        self._system["drained", int(address.split(":")[1], 16)] = 1
        self._save()

    def xid(self, gpu: int, code: int) -> None:
        """Let NVML tell of an Xid, to those who listen by now."""
        self._events.append(f"event {len(self._events) + 1} {gpu} {code}")
        self._save()

    def heal(self) -> None:
        """Let every call work again, and those that hang return."""
        self._rules.clear()
        self._save()

    def calls(self, call: str) -> int:
        """How often ``call`` has been made, by all processes together."""
        if not self._calls.exists():
            return 0
        return sum(line.split()[1] == call for line in self._calls.read_text().splitlines())

    def has_hung(self, pid: int) -> bool:
        """Whether the latest call of this process hangs, or has hung."""
        calls = self._calls.read_text() if self._calls.exists() else ""
        mine = [line for line in calls.splitlines() if line.startswith(f"{pid} ")]
        return bool(mine) and mine[-1].split()[1] == "hangs"

    def _save(self) -> None:
        lines = ["driver 580.65.06"]
        for index, each in enumerate(self._gpus):
            lines += each.values(index)
            numbers = " ".join(map(str, (*each.ecc, *each.rows, each.recovery_action)))
            lines.append(f"gpu {each.uuid} {each.pci} {numbers} {each.name}")
        lines += [f"rule {call} {gpu} {what}" for (call, gpu), what in self._rules.items()]
        lines += self._events
        lines += [f"value -1 {name} {n} {scope}" for (name, scope), n in self._system.items()]
        if self._claimed is not None:
            lines.append(f"value -1 count {self._claimed} 0")
        fresh = self._scenario.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.rename(self._scenario)
