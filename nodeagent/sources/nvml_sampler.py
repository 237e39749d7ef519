"""The values that the NVML worker reads of each GPU, and how often.

Identity, counters and values that may change at any moment are read for every sample. Values that
change seldom or cost many calls (spare rows, retired pages, NVLinks, the fabric) are read again
when they are ``SLOW_EVERY`` old. The InfoROM is validated once a day, as NVIDIA requires.
``nvml_worker`` runs this under ``-I -S``: each import here is memory on every node.
"""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False  # both would be imported for annotations alone
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    #: Makes one NVML call about a GPU: its name in errors, the function, its arguments.
    _Call = Callable[..., Any]

#: Seconds for which values that change seldom are given again, and for which a validation is.
SLOW_EVERY = 290.0
INFOROM_EVERY = 86_400.0

_INVALID_ARGUMENT = 2
_NOT_SUPPORTED = 3
_FUNCTION_NOT_FOUND = 13
_GPU_IS_LOST = 15
_RESET_REQUIRED = 16
_VERSION_MISMATCH = 25
_UNKNOWN = 999

_VOLATILE, _AGGREGATE = 0, 1
_CORRECTED, _UNCORRECTED = 0, 1
_SINGLE_BIT, _DOUBLE_BIT = 0, 1
_WEEK = 7 * 86_400.0

#: Field ids of nvml.h, read at every sample in one call: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
#: NVML_FI_DEV_PCIE_REPLAY_COUNTER, NVML_FI_DEV_MEMORY_TEMP, NVML_FI_DEV_POWER_INSTANT (mW).
_QUICK_FIELDS = (230, 94, 82, 186)
#: NVML_FI_DEV_C2C_LINK_COUNT, and NVML_FI_DEV_C2C_LINK_GET_STATUS with the link as its scope.
_C2C_COUNT, _C2C_STATUS = 170, 171
_MOST_C2C = 64

_GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU
_SLOWDOWN, _MEMORY_MAX = 1, 2  # NVML_TEMPERATURE_THRESHOLD_*

_SM_CLOCK = 1  # nvmlClockType_t, NVML_CLOCK_SM

_XID_EVENT = 8  # nvmlEventTypeXidCriticalError
#: Events taken with one sample: a storm is the kernel log's to count.
_MOST_EVENTS = 64

#: nvmlDeviceGetVirtualizationMode: this process runs in a virtual machine with a part of the GPU.
_VGPU_GUEST = 2

#: More than any machine has: a count beyond it is no count.
_MOST_GPUS = 1024
_MAX_LINKS = 18
#: Processes of one GPU; a GPU that 1,000 processes share is shared by a server for them.
_MOST_PIDS = 1024
#: Error counters of one NVLink by field id (the scope is the link): those of the data link layer
#: up to Hopper, then NVLink 5's.
_LINK_FIELDS = {
    "replay": 161,
    "recovery": 162,
    "crc": 163,
    "receive": 208,
    "integrity": 211,
    "recovery-failed": 214,
    "link-recovery": 215,
}
_EFFECTIVE_BER = 220  # NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, from NVLink 5 on
#: The same before there were fields for it: counters of nvmlDeviceGetNvLinkErrorCounter.
_LINK_COUNTERS = {"replay": 0, "recovery": 1, "crc": 2, "crc-data": 3}

#: By NVML's value type: the member of the union that holds a field's value, and the value there for
#: "not available" (nvml.h, NVML_VALUE_NOT_AVAILABLE: all bits set).
_VALUES = (
    ("dVal", -1.0),
    ("uiVal", 2**32 - 1),
    ("ulVal", 2**64 - 1),
    ("ullVal", 2**64 - 1),
    ("sllVal", -1),
    ("siVal", -1),
    ("usVal", 2**16 - 1),
)


class Sampler:
    """Reads every GPU once per request, through one initialised NVML.

    ``emit`` gets the name of the call that is under way; ``wall`` gives the time that the driver's
    stamps are compared with, in seconds since 1970.
    """

    #: The driver's folder, which has one for each GPU.
    gpus = "/proc/driver/nvidia/gpus"

    def __init__(self, pynvml: Any, emit: Callable[[str], None], wall: Callable[[], float]) -> None:
        self._nvml = pynvml
        self._emit = emit
        self._wall = wall
        #: (uuid, pci, name) by index: a lost GPU no longer gives its identity.
        self._identities: dict[int, tuple[str, str, str]] = {}
        #: By UUID: when the values that change seldom were read and sent, and the errors.
        self._slow: dict[str, tuple[float, dict[str, int]]] = {}
        #: NVML's event set; by a device's handle its identity and the code of the call that was
        #: refused.
        self._events: Any = None
        self._listening: dict[int, tuple[str, str, int]] = {}
        #: The code of each InfoROM's validation by UUID, and when that was.
        self._inforoms: dict[str, tuple[float, int]] = {}
        #: When the values of the whole machine were last read, and those.
        self._system: tuple[float, dict[str, Any]] | None = None
        #: Handles of GPUs that report no margin to their slowdown: those before Hopper.
        self._without_margin: set[int] = set()

    def start(self) -> str:
        """Initialise NVML for the life of this process and give the driver's version."""
        self._emit("init")
        self._nvml.nvmlInitWithFlags(0)
        self._emit("driver")
        try:
            return str(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return ""  # only a text for people depends on it

    def sample(
        self, send: Callable[[dict[str, Any]], None], at: float, *, with_processes: bool = False
    ) -> None:
        """Send the count, then each GPU as soon as it has answered, then the end."""
        errors: dict[str, int] = {}
        count = self._call(errors, "count", "", self._nvml.nvmlDeviceGetCount) or 0
        if count > _MOST_GPUS:
            count, errors["count"] = 0, _UNKNOWN
        send({"count": count, "error": errors.get("count", 0)})
        for index in range(count):
            send(self._gpu(index, at, with_processes=with_processes))
        if self._system is None or at - self._system[0] >= SLOW_EVERY:
            self._system = (at, {"excluded": self._excluded(), "cc_ready": self._cc_ready()})
        self._emit("wait")
        xids = self._xids()
        self._emit("idle")
        send({"end": True, "xids": xids, **self._system[1]})

    def _gpu(self, index: int, at: float, *, with_processes: bool) -> dict[str, Any]:
        nvml, errors = self._nvml, dict[str, int]()

        def call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
            if _GPU_IS_LOST in errors.values():
                return None  # each further call would wait for a GPU that is not there
            return self._call(errors, name, f"{index} ", function, *arguments)

        handle = call("handle", nvml.nvmlDeviceGetHandleByIndex, index)
        gpu: dict[str, Any] = {"index": index}
        if handle is not None:
            self._identify(index, handle, call)
            gpu |= self._quick(handle, call, errors)
            self._listen(index, handle, errors)
            if with_processes:
                gpu["pids"] = self._pids(handle, call)
        uuid, gpu["pci"], gpu["name"] = self._identities.get(index, ("", "", ""))
        gpu["uuid"], gpu["errors"] = uuid, errors
        if handle is not None and "uuid" not in errors and _GPU_IS_LOST not in errors.values():
            gpu["seldom"] = self._seldom(uuid, handle, call, errors, at)
        return gpu

    def _pids(self, handle: Any, call: _Call) -> list[int] | None:
        """The processes with a context on the GPU, or None where they can't be read.

        A GPU without graphics has no such list.
        """
        nvml = self._nvml
        compute = call("processes", nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        if compute is None:
            return None
        graphics = self._call(
            {}, "processes", "", nvml.nvmlDeviceGetGraphicsRunningProcesses, handle
        )
        return sorted({one.pid for one in (*compute, *(graphics or ()))})[:_MOST_PIDS]

    def _excluded(self) -> list[str]:
        """The addresses of the GPUs that a person took out: by configuration, or drained.

        A drained GPU is offered to no process that starts NVML afterwards.
        """
        count = self._call({}, "excluded", "", self._nvml.nvmlGetExcludedDeviceCount) or 0
        information = self._nvml.nvmlGetExcludedDeviceInfoByIndex
        found = [
            self._call({}, "excluded", f"{each} ", information, each)
            for each in range(min(count, _MOST_GPUS))
        ]
        offered = {pci for _, pci, _ in self._identities.values()}
        names = next(os.walk(self.gpus), ("", [], []))[1]
        absent = sorted({name.lower()[:-2] for name in names} - offered)[:_MOST_GPUS]
        drained = [each for each in absent if self._call({}, "drain", "", self._drain, each)]
        return drained + [_slot(each.pci) for each in found if each is not None]

    def _drain(self, address: str) -> Any:
        domain, bus, device = (int(part, 16) for part in address.split(":"))
        info = self._nvml.nvmlPciInfo_t(domain=domain, bus=bus, device=device)
        return self._nvml.nvmlDeviceQueryDrainState(info)

    def _cc_ready(self) -> int | None:
        """Whether confidential GPUs accept work (1); None where confidential computing is off."""
        state = self._call({}, "cc", "", self._nvml.nvmlSystemGetConfComputeState)
        if state is None or not state.ccFeature:
            return None
        ready = self._call({}, "cc", "", self._nvml.nvmlSystemGetConfComputeGpusReadyState)
        return None if ready is None else int(ready)

    def _identify(self, index: int, handle: Any, call: _Call) -> None:
        uuid = call("uuid", self._nvml.nvmlDeviceGetUUID, handle)
        known = self._identities.get(index)
        if uuid is None or (known is not None and known[0] == uuid and known[1]):
            return
        info = call("pci", self._nvml.nvmlDeviceGetPciInfo, handle)
        pci = "" if info is None else _slot(info)
        name = call("name", self._nvml.nvmlDeviceGetName, handle)
        self._identities[index] = (uuid, pci, name or "")

    # ---- events ---------------------------------------------------------------------------------

    def _listen(self, index: int, handle: Any, errors: dict[str, int]) -> None:
        """Subscribe to this GPU's Xid events, once. NVML does not give earlier ones."""
        uuid, pci, _ = self._identities.get(index, ("", "", ""))
        device = _address(handle)
        known = self._listening.get(device)
        if known is None or known[0] != uuid:
            refused: dict[str, int] = {}
            self._call(refused, "events", f"{index} ", self._register, handle)
            self._listening[device] = known = (uuid, pci, refused.get("events", 0))
        if known[2]:
            errors.setdefault("events", known[2])

    def _register(self, handle: Any) -> None:
        if self._events is None:
            self._events = self._nvml.nvmlEventSetCreate()
        self._nvml.nvmlDeviceRegisterEvents(handle, _XID_EVENT, self._events)

    def _xids(self) -> list[tuple[str, str, int]]:
        """UUID, address and code of the events that have come since the last time."""
        found: list[tuple[str, str, int]] = []
        while self._events is not None and len(found) < _MOST_EVENTS:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except (self._nvml.NVMLError, self._nvml.NVMLLibraryMismatchError):
                break  # no more of them, mostly: a time-out
            uuid, pci, _ = self._listening.get(_address(event.device), ("", "", 0))
            if event.eventType & _XID_EVENT and uuid:
                found.append((uuid, pci, int(event.eventData)))
        return found

    # ---- at every sample ------------------------------------------------------------------------

    def _quick(self, handle: Any, call: _Call, errors: dict[str, int]) -> dict[str, Any]:
        values = call("recovery", self._fields, handle) or (None,) * len(_QUICK_FIELDS)
        action, replays, memory, power = values
        for name, value in (("recovery", action), ("replays", replays)):
            if isinstance(value, self._nvml.NVMLError):
                errors.setdefault(name, value.value)
        return {
            "recovery_action": action if isinstance(action, int) else None,
            "replays": replays if isinstance(replays, int) else None,
            "rows": call("rows", self._nvml.nvmlDeviceGetRemappedRows, handle),
            "ecc": self._ecc(handle, call),
            "clocks": call("clocks", self._clocks, handle),
            "sm_clock": call("sm-clock", self._nvml.nvmlDeviceGetClockInfo, handle, _SM_CLOCK),
            "load": call("load", self._load, handle),
            "temperature": call(
                "temperature", self._nvml.nvmlDeviceGetTemperature, handle, _GPU_SENSOR
            ),
            "memory_temperature": memory if isinstance(memory, int) else None,
            "margin": call("margin", self._margin, handle),
            "power": power if isinstance(power, int) else None,
        }

    def _fields(self, handle: Any) -> list[Any]:
        """The values of the fields read at every sample; an NVMLError where there is none."""
        fields = self._nvml.nvmlDeviceGetFieldValues(handle, list(_QUICK_FIELDS))
        return [self._value(field) for field in fields]

    def _value(self, field: Any) -> Any:
        if field.nvmlReturn != 0:
            return self._nvml.NVMLError(field.nvmlReturn)
        if not 0 <= field.valueType < len(_VALUES):
            return self._nvml.NVMLError(_NOT_SUPPORTED)  # a type that is newer than we are
        member, missing = _VALUES[field.valueType]
        value = getattr(field.value, member)
        if not value >= 0 or value == missing:  # a double may be no number at all
            return self._nvml.NVMLError(_NOT_SUPPORTED)
        return int(value) if value < 2**64 else self._nvml.NVMLError(_UNKNOWN)

    def _ecc(self, handle: Any, call: _Call) -> list[int | None] | None:
        total = self._nvml.nvmlDeviceGetTotalEccErrors
        counts = [
            call("ecc", total, handle, kind, life)
            for life in (_VOLATILE, _AGGREGATE)
            for kind in (_CORRECTED, _UNCORRECTED)
        ]
        return None if all(count is None for count in counts) else counts

    def _clocks(self, handle: Any) -> int:
        """The bits of nvmlClocksEventReasons, by its older name where the driver is older."""
        try:
            return int(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        except (self._nvml.NVMLError_FunctionNotFound, self._nvml.NVMLLibraryMismatchError):
            return int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))

    def _load(self, handle: Any) -> int:
        """The percentage of the last moments in which a kernel ran; MIG has no such value."""
        return int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)

    def _margin(self, handle: Any) -> int | None:
        """Degrees below the temperature of the nearest slowdown, or None where NVML does not report
        it.
        """
        device = _address(handle)
        if device in self._without_margin:
            return None
        try:
            return int(self._nvml.nvmlDeviceGetMarginTemperature(handle))
        except self._nvml.NVMLError as error:
            if error.value in (_GPU_IS_LOST, _RESET_REQUIRED):
                raise
            if error.value in (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND):
                self._without_margin.add(device)
        except self._nvml.NVMLLibraryMismatchError:
            self._without_margin.add(device)  # a library without this function
        return None

    def _optional(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A value that some GPUs do not report; None from these. Raises where the GPU is lost."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in (_GPU_IS_LOST, _RESET_REQUIRED):
                raise
        except self._nvml.NVMLLibraryMismatchError:
            pass  # a library without this function
        return None

    # ---- seldom ---------------------------------------------------------------------------------

    def _seldom(
        self, uuid: str, handle: Any, call: _Call, errors: dict[str, int], at: float
    ) -> dict[str, Any] | None:
        """The values that change seldom; None, with ``errors`` as they were then, if sent before.

        The other end keeps them: to write and parse them again costs more than all other values.
        """
        known = self._slow.get(uuid)
        if known is not None and at - known[0] < SLOW_EVERY:
            errors.update(known[1] | errors)
            return None
        before = set(errors)

        def optional(name: str, function: Callable[..., Any]) -> Any:
            return call(name, self._optional, function, handle)

        values = {
            "reserve": call("reserve", self._reserve, handle),
            "pages": call("pages", self._pages, handle),
            "sram_threshold_exceeded": call("sram", self._sram, handle),
            "links": self._links(handle, call),
            # After the links: MIG that is turned on between the two calls explains them.
            "mig": call("mig", self._mig, handle),
            "ecc_mode": optional("ecc-mode", self._nvml.nvmlDeviceGetEccMode),
            "compute_mode": optional("compute", self._nvml.nvmlDeviceGetComputeMode),
            "licensed": optional("licence", self._licensed),
            "vbios": optional("vbios", self._nvml.nvmlDeviceGetVbiosVersion),
            "c2c": call("c2c", self._c2c, handle),
            "limits": call("limits", self._limits, handle),
            "fabric": call("fabric", self._fabric, handle),
            "inforom": self._inforom(uuid, handle, call, at),
        }
        if not {_GPU_IS_LOST, _RESET_REQUIRED}.intersection(errors.values()):
            # Such a GPU's answers are not kept: it is read again at the next sample.
            self._slow[uuid] = (at, {k: errors[k] for k in errors.keys() - before})
        return values

    def _reserve(self, handle: Any) -> list[int]:
        found = self._nvml.nvmlDeviceGetRowRemapperHistogram(handle)
        return [found.max, found.high, found.partial, found.low, found.none]

    def _pages(self, handle: Any) -> list[int]:
        """Pages retired for single-bit and double-bit errors, the latter's last week, pending."""
        nvml = self._nvml
        single = nvml.nvmlDeviceGetRetiredPages_v2(handle, _SINGLE_BIT)
        double = nvml.nvmlDeviceGetRetiredPages_v2(handle, _DOUBLE_BIT)
        since = self._wall() - _WEEK
        lately = sum(page["timestamp"] / 1e6 >= since for page in double)
        pending = nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)
        return [len(single), len(double), lately, pending == 1]

    def _sram(self, handle: Any) -> bool:
        status = self._nvml.c_nvmlEccSramErrorStatus_v1_t()
        self._nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
        return bool(status.bThresholdExceeded)

    def _links(self, handle: Any, call: _Call) -> dict[str, Any] | None:
        """Which NVLinks are up, by number, and the error counters of each that is."""
        states = call("links", self._link_states, handle)
        if states is None:
            return None
        up = [link for link, active in enumerate(states) if active]
        found = call("linkerr", self._link_errors, handle, up) if up else None
        errors, rates = found or (None, None)
        return {"states": states, "up": up, "errors": errors, "ber": rates}

    def _link_states(self, handle: Any) -> list[int]:
        states: list[int] = []
        for link in range(_MAX_LINKS):
            try:
                states.append(int(self._nvml.nvmlDeviceGetNvLinkState(handle, link) == 1))
            except self._nvml.NVMLError as error:
                if states and error.value in (_INVALID_ARGUMENT, _NOT_SUPPORTED):
                    break  # this GPU has no more
                raise
        return states

    def _link_errors(
        self, handle: Any, links: list[int]
    ) -> tuple[dict[str, list[int | None]], list[int | None]]:
        """By kind the counters of ``links`` in their order; kinds that no link counts are out.

        Then their bit error rates, as the driver packs them.
        """
        fields = (*_LINK_FIELDS.values(), _EFFECTIVE_BER)
        queries = [(field, link) for field in fields for link in links]
        values = iter(self._nvml.nvmlDeviceGetFieldValues(handle, queries))
        found: dict[str, list[int | None]] = {}
        for kind in _LINK_FIELDS:
            counts = [self._value(next(values)) for _ in links]
            known = [count if isinstance(count, int) else None for count in counts]
            if any(count is not None for count in known):
                found[kind] = known
        packed = [self._value(next(values)) for _ in links]
        rates = [rate if isinstance(rate, int) else None for rate in packed]
        if found:
            return found, rates
        counter = self._nvml.nvmlDeviceGetNvLinkErrorCounter
        return {
            kind: [int(counter(handle, link, number)) for link in links]
            for kind, number in _LINK_COUNTERS.items()
        }, rates

    def _mig(self, handle: Any) -> list[int]:
        """MIG's present and pending mode: 1 is enabled."""
        return [int(mode) for mode in self._nvml.nvmlDeviceGetMigMode(handle)]

    def _licensed(self, handle: Any) -> bool | None:
        """Whether a vGPU has its licence; None of a GPU that is no vGPU and needs none.

        A whole GPU lists features that a licence would open, and works without them.
        """
        nvml = self._nvml
        mode = self._optional(nvml.nvmlDeviceGetVirtualizationMode, handle)
        if mode not in (None, _VGPU_GUEST):
            return None
        found = nvml.nvmlDeviceGetGridLicensableFeatures_v4(handle)
        count = min(found.licensableFeaturesCount, len(found.gridLicensableFeatures))
        if not found.isGridLicenseSupported or not count:
            return None
        return any(found.gridLicensableFeatures[each].featureState for each in range(count))

    def _c2c(self, handle: Any) -> list[int]:
        """Whether each link between the GPU and its CPU is active; empty without such links.

        Raises where one can't be read: it may be active.
        """
        (count,) = self._c2c_values(handle, [_C2C_COUNT])
        if not isinstance(count, int) or not 0 < count <= _MOST_C2C:
            return []
        states = self._c2c_values(handle, [(_C2C_STATUS, link) for link in range(count)])
        return [int(state == 1) for state in states if isinstance(state, int)]

    def _c2c_values(self, handle: Any, queries: list[Any]) -> list[Any]:
        values = [
            self._value(each) for each in self._nvml.nvmlDeviceGetFieldValues(handle, queries)
        ]
        for value in values:
            if isinstance(value, self._nvml.NVMLError) and value.value != _NOT_SUPPORTED:
                raise value
        return values

    def _limits(self, handle: Any) -> list[int | None]:
        """Slowdown and highest memory temperature (Celsius), power limit (mW), persistence mode."""
        nvml = self._nvml
        return [
            self._optional(nvml.nvmlDeviceGetTemperatureThreshold, handle, _SLOWDOWN),
            self._optional(nvml.nvmlDeviceGetTemperatureThreshold, handle, _MEMORY_MAX),
            self._optional(nvml.nvmlDeviceGetEnforcedPowerLimit, handle),
            self._optional(nvml.nvmlDeviceGetPersistenceMode, handle),
        ]

    def _fabric(self, handle: Any) -> dict[str, Any]:
        try:
            info = self._nvml.c_nvmlGpuFabricInfo_v3_t()
            self._nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        except self._nvml.NVMLError as error:
            if error.value not in (_VERSION_MISMATCH, _INVALID_ARGUMENT):
                raise
            info = self._nvml.c_nvmlGpuFabricInfo_v2_t()
            self._nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        return {
            "state": info.state,
            "status": info.status,
            "health": info.healthMask,
            "summary": getattr(info, "healthSummary", 0),
            "cluster": bytes(info.clusterUuid).hex(),
            "clique": info.cliqueId,
        }

    def _inforom(self, uuid: str, handle: Any, call: _Call, at: float) -> int | None:
        """The code of the validation, 0 for a good one, or None where it could not be made."""
        known = self._inforoms.get(uuid)
        if known is None or at - known[0] >= INFOROM_EVERY:
            code = call("inforom", self._validate_inforom, handle)
            if code is None:
                return None
            self._inforoms[uuid] = known = (at, code)
        return known[1]

    def _validate_inforom(self, handle: Any) -> int:
        try:
            self._nvml.nvmlDeviceValidateInforom(handle)
        except self._nvml.NVMLError_CorruptedInforom as error:
            return int(error.value)
        return 0

    def _call(
        self,
        errors: dict[str, int],
        name: str,
        prefix: str,
        function: Callable[..., Any],
        *arguments: Any,
    ) -> Any:
        """The result of ``function``, or None and its NVML code in ``errors``."""
        self._emit(prefix + name)
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            errors.setdefault(name, error.value)
        except self._nvml.NVMLLibraryMismatchError:
            # This is no NVMLError: pynvml reports so a function that this library does not have.
            errors.setdefault(name, _FUNCTION_NOT_FOUND)
        except (ValueError, OverflowError, MemoryError):
            errors.setdefault(name, _UNKNOWN)  # a text that is none, a number that can't be
        return None


def _slot(info: Any) -> str:
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}"


def _address(handle: Any) -> int:
    """A device's handle as a number: NVML gives the same one for a device in one process."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
