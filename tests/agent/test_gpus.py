"""Which GPUs the node has, and what they are called once they no longer answer."""

import shutil
from pathlib import Path

import pytest

from nodeagent.checks import gpu_inventory
from nodeagent.scheduler import JITTER
from nodeagent.sources.gpus import GpuMap, normalise
from tests.agent.kernel_log import GPU, OTHER_GPU, UUID, HandClock, gpu_machine, pci_device


@pytest.mark.parametrize(
    "written",
    ["0000:3b:00", "0000:3B:00.0", "00000000:3B:00.0", "PCI:0000:3b:00", "pci:0000:3b:00.0"],
)
def test_an_address_is_one_however_it_is_written(written: str) -> None:
    assert normalise(written) == "0000:3b:00"


@pytest.mark.parametrize("written", ["", "3b:00", "0000:3b:00.9", "0000:3b:00 ", "zzzz:3b:00"])
def test_what_is_no_address_is_none(written: str) -> None:
    assert normalise(written) is None


def test_a_wide_domain_is_kept() -> None:
    assert normalise("00010000:3b:00.0") == "10000:3b:00"


def test_gpus_and_switches_are_told_from_all_else(tmp_path: Path) -> None:
    gpus = GpuMap(gpu_machine(tmp_path))
    assert gpus.addresses() == {GPU, OTHER_GPU}
    assert gpus.present() == {GPU, OTHER_GPU}
    assert gpus.switches() == {"0000:c1:00", "0000:c2:00"}


def test_a_machine_without_a_pci_bus_has_no_gpu(tmp_path: Path) -> None:
    gpus = GpuMap(gpu_machine(tmp_path / "a"))
    shutil.rmtree(tmp_path / "a")
    assert gpus.addresses() == frozenset()
    assert not gpus.has_gpu(GPU)


def test_a_device_that_goes_while_we_look_is_none(tmp_path: Path) -> None:
    device = pci_device(tmp_path, "0000:01:00.0", "0x030200")
    (device / "class").unlink()
    assert GpuMap(gpu_machine(tmp_path)).present() == {GPU, OTHER_GPU}


def test_a_device_is_read_once_and_another_at_its_address_again(tmp_path: Path) -> None:
    """A node has hundreds of devices on its bus, and sysfs numbers each."""
    clock = HandClock()
    machine = gpu_machine(tmp_path, clock)
    gpus = GpuMap(machine)
    assert gpus.present() == {GPU, OTHER_GPU}
    device = machine.sys / f"bus/pci/devices/{GPU}.0"
    (device / "class").write_text("0x020000\n")
    clock.now += 61.0
    assert gpus.present() == {GPU, OTHER_GPU}
    device.rename(tmp_path / "unplugged")
    pci_device(tmp_path, f"{GPU}.0", "0x020000")
    clock.now += 61.0
    assert gpus.present() == {OTHER_GPU}


def test_a_device_whose_class_could_not_be_read_is_read_again(tmp_path: Path) -> None:
    clock = HandClock()
    kind = pci_device(tmp_path, "0000:01:00.0", "0x030200") / "class"
    gpus = GpuMap(gpu_machine(tmp_path, clock))
    kind.rename(tmp_path / "later")
    assert gpus.present() == {GPU, OTHER_GPU}
    (tmp_path / "later").rename(kind)
    clock.now += 61.0
    assert gpus.present() == {GPU, OTHER_GPU, "0000:01:00"}


def test_a_new_gpu_is_found_when_it_is_asked_for_but_not_at_every_question(
    tmp_path: Path,
) -> None:
    clock = HandClock()
    gpus = GpuMap(gpu_machine(tmp_path, clock))
    assert not gpus.has_gpu("0000:5e:00")
    pci_device(tmp_path, "0000:5e:00.0", "0x030200")
    assert not gpus.has_gpu("0000:5e:00"), "looked a moment ago"
    clock.now += 6.0
    assert gpus.has_gpu("0000:5e:00")


def test_a_gpu_that_left_the_bus_is_still_the_nodes(tmp_path: Path) -> None:
    clock = HandClock()
    gpus = GpuMap(gpu_machine(tmp_path, clock))
    assert gpus.has_gpu(GPU)
    shutil.rmtree(tmp_path / f"bus/pci/devices/{GPU}.0")
    clock.now += 100.0
    assert gpus.present() == {OTHER_GPU}
    assert gpus.addresses() == {GPU, OTHER_GPU}
    assert gpus.has_gpu(GPU)


def test_what_an_earlier_agent_knew_is_known(tmp_path: Path) -> None:
    before = GpuMap(gpu_machine(tmp_path))
    before.learn("00000000:3B:00.0", UUID)
    after = GpuMap(gpu_machine(tmp_path / "empty"), before.remembered())
    shutil.rmtree(tmp_path / "empty")
    assert after.component("0000:3b:00.0") == UUID
    assert after.has_gpu(GPU)


def test_a_broken_memory_is_dropped_entry_by_entry(tmp_path: Path) -> None:
    gpus = GpuMap(gpu_machine(tmp_path), {"nonsense": "GPU-1", GPU: "", OTHER_GPU: "GPU-2"})
    assert gpus.remembered() == {OTHER_GPU: "GPU-2"}


def test_a_gpu_without_a_known_uuid_is_named_by_its_address(tmp_path: Path) -> None:
    assert GpuMap(gpu_machine(tmp_path)).component("0000:3B:00.0") == "pci:0000:3b:00"


def test_a_replaced_gpu_is_told_once(tmp_path: Path) -> None:
    gpus = GpuMap(gpu_machine(tmp_path))
    assert gpus.learn(GPU, "GPU-old") is None
    assert gpus.learn(GPU, "GPU-old") is None
    assert gpus.learn(GPU, "GPU-new") == "GPU-old"
    assert gpus.component(GPU) == "GPU-new"


def test_a_gpu_that_moved_is_in_one_slot(tmp_path: Path) -> None:
    gpus = GpuMap(gpu_machine(tmp_path))
    gpus.learn(GPU, UUID)
    gpus.learn(OTHER_GPU, UUID)
    assert gpus.remembered() == {OTHER_GPU: UUID}


def test_a_gpu_that_came_back_at_another_address_is_not_missed_at_the_old_one(
    tmp_path: Path,
) -> None:
    clock = HandClock()
    machine = gpu_machine(tmp_path, clock)
    gpus = GpuMap(machine)
    gpus.learn(GPU, UUID)
    assert gpus.addresses() == {GPU, OTHER_GPU}
    devices = machine.sys / "bus/pci/devices"
    (devices / f"{GPU}.0").rename(devices / "0000:4c:00.0")
    clock.now += 61.0
    assert gpus.addresses() == {GPU, OTHER_GPU, "0000:4c:00"}, "it may be another"
    gpus.learn("0000:4c:00", UUID)
    assert gpus.addresses() == {OTHER_GPU, "0000:4c:00"}


def test_a_gpu_is_named_once(tmp_path: Path) -> None:
    gpus = GpuMap(gpu_machine(tmp_path), {OTHER_GPU: "GPU-2"})
    assert gpus.take_named() == [], "an earlier agent named it"
    gpus.learn(GPU, UUID)
    gpus.learn(OTHER_GPU, "GPU-3")
    assert gpus.take_named() == [f"pci:{GPU}"]
    assert gpus.take_named() == []


def test_it_is_known_when_a_gpu_last_came_to_the_driver(tmp_path: Path) -> None:
    clock = HandClock(5000.0)
    machine = gpu_machine(tmp_path, clock)
    gpus = GpuMap(machine)
    assert gpus.present()
    assert gpus.joined_at == 0.0
    for at, address in ((5100.0, GPU), (5200.0, OTHER_GPU)):
        clock.now = at
        (machine.sys / "bus/pci/drivers/nvidia").mkdir(parents=True, exist_ok=True)
        driver = machine.sys / f"bus/pci/devices/{address}.0/driver"
        driver.symlink_to(machine.sys / "bus/pci/drivers/nvidia")
        assert gpus.present()
        assert gpus.joined_at == at
    clock.now = 5300.0
    driver.unlink()
    assert gpus.present()
    assert gpus.joined_at == 5200.0, "one that left needs no new look"


def test_the_sample_after_a_gpu_came_to_the_driver_knows_of_it(tmp_path: Path) -> None:
    """Else NVML's worker is started anew one sample later, and the GPU is missing from two."""
    clock = HandClock(5000.0)
    machine = gpu_machine(tmp_path, clock)
    gpus = GpuMap(machine)
    assert gpus.present()
    (machine.sys / "bus/pci/drivers/nvidia").mkdir(parents=True)
    (machine.sys / f"bus/pci/devices/{GPU}.0/driver").symlink_to(
        machine.sys / "bus/pci/drivers/nvidia"
    )
    clock.now += gpu_inventory.SPEC.interval * (1 - JITTER)
    assert gpus.present()
    assert gpus.joined_at == clock.now
