"""The process that talks to the NVIDIA driver: exec'd, long-lived, expendable.

A call into NVML can wait in the kernel for ever or abort the process, so the agent makes none: it
asks this program over a pipe (``nvml_process`` is the other end). It runs by its path under
``python -I -S`` and not as a module: importing the package would bring asyncio along, and memory
is counted on 10,000 nodes.

Arguments: the folder that holds ``pynvml``, then libraries to try in order (paths or names).
Standard input: ``{"op": "sample"}``, one a line; its end is the end of this process.
Standard output, one JSON object a line:

- once ``{"ready": LIBRARY, "driver": VERSION}``, or ``{"failed": CODE, "message": TEXT}`` and exit;
- per request ``{"count": N, "error": CODE}``, a ``{"index": ...}`` per GPU, and ``{"end": true}``.

What it is doing stands in its process name (``nvml 3 rows``), for the agent and for ``ps`` alike.
"""

import ctypes
import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9

_NOT_SUPPORTED = 3
_LIBRARY_NOT_FOUND = 12
_FUNCTION_NOT_FOUND = 13
_GPU_IS_LOST = 15
_LIBRARY_MISMATCH = 18
_UNKNOWN = 999

_VOLATILE, _AGGREGATE = 0, 1
_CORRECTED, _UNCORRECTED = 0, 1
_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION

#: By NVML's value type: the member of the union that holds a field's value.
_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _import_pynvml(folder: str) -> Any:
    """The real pynvml, without the parts of the library that it imports and never uses here.

    ``ctypes.util`` brings subprocess, tempfile and three compressors: 1.7 MB, for a search that
    pynvml makes on no Linux. Compiling pynvml leaves 13 MB behind: when its bytecode was not
    there before and is now, this process starts over from it.
    """
    unused = types.ModuleType("ctypes.util")
    unused.find_library = lambda _name: None  # type: ignore[attr-defined]  # a stand-in module
    sys.modules["ctypes.util"] = unused
    bytecode = f"{folder}/__pycache__/pynvml.{sys.implementation.cache_tag}.pyc"
    was_compiled = os.path.exists(bytecode)  # noqa: PTH110  pathlib costs 1 MB
    sys.path.append(folder)
    import pynvml

    if not was_compiled and os.path.exists(bytecode):  # noqa: PTH110
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
    return pynvml


def _load(libraries: list[str]) -> tuple[str, list[str]]:
    """The first of ``libraries`` that loads (empty: none), and why the others did not.

    pynvml asks for ``libnvidia-ml.so.1`` by name. The loader answers with what is loaded already
    under that SONAME, which is how a library outside its search path is brought in.
    """
    refusals = []
    for library in libraries:
        try:
            ctypes.CDLL(library)
        except OSError as error:
            refusals.append(f"{library}: {error}")
        else:
            return library, refusals
    return "", refusals


class _Wire:
    """Standard output, kept for us: what the driver's library prints must not reach it."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)

    def send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        while line:
            line = line[os.write(self._out, line) :]


class _Progress:
    """The name of this process, which says what call is under way."""

    def __init__(self) -> None:
        self._comm = os.open("/proc/self/comm", os.O_WRONLY)

    def say(self, text: str) -> None:
        os.write(self._comm, f"nvml {text}"[:15].encode())


class Sampler:
    """Reads every GPU once per request, through one initialised NVML."""

    def __init__(self, pynvml: Any, say: Callable[[str], None]) -> None:
        self._nvml = pynvml
        self._say = say
        #: (uuid, pci, name) by index: a GPU that is lost no longer says who it was.
        self._identities: dict[int, tuple[str, str, str]] = {}

    def start(self) -> str:
        """Initialise NVML for the life of this process and give the driver's version."""
        self._say("init")
        self._nvml.nvmlInitWithFlags(0)
        self._say("driver")
        try:
            return str(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return ""  # nothing but a text for people hangs on it

    def sample(self, send: Callable[[dict[str, Any]], None]) -> None:
        """Send the count, then each GPU as soon as it has answered, then the end."""
        errors: dict[str, int] = {}
        count = self._call(errors, "count", "", self._nvml.nvmlDeviceGetCount) or 0
        send({"count": count, "error": errors.get("count", 0)})
        for index in range(count):
            send(self._gpu(index))
        self._say("idle")
        send({"end": True})

    def _gpu(self, index: int) -> dict[str, Any]:
        nvml, errors = self._nvml, dict[str, int]()

        def call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
            if _GPU_IS_LOST in errors.values():
                return None  # each further call would wait for a GPU that is not there
            return self._call(errors, name, f"{index} ", function, *arguments)

        handle = call("handle", nvml.nvmlDeviceGetHandleByIndex, index)
        gpu: dict[str, Any] = {"index": index, "recovery_action": None, "rows": None, "ecc": None}
        if handle is not None:
            self._identify(index, handle, call)
            gpu["recovery_action"] = call("recovery", self._recovery_action, handle)
            gpu["rows"] = call("rows", nvml.nvmlDeviceGetRemappedRows, handle)
            gpu["ecc"] = self._ecc(handle, call)
        gpu["uuid"], gpu["pci"], gpu["name"] = self._identities.get(index, ("", "", ""))
        gpu["errors"] = errors
        return gpu

    def _identify(self, index: int, handle: Any, call: Callable[..., Any]) -> None:
        uuid = call("uuid", self._nvml.nvmlDeviceGetUUID, handle)
        known = self._identities.get(index)
        if uuid is None or (known is not None and known[0] == uuid and known[1]):
            return
        info = call("pci", self._nvml.nvmlDeviceGetPciInfo, handle)
        pci = "" if info is None else f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}"
        name = call("name", self._nvml.nvmlDeviceGetName, handle)
        self._identities[index] = (uuid, pci, name or "")

    def _recovery_action(self, handle: Any) -> int:
        field = self._nvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION])[0]
        if field.nvmlReturn != 0:
            raise self._nvml.NVMLError(field.nvmlReturn)
        if not 0 <= field.valueType < len(_VALUE_MEMBERS):
            raise self._nvml.NVMLError(_NOT_SUPPORTED)  # a type that is newer than we are
        return int(getattr(field.value, _VALUE_MEMBERS[field.valueType]))

    def _ecc(self, handle: Any, call: Callable[..., Any]) -> list[int | None] | None:
        total = self._nvml.nvmlDeviceGetTotalEccErrors
        counts = [
            call("ecc", total, handle, kind, life)
            for life in (_VOLATILE, _AGGREGATE)
            for kind in (_CORRECTED, _UNCORRECTED)
        ]
        return None if all(count is None for count in counts) else counts

    def _call(
        self,
        errors: dict[str, int],
        name: str,
        prefix: str,
        function: Callable[..., Any],
        *arguments: Any,
    ) -> Any:
        """What ``function`` gives, or None and its NVML code in ``errors``."""
        self._say(prefix + name)
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            errors.setdefault(name, error.value)
        except self._nvml.NVMLLibraryMismatchError:
            # Not an NVMLError: pynvml's word for a function that this library does not have.
            errors.setdefault(name, _FUNCTION_NOT_FOUND)
        except UnicodeDecodeError:
            errors.setdefault(name, _UNKNOWN)  # a text that is none
        return None


def _serve(wire: _Wire, pynvml: Any, libraries: list[str]) -> None:
    library, refusals = _load(libraries)
    if not library:
        wire.send({"failed": _LIBRARY_NOT_FOUND, "message": "; ".join(refusals)})
        return
    sampler = Sampler(pynvml, _Progress().say)
    try:
        driver = sampler.start()
    except pynvml.NVMLError as error:
        wire.send({"failed": error.value, "message": f"{library}: {error}"})
        return
    except pynvml.NVMLLibraryMismatchError as error:
        wire.send({"failed": _LIBRARY_MISMATCH, "message": f"{library}: {error}"})
        return
    wire.send({"ready": library, "driver": driver})
    for line in sys.stdin.buffer:
        if json.loads(line)["op"] == "sample":
            sampler.sample(wire.send)


def main() -> None:
    # If the agent is killed while we hang in a call, nobody is left to end us, and an open NVML
    # client stands in the way of a GPU reset.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    pynvml = _import_pynvml(sys.argv[1])
    _serve(_Wire(), pynvml, sys.argv[2:])
    os._exit(0)  # the library's exit handlers would call the driver once more


if __name__ == "__main__":
    main()
