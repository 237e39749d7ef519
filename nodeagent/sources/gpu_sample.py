"""NVML's answers at one look: facts about the driver and about each GPU, no verdicts."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from nodeagent.dataclass import dataclass


class Code(enum.IntEnum):
    """NVML return codes that matter here (nvml.h, ``nvmlReturn_t``)."""

    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    DRIVER_NOT_LOADED = 9
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIBRARY_MISMATCH = 18
    MEMORY = 20
    UNKNOWN = 999


#: The names of NVML calls in ``Gpu.errors``, in the worker's process name and in messages.
CALLS = {
    "init": "nvmlInit",
    "driver": "nvmlSystemGetDriverVersion",
    "count": "nvmlDeviceGetCount",
    "handle": "nvmlDeviceGetHandleByIndex",
    "processes": "nvmlDeviceGetComputeRunningProcesses",
    "uuid": "nvmlDeviceGetUUID",
    "pci": "nvmlDeviceGetPciInfo",
    "name": "nvmlDeviceGetName",
    "recovery": "nvmlDeviceGetFieldValues",
    "rows": "nvmlDeviceGetRemappedRows",
    "ecc": "nvmlDeviceGetTotalEccErrors",
    "replays": "nvmlDeviceGetFieldValues",
    "clocks": "nvmlDeviceGetCurrentClocksEventReasons",
    "sm-clock": "nvmlDeviceGetClockInfo",
    "load": "nvmlDeviceGetUtilizationRates",
    "reserve": "nvmlDeviceGetRowRemapperHistogram",
    "pages": "nvmlDeviceGetRetiredPages",
    "sram": "nvmlDeviceGetSramEccErrorStatus",
    "links": "nvmlDeviceGetNvLinkState",
    "linkerr": "nvmlDeviceGetNvLinkErrorCounter",
    "fabric": "nvmlDeviceGetGpuFabricInfoV",
    "inforom": "nvmlDeviceValidateInforom",
    "mig": "nvmlDeviceGetMigMode",
    "ecc-mode": "nvmlDeviceGetEccMode",
    "compute": "nvmlDeviceGetComputeMode",
    "licence": "nvmlDeviceGetGridLicensableFeatures",
    "vbios": "nvmlDeviceGetVbiosVersion",
    "excluded": "nvmlGetExcludedDeviceInfoByIndex",
    "drain": "nvmlDeviceQueryDrainState",
    "cc": "nvmlSystemGetConfComputeState",
    "temperature": "nvmlDeviceGetTemperature",
    "margin": "nvmlDeviceGetMarginTemperature",
    "limits": "nvmlDeviceGetTemperatureThreshold",
    "c2c": "nvmlDeviceGetFieldValues",
    "events": "nvmlDeviceRegisterEvents",
    "wait": "nvmlEventSetWait_v2",
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
    ``code``: NVML's return code of the call that refused, 0 where none did.
    """

    kind: TroubleKind
    message: str
    call: str = ""
    where: str = ""
    code: int = 0


@dataclass(frozen=True, slots=True)
class EccCounts:
    """Errors since the driver loaded or the GPU was reset (volatile) and in its life (aggregate).

    A kind that the GPU does not count is None.
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
class RowReserve:
    """Memory banks by how many spare rows they have left; a bank of ``none`` can heal no more."""

    full: int
    high: int
    partial: int
    low: int
    none: int


@dataclass(frozen=True, slots=True)
class RetiredPages:
    """Memory pages taken out of use, as GPUs before Ampere do it.

    ``double_bit_lately``: those for double-bit errors within the last week. ``pending``: some wait
    for a reset of the GPU.
    """

    single_bit: int
    double_bit: int
    double_bit_lately: int
    pending: bool


@dataclass(frozen=True, slots=True)
class NvLinks:
    """``states`` has an entry for each NVLink of the GPU by number: whether it is active.

    ``errors`` has the error counters of the active ones, by kind ("replay", "crc", "recovery", ...)
    and link number; a kind that the GPU does not count is absent. With None they could not be read.
    ``bit_error_rates``: effective ones by link number, where the driver reports them (NVLink 5).
    """

    states: tuple[bool, ...]
    errors: Mapping[str, Mapping[int, int]] | None
    bit_error_rates: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fabric:
    """The GPU's place in an NVLink fabric (nvml.h, ``nvmlGpuFabricInfo_v3_t``).

    ``state``: 0 not supported, 1 not started, 2 in progress, 3 completed. ``status``: NVML's return
    code of a registration that is completed. ``health`` and ``summary`` as the driver packs them.
    """

    state: int
    status: int
    health: int
    summary: int
    cluster: str
    clique: int


@dataclass(frozen=True, slots=True)
class Mode:
    """Whether a mode is enabled, and whether it is to be after the next reset of the GPU."""

    enabled: bool
    pending: bool


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """Limits that the driver enforces, or None where it does not report one.

    ``slowdown`` and ``memory`` are temperatures in Celsius: where the clocks are lowered, and the
    highest that the memory may have. ``power`` in watts. ``persistence``: the driver stays loaded
    without a client.
    """

    slowdown: int | None = None
    memory: int | None = None
    power: int | None = None
    persistence: bool | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU by its NVML index.

    ``uuid`` and ``pci`` ("0000:3b:00") are empty only when this worker never read them from the
    GPU. A value that could not be read is None and its call is in ``errors`` with NVML's return
    code. ``clocks`` are the bits of nvmlClocksEventReasons, ``sm_clock`` is in MHz, ``load`` the
    percentage of the last moments in which a kernel ran, ``replays`` a counter of the PCIe link,
    ``inforom`` the code of its latest validation. The values from ``reserve`` on change seldom:
    they may be five minutes old, the validation a day. ``temperature`` and ``memory_temperature``
    are in Celsius, ``margin`` is in degrees below the nearest slowdown (from Hopper on), ``power``
    in watts, all of this moment; ``c2c`` has for each link to the CPU whether it is active.
    ``compute_mode`` is nvmlComputeMode_t; ``licensed`` is None of a GPU that needs no licence.
    ``pids`` are the processes that have a context on it, only in a sample that requests them.
    """

    index: int
    uuid: str = ""
    pci: str = ""
    name: str = ""
    ecc: EccCounts | None = None
    rows: RemappedRows | None = None
    recovery_action: int | None = None
    clocks: int | None = None
    sm_clock: int | None = None
    load: int | None = None
    replays: int | None = None
    reserve: RowReserve | None = None
    pages: RetiredPages | None = None
    sram_threshold_exceeded: bool | None = None
    links: NvLinks | None = None
    fabric: Fabric | None = None
    inforom: int | None = None
    mig: Mode | None = None
    ecc_mode: Mode | None = None
    compute_mode: int | None = None
    licensed: bool | None = None
    vbios: str = ""
    temperature: int | None = None
    memory_temperature: int | None = None
    margin: int | None = None
    power: int | None = None
    limits: GpuLimits = GpuLimits()
    c2c: tuple[bool, ...] = ()
    pids: tuple[int, ...] | None = None
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An Xid that NVML reported in the sample taken ``at``; it came after ``since``.

    Both are boottime seconds. Events of the same sample may be many.
    """

    uuid: str
    pci: str
    code: int
    since: float
    at: float


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One look through NVML, taken ``at`` boottime seconds.

    With ``trouble`` set, ``gpus`` holds those that had answered before it (usually no GPU).
    ``stuck`` states, for people, where an abandoned worker hangs; the sample is its replacement's.
    ``excluded``: addresses of GPUs that a person took out, by configuration or drained.
    ``cc_ready``: whether GPUs of a confidential machine accept work; None on any other.
    """

    at: float
    driver: str = ""
    gpus: tuple[Gpu, ...] = ()
    trouble: NvmlTrouble | None = None
    stuck: str = ""
    excluded: frozenset[str] = frozenset()
    cc_ready: bool | None = None


#: Values that the worker's JSON has as they are.
_AS_READ = (
    *("index", "uuid", "pci", "name", "errors", "recovery_action", "clocks", "sm_clock", "load"),
    *("replays", "temperature", "memory_temperature", "margin"),
)
_AS_READ_SELDOM = ("sram_threshold_exceeded", "inforom", "compute_mode", "licensed")


def gpu_from_wire(message: Mapping[str, Any], seldom: dict[str, Mapping[str, Any]]) -> Gpu:
    """One GPU from the worker's JSON (``nvml_sampler`` writes it; both ship together).

    ``seldom``, by UUID, keeps the worker's values that change seldom: it sends them once.
    """
    get, uuid = message.get, message["uuid"]
    as_read: dict[str, Any] = {name: get(name) for name in _AS_READ}
    if (fresh := get("seldom")) is not None:
        seldom[uuid] = _seldom_from_wire(fresh)
    ecc, rows = get("ecc"), get("rows")
    return Gpu(
        ecc=None if ecc is None else EccCounts(*ecc),
        rows=None if rows is None else RemappedRows(*rows[:2], *map(bool, rows[2:])),
        power=_watts(get("power")),
        pids=None if get("pids") is None else tuple(map(int, message["pids"])),
        **as_read,
        **(seldom.get(uuid, {}) if "seldom" in message else {}),
    )


def _seldom_from_wire(values: Mapping[str, Any]) -> dict[str, Any]:
    reserve, pages, links, fabric = map(values.get, ("reserve", "pages", "links", "fabric"))
    return {
        "reserve": None if reserve is None else RowReserve(*reserve),
        "pages": None if pages is None else RetiredPages(*pages),
        "links": None if links is None else _links_from_wire(links),
        "fabric": None if fabric is None else Fabric(**fabric),
        "limits": _limits_from_wire(values.get("limits")),
        "c2c": tuple(map(bool, values.get("c2c") or ())),
        "mig": _mode(values.get("mig")),
        "ecc_mode": _mode(values.get("ecc_mode")),
        "vbios": (values.get("vbios") or "")[:64],
        **{name: values.get(name) for name in _AS_READ_SELDOM},
    }


def _mode(modes: Sequence[int] | None) -> Mode | None:
    return None if modes is None else Mode(modes[0] == 1, modes[1] == 1)


def _limits_from_wire(limits: Sequence[int | None] | None) -> GpuLimits:
    if limits is None:
        return GpuLimits()
    slowdown, memory, power, persistence = limits
    return GpuLimits(
        slowdown, memory, _watts(power), None if persistence is None else persistence == 1
    )


def _watts(milliwatts: int | None) -> int | None:
    return None if milliwatts is None else round(milliwatts / 1000)


def _bit_error_rate(packed: int) -> float:
    """Mantissa and exponent of ten (nvml.h, NVML_NVLINK_ERROR_COUNTER_BER_GET)."""
    return float((packed >> 8 & 0xF) * 10.0 ** -(packed & 0xFF))


def _links_from_wire(links: Mapping[str, Any]) -> NvLinks:
    errors = links["errors"]
    return NvLinks(
        states=tuple(map(bool, links["states"])),
        errors=None
        if errors is None and links["up"]
        else {
            kind: {
                link: count
                for link, count in zip(links["up"], counts, strict=True)
                if count is not None
            }
            for kind, counts in (errors or {}).items()
        },
        bit_error_rates={
            link: _bit_error_rate(packed)
            for link, packed in zip(links["up"], links.get("ber") or (), strict=False)
            if packed is not None
        },
    )
