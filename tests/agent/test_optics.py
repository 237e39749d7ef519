"""Transceivers: what the kernel is asked, the places of the readings, the verdict, measurements."""

import _socket
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks import optics
from nodeagent.checks.base import Off
from nodeagent.model import Status
from nodeagent.sources import disk_child
from nodeagent.sources.disk_probe import DiskProbe, Hung, Page, ProbeRefused, Result
from tests.agent.machines import built, made_up, options, sources, this_machine, verdicts
from tests.agent.test_nic_health import port
from tests.support.present import present

#: A transceiver's memory: the bytes at each address of a page, by page and I2C address.
Memory = dict[tuple[int, int], bytearray]
FAMILY, EIO, EOPNOTSUPP = 21, 5, 95


def words(memory: bytearray, at: int, *values: int) -> None:
    memory[at : at + 2 * len(values)] = struct.pack(f">{len(values)}H", *values)


def qsfp(kind: int = 0x11) -> Memory:
    """Four lanes at 1 mW, 6 mA and 40 degrees, by SFF-8636."""
    first, limits = bytearray(256), bytearray(256)
    first[0] = kind
    first[168:184] = b"MMA1B00-C100D   "
    words(first, 22, 40 * 256)
    words(first, 34, 10_000, 10_100, 9_900, 10_050)
    words(first, 42, 3_000, 3_100, 2_900, 3_050)
    words(first, 50, 9_000, 9_000, 8_800, 9_000)
    words(limits, 128, 75 * 256, 0, 70 * 256, 0)
    words(limits, 176, 30_000, 500, 20_000, 800)
    words(limits, 192, 30_000, 700, 20_000, 900)
    return {(0, 0x50): first, (3, 0x50): limits}


def cmis(kind: int = 0x19) -> Memory:
    """Eight lanes at 2 mW, of which six work, by CMIS."""
    first, limits, lanes = bytearray(256), bytearray(256), bytearray(256)
    first[0] = kind
    first[148:164] = b"MMS4X00-NM      "
    words(first, 14, 51 * 256 + 128)
    words(limits, 128, 80 * 256, 0, 75 * 256, 0)
    words(limits, 176, 50_000, 1_000, 40_000, 2_000)
    words(limits, 192, 50_000, 600, 40_000, 900)
    words(lanes, 154, *[20_000] * 6)
    words(lanes, 170, *[25_000] * 6)
    words(lanes, 186, *[18_000] * 6)
    return {(0, 0x50): first, (2, 0x50): limits, (17, 0x50): lanes}


def sfp() -> Memory:
    """One lane, by SFF-8472: the readings are at an address of their own."""
    names, readings = bytearray(256), bytearray(256)
    names[0] = 0x03
    names[40:56] = b"SFP-10G-SR      "
    words(readings, 0, 70 * 256)
    words(readings, 24, 15_000, 900)
    words(readings, 32, 15_000, 250)
    words(readings, 96, 0x10000 - 5 * 256, 0, 3_500, 6_000, 5_000)
    return {(0, 0x50): names, (0, 0x51): readings}


class Kernel:
    """Answers as net/ethtool/eeprom.c does, and refuses what its policy refuses."""

    def __init__(self, memory: Memory, port_name: str = "eth0", error: int = 0) -> None:
        self.memory = memory
        self.port_name = port_name
        self.error = error
        self.pages: list[tuple[int, int, int]] = []
        self._reply = b""

    def __call__(self, *kind: int) -> "Kernel":
        assert kind == (_socket.AF_NETLINK, _socket.SOCK_RAW, 16)
        return self

    def send(self, message: bytes) -> None:
        length, kind, flags, _, _ = struct.unpack_from("=IHHII", message)
        assert (length, flags) == (len(message), 1)
        command, version = message[16:18]
        assert version == 1
        found = attributes(message[20:])
        if kind == 0x10:
            assert (command, found) == (3, {2: b"ethtool\0"})
            body = attribute(2, b"ethtool\0") + attribute(1, struct.pack("=H", FAMILY))
            self._reply = self._message(0x10, body)
            return
        assert (kind, command) == (FAMILY, 31)
        assert attributes(found[0x8001]) == {2: self.port_name.encode() + b"\0"}
        offset, size = (struct.unpack("=I", found[number])[0] for number in (2, 3))
        [page], [address] = found[4], found[6]
        assert size == 128
        assert offset in (0, 128)
        assert not page or offset == 128, "a lower half is page 0 alone"
        self.pages.append((page, offset, address))
        memory = self.memory.get((page, address))
        if self.error or memory is None:
            body = struct.pack("=i", -(self.error or EIO)) + message[:16]
            self._reply = struct.pack("=IHHII", 16 + len(body), 2, 0, 1, 0) + body
            return
        header = attribute(1, attribute(1, struct.pack("=I", 4)))
        self._reply = self._message(
            FAMILY, header + attribute(7, bytes(memory[offset : offset + 128]))
        )

    def _message(self, kind: int, body: bytes) -> bytes:
        return struct.pack("=IHHIIBBH", 20 + len(body), kind, 0, 1, 0, 1, 2, 0) + body

    def recv(self, most: int) -> bytes:
        assert most >= len(self._reply)
        return self._reply


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(raw: bytes) -> dict[int, bytes]:
    found = {}
    while raw:
        length, kind = struct.unpack_from("=HH", raw)
        assert 4 <= length <= len(raw)
        found[kind] = raw[4:length]
        raw = raw[(length + 3) & ~3 :]
    return found


def read(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(_socket, "socket", kernel)
    return disk_child.answer("module", kernel.port_name.encode())


@pytest.mark.parametrize("name", ["e", "eth0", "ens1f0np0", "enp193s0f1np1"])
@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (qsfp, ("MMA1B00-C100D", 40.0, 75.0, 6_200, (9_900, 500), (8_800, 700))),
        (lambda: qsfp(0x0D), ("MMA1B00-C100D", 40.0, 75.0, 6_200, (9_900, 500), (8_800, 700))),
        (cmis, ("MMS4X00-NM", 51.5, 80.0, 50_000, (18_000, 600), (20_000, 1_000))),
        (lambda: cmis(0x1E), ("MMS4X00-NM", 51.5, 80.0, 50_000, (18_000, 600), (20_000, 1_000))),
        (sfp, ("SFP-10G-SR", -5.0, 70.0, 7_000, (5_000, 250), (6_000, 900))),
    ],
)
def test_the_readings_of_each_kind_of_module(
    memory: Callable[[], Memory],
    expected: tuple[object, ...],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    word, text = read(Kernel(memory(), name), monkeypatch).split()
    module = optics.parse(bytes.fromhex(text))
    assert word == "page"
    assert module is not None
    found = (module.part, module.temperature, module.hot_at, module.bias)
    assert (*found, module.light["rx-power"], module.light["tx-power"]) == expected


@pytest.mark.parametrize(("make", "flat"), [(qsfp, 0x04), (cmis, 0x80)])
def test_of_a_copper_cable_one_page_is_read_and_it_has_no_readings(
    make: Callable[[], Memory], flat: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = make()
    memory[0, 0x50][2] = flat
    kernel = Kernel(memory)
    text = read(kernel, monkeypatch).split()[1]
    assert kernel.pages == [(0, 0, 0x50)]
    assert optics.parse(bytes.fromhex(text)) is None


def test_a_refusal_is_told_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(Kernel(qsfp(), error=EOPNOTSUPP), monkeypatch) == "refused 95 module"
    lacking = {(0, 0x50): qsfp()[0, 0x50]}
    assert read(Kernel(lacking), monkeypatch) == f"refused {EIO} module"


def bytes_of(memory: Memory) -> bytes:
    first = memory[0, 0x50]
    pages = [key for key in memory if key[0] or key[1] != 0x50]
    if first[0] == 0x03:
        return bytes(first[:128] + memory[0, 0x51][:128])
    return bytes(first + b"".join(memory[key][128:] for key in pages))


def changed(at: int, value: int, page: int = 0) -> bytes:
    memory = qsfp()
    words(memory[page, 0x50], at, value)
    return bytes_of(memory)


@pytest.mark.parametrize(
    ("memory", "verdict", "text"),
    [
        (bytes_of(qsfp()), (Status.OK, ""), "MMA1B00-C100D: receives -0.0 dBm, 40 degrees"),
        (
            changed(36, 499),
            (Status.DEGRADED, "rx-power-low"),
            "-13.0 dBm; the module's alarm is at -13.0",
        ),
        (changed(36, 500), (Status.OK, ""), "receives -13.0 dBm"),
        (changed(36, 0), (Status.DEGRADED, "rx-power-low"), "less than -40 dBm"),
        (changed(56, 699), (Status.DEGRADED, "tx-power-low"), "-11.6 dBm"),
        (
            changed(22, 75 * 256),
            (Status.DEGRADED, "hot"),
            "75 degrees; the module's alarm is",
        ),
        (changed(22, 75 * 256 - 1), (Status.OK, ""), ""),
        (changed(128, 0, 3), (Status.OK, ""), ""),
    ],
)
def test_the_verdict_is_by_the_modules_own_alarms(
    memory: bytes, verdict: tuple[Status, str], text: str
) -> None:
    module = present(optics.parse(memory))
    found = optics.evaluate("eth0", module)
    assert (found.status, found.reason) == verdict
    assert text in found.message


def test_a_lane_whose_laser_is_off_is_not_in_use() -> None:
    memory = qsfp()
    for at in (36, 44, 52):
        words(memory[0, 0x50], at, 0)
    module = present(optics.parse(bytes_of(memory)))
    assert module.light["rx-power"] == (9_900, 500)
    words(memory[0, 0x50], 42, 0, 0, 0, 0)
    assert optics.parse(bytes_of(memory)) is None


@given(st.binary(max_size=600))
def test_any_memory_is_parsed_or_has_no_readings(memory: bytes) -> None:
    module = optics.parse(memory)
    if module is not None:
        optics.evaluate("eth0", module)
        assert all(0 <= abs(value) < 10**6 for value in optics.measure(module).values())


class Modules(DiskProbe):
    """Answers as the child would, and counts the questions."""

    answers: Mapping[str, Result]
    asked: list[str]

    async def modules(self, interfaces: Sequence[str]) -> dict[str, Result]:
        self.asked += interfaces
        return {name: self.answers[name] for name in interfaces}


async def test_ports_are_read_again_and_those_without_readings_after_a_new_link_alone(
    tmp_path: Path,
) -> None:
    machine = made_up(tmp_path)
    for name in ("eth0", "eth1", "eth2", "eth3"):
        port(machine, name)
    port(machine, "eth4", operstate="down")
    probe = Modules(machine=machine)
    parts = replace(sources(machine), disk=probe)
    probe.asked = []
    good = Page(bytes_of(cmis()))
    probe.answers = {
        "eth0": good,
        "eth1": ProbeRefused(EOPNOTSUPP, "module"),
        "eth2": Page(bytes(128)),
        "eth3": Hung(3.0, ""),
    }
    check = built(optics.SPEC, parts, options(optics.SPEC))
    assert verdicts(await check.run_check()) == {"eth0": (Status.OK, "")}
    assert probe.asked == ["eth0", "eth1", "eth2", "eth3"]
    probe.asked.clear()
    await check.run_check()
    assert probe.asked == ["eth0", "eth3"]
    probe.asked.clear()
    port(machine, "eth1", carrier_up_count=2)
    probe.answers = {**probe.answers, "eth1": good}
    assert set(verdicts(await check.run_check())) == {"eth0", "eth1"}
    now = machine.clock.boottime()
    measured = {(one.measure, one.component): one.value for one in parts.measurements.current(now)}
    assert measured == {
        (f"optics-{what}", name): value
        for name in ("eth0", "eth1")
        for what, value in {
            "rx-power": 430,
            "tx-power": 430,
            "bias": 50_000,
            "temperature": 52,
        }.items()
    }
    assert {one.model for one in parts.measurements.current(now)} == {"MMS4X00-NM"}


async def test_the_real_kernel_takes_the_question() -> None:
    """No module is here, so the answer is that the interface has none, and no error in it."""
    if os.geteuid():
        pytest.skip("needs CAP_NET_ADMIN")
    machine = this_machine()
    answers = await DiskProbe(machine=machine).modules(["lo", "not-there"])
    assert answers["lo"] == ProbeRefused(EOPNOTSUPP, "module")
    assert answers["not-there"] == ProbeRefused(19, "module")
    report = await built(optics.SPEC, sources(machine), options(optics.SPEC)).run_check()
    assert isinstance(report, Off)


async def test_without_sysfs_the_check_is_off(tmp_path: Path) -> None:
    check = built(optics.SPEC, sources(made_up(tmp_path)), options(optics.SPEC))
    assert isinstance(await check.run_check(), Off)
