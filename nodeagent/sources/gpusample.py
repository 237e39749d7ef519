"""What NVML said at one look: facts about the driver and about each GPU, no verdicts."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Code(enum.IntEnum):
    """NVML return codes that mean something to us (nvml.h, ``nvmlReturn_t``)."""

    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    DRIVER_NOT_LOADED = 9
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIBRARY_MISMATCH = 18
    UNKNOWN = 999


#: What an NVML call is called in ``Gpu.errors``, in the worker's process name and in messages.
CALLS = {
    "init": "nvmlInit",
    "driver": "nvmlSystemGetDriverVersion",
    "count": "nvmlDeviceGetCount",
    "handle": "nvmlDeviceGetHandleByIndex",
    "uuid": "nvmlDeviceGetUUID",
    "pci": "nvmlDeviceGetPciInfo",
    "name": "nvmlDeviceGetName",
    "recovery": "nvmlDeviceGetFieldValues",
    "rows": "nvmlDeviceGetRemappedRows",
    "ecc": "nvmlDeviceGetTotalEccErrors",
}


class TroubleKind(enum.Enum):
    """Why NVML as a whole gives no answer. The value is the reason in an observation."""

    NO_LIBRARY = "no-library"
    DRIVER_NOT_LOADED = "driver-not-loaded"
    LIBRARY_MISMATCH = "library-mismatch"
    FAILED = "nvml-failed"
    STARTING = "starting"
    HUNG = "hung"
    CRASHED = "crashed"
    QUIESCED = "quiesced"


@dataclass(frozen=True, slots=True)
class NvmlTrouble:
    """``message`` is for people; ``call`` is the NVML call that hung or crashed, if one did.

    ``where`` is the kernel function in which a hung worker waits (its ``wchan``), if known.
    """

    kind: TroubleKind
    message: str
    call: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class EccCounts:
    """Errors since the driver loaded or the GPU was reset (volatile) and in its life (aggregate).

    None where the GPU does not count that kind.
    """

    corrected: int | None
    uncorrected: int | None
    corrected_in_life: int | None = None
    uncorrected_in_life: int | None = None


@dataclass(frozen=True, slots=True)
class RemappedRows:
    """Memory rows that were replaced by spare ones; ``failure``: no spare row was left."""

    corrected: int
    uncorrected: int
    pending: bool
    failure: bool


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU by its NVML index.

    ``uuid`` and ``pci`` ("0000:3b:00") are empty only when the GPU never said them to this worker.
    A value that could not be read is None and its call is in ``errors`` with NVML's return code.
    """

    index: int
    uuid: str = ""
    pci: str = ""
    name: str = ""
    ecc: EccCounts | None = None
    rows: RemappedRows | None = None
    recovery_action: int | None = None
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One look through NVML, taken ``at`` boottime seconds.

    With ``trouble`` set, ``gpus`` holds those that had answered before it (none, usually).
    ``stuck`` says, for people, where an abandoned worker hangs; the sample is its replacement's.
    """

    at: float
    driver: str = ""
    gpus: tuple[Gpu, ...] = ()
    trouble: NvmlTrouble | None = None
    stuck: str = ""


def gpu_from_wire(message: Mapping[str, Any]) -> Gpu:
    """One GPU from the worker's JSON (``nvml_worker`` writes it; both ship together)."""
    ecc, rows = message["ecc"], message["rows"]
    return Gpu(
        index=message["index"],
        uuid=message["uuid"],
        pci=message["pci"],
        name=message["name"],
        ecc=None if ecc is None else EccCounts(*ecc),
        rows=None
        if rows is None
        else RemappedRows(rows[0], rows[1], pending=bool(rows[2]), failure=bool(rows[3])),
        recovery_action=message["recovery_action"],
        errors=message["errors"],
    )
