"""The agent's facts about a GPU beside nvidia-smi's: one entry of FACTS for each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nodeagent.sources.gpu_sample import Gpu
from tests.gpu.nvidia_smi import SmiGpu

_ON = {"Enabled": True, "Disabled": False}
_YES = {"Yes": True, "No": False}
#: Bits of nvmlClocksEventReasons (nvml.h), by nvidia-smi's name for each.
_CLOCKS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clocks_setting": 0x100,
}


@dataclass(frozen=True)
class Fact:
    """``ours`` and ``theirs`` give the same value; numbers may differ by ``tolerance``.

    ``moves``: it changes from moment to moment, so that several tries are due.
    """

    ours: Callable[[Gpu], object]
    theirs: Callable[[SmiGpu], object]
    tolerance: float = 0.0
    moves: bool = False

    def agree(self, gpu: Gpu, smi: SmiGpu) -> bool:
        ours, theirs = self.ours(gpu), self.theirs(smi)
        if isinstance(ours, int | float) and isinstance(theirs, int | float):
            return abs(ours - theirs) <= self.tolerance
        return ours == theirs


def _ecc(life: str, kind: str) -> Callable[[SmiGpu], object]:
    """SRAM's and DRAM's; the uncorrectable ones of SRAM are in two elements."""
    names = (
        ["sram_correctable", "dram_correctable"]
        if kind == "corrected"
        else ["sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable"]
    )

    def count_errors(smi: SmiGpu) -> object:
        counts = [smi.total(f"ecc_errors/{life}/{name}") for name in names]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    return count_errors


def _rows(name: str, **values: object) -> Callable[[SmiGpu], object]:
    path = f"remapped_rows/remapped_row_{name}"
    return (lambda smi: smi.choice(path, **values)) if values else (lambda smi: smi.number(path))


def _reserve(level: str) -> Callable[[SmiGpu], object]:
    return lambda smi: smi.number(f".//row_remapper_histogram_{level}")


def _clocks(smi: SmiGpu) -> object:
    told = {
        bit: smi.text(f"clocks_event_reasons/clocks_event_reason_{name}")
        for name, bit in _CLOCKS.items()
    }
    return sum(bit for bit, text in told.items() if text == "Active")


def _watts(path: str) -> Callable[[SmiGpu], object]:
    def read_watts(smi: SmiGpu) -> object:
        value = smi.number(path)
        return None if value is None else round(value)

    return read_watts


def _fabric_state(smi: SmiGpu) -> object:
    known = {"Not_Started": 1, "In_Progress": 2, "Completed": 3}
    return smi.choice("fabric/state", **known) or 0


FACTS: Mapping[str, Fact] = {
    "uuid": Fact(lambda gpu: gpu.uuid, lambda smi: smi.uuid),
    "pci-address": Fact(lambda gpu: gpu.pci, lambda smi: smi.pci),
    "name": Fact(lambda gpu: gpu.name, lambda smi: smi.text("product_name")),
    "ecc-corrected": Fact(lambda gpu: gpu.ecc and gpu.ecc.corrected, _ecc("volatile", "corrected")),
    "ecc-uncorrected": Fact(
        lambda gpu: gpu.ecc and gpu.ecc.uncorrected, _ecc("volatile", "uncorrected")
    ),
    "ecc-corrected-in-life": Fact(
        lambda gpu: gpu.ecc and gpu.ecc.corrected_in_life, _ecc("aggregate", "corrected")
    ),
    "ecc-uncorrected-in-life": Fact(
        lambda gpu: gpu.ecc and gpu.ecc.uncorrected_in_life, _ecc("aggregate", "uncorrected")
    ),
    "sram-threshold": Fact(
        lambda gpu: gpu.sram_threshold_exceeded,
        lambda smi: smi.choice(".//sram_threshold_exceeded", **_YES),
    ),
    "rows-corrected": Fact(lambda gpu: gpu.rows and gpu.rows.corrected, _rows("corr")),
    "rows-uncorrected": Fact(lambda gpu: gpu.rows and gpu.rows.uncorrected, _rows("unc")),
    "rows-pending": Fact(lambda gpu: gpu.rows and gpu.rows.pending, _rows("pending", **_YES)),
    "rows-failure": Fact(lambda gpu: gpu.rows and gpu.rows.failure, _rows("failure", **_YES)),
    "reserve-full": Fact(lambda gpu: gpu.reserve and gpu.reserve.full, _reserve("max")),
    "reserve-high": Fact(lambda gpu: gpu.reserve and gpu.reserve.high, _reserve("high")),
    "reserve-partial": Fact(lambda gpu: gpu.reserve and gpu.reserve.partial, _reserve("partial")),
    "reserve-low": Fact(lambda gpu: gpu.reserve and gpu.reserve.low, _reserve("low")),
    "reserve-none": Fact(lambda gpu: gpu.reserve and gpu.reserve.none, _reserve("none")),
    "retired-pages-single-bit": Fact(
        lambda gpu: gpu.pages and gpu.pages.single_bit,
        lambda smi: smi.number("retired_pages/multiple_single_bit_retirement/retired_count"),
    ),
    "recovery-action": Fact(
        lambda gpu: gpu.recovery_action,
        lambda smi: smi.choice(
            "gpu_recovery_action",
            **{"None": 0, "Reset": 1, "Reboot": 2, "Drain_P2P": 3, "Drain_and_Reset": 4},
        ),
    ),
    "pcie-replays": Fact(lambda gpu: gpu.replays, lambda smi: smi.number("pci/replay_counter")),
    "persistence-mode": Fact(
        lambda gpu: gpu.limits.persistence, lambda smi: smi.choice("persistence_mode", **_ON)
    ),
    "power-limit": Fact(
        lambda gpu: gpu.limits.power, _watts("gpu_power_readings/current_power_limit")
    ),
    "mig-mode": Fact(
        lambda gpu: gpu.mig and gpu.mig.enabled,
        lambda smi: smi.choice("mig_mode/current_mig", **_ON),
    ),
    "mig-pending": Fact(
        lambda gpu: gpu.mig and gpu.mig.pending,
        lambda smi: smi.choice("mig_mode/pending_mig", **_ON),
    ),
    "fabric-state": Fact(lambda gpu: gpu.fabric.state if gpu.fabric else 0, _fabric_state),
    "temperature": Fact(
        lambda gpu: gpu.temperature, lambda smi: smi.number("temperature/gpu_temp"), 3, moves=True
    ),
    "memory-temperature": Fact(
        lambda gpu: gpu.memory_temperature,
        lambda smi: smi.number("temperature/memory_temp"),
        3,
        moves=True,
    ),
    "temperature-margin": Fact(
        lambda gpu: gpu.margin,
        lambda smi: smi.number("temperature/gpu_temp_tlimit"),
        3,
        moves=True,
    ),
    "power": Fact(
        lambda gpu: gpu.power, _watts("gpu_power_readings/instant_power_draw"), 20, moves=True
    ),
    "sm-clock": Fact(
        lambda gpu: gpu.sm_clock, lambda smi: smi.number("clocks/sm_clock"), 30, moves=True
    ),
    "load": Fact(
        lambda gpu: gpu.load, lambda smi: smi.number("utilization/gpu_util"), 10, moves=True
    ),
    "clock-reasons": Fact(lambda gpu: gpu.clocks, _clocks, moves=True),
}
