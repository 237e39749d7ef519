"""The process that talks to the NVIDIA driver: exec'd, long-lived, expendable.

A call into NVML can wait in the kernel for ever or abort the process, so the agent makes none: it
sends requests to this program over a pipe (``nvml_process`` is the other end). It runs by its path
under ``python -I -S`` and not as a module: importing the package would bring asyncio along, and
memory is counted on 10,000 nodes.

Arguments: the folder that holds ``pynvml``, then libraries to try in order (paths or names).
Standard input: ``sample SECONDS``, or ``processes SECONDS`` for a sample with the processes of each
GPU, one a line (of the agent's clock); its end is the end of this process.
Standard output, one JSON object a line:

- once ``{"ready": LIBRARY, "driver": VERSION}``, or ``{"failed": CODE, "message": TEXT}`` and exit;
- per request ``{"count": N, "error": CODE}``, a ``{"index": ...}`` per GPU (its ``"seldom"`` is
  null where those values are as sent before), and
  ``{"end": true, "xids": [[UUID, PCI, CODE], ...]}``.

Its process name shows the call under way (``nvml 3 rows``), to the agent and to ``ps`` alike.
``nvml_sampler`` chooses the values to read.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import sys
import time
import types

TYPE_CHECKING = False  # `typing` would import half a megabyte for annotations that never run
if TYPE_CHECKING:
    from typing import Any

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9

_LIBRARY_NOT_FOUND = 12
_LIBRARY_MISMATCH = 18


def _import_pynvml(folder: str) -> Any:
    """The real pynvml, without the parts of the library that it imports and hardly uses.

    ``ctypes.util`` brings subprocess, tempfile and three compressors: 1.7 MB, for a search that
    pynvml makes on no Linux. ``threading``, ``string`` and ``functools`` bring ``re`` and
    ``collections``: 1.1 MB, for a lock, the names of exceptions and those of functions. They are
    importable again afterwards. Compiling pynvml leaves 13 MB behind: when its bytecode was not
    there before and is now, this process starts over from it.
    """
    _replace_module("ctypes.util", find_library=lambda _name: None)
    unused: dict[str, dict[str, Any]] = {
        "threading": {"Lock": _thread.allocate_lock},
        "string": {"capwords": _capwords},
        "functools": {"wraps": lambda _wrapped: lambda wrapper: wrapper},
    }
    given = [name for name, attributes in unused.items() if _replace_module(name, **attributes)]
    bytecode = _bytecode_of(f"{folder}/pynvml.py")
    was_compiled = os.path.exists(bytecode)  # noqa: PTH110  pathlib costs 1 MB
    sys.path.append(folder)
    import pynvml

    if not was_compiled and os.path.exists(bytecode):  # noqa: PTH110
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
    for name in given:
        del sys.modules[name]
    return pynvml


def _bytecode_of(source: str) -> str:
    """The file of its bytecode. ``importlib.util`` has the same function, and 0.2 MB of imports."""
    name: str = sys.modules["_frozen_importlib_external"].cache_from_source(source)
    return name


def _replace_module(name: str, **attributes: Any) -> bool:
    """An import of this module gives these attributes alone; False: it is imported already."""
    if name in sys.modules:
        return False
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    sys.modules[name] = module
    return True


def _capwords(text: str, separator: str) -> str:
    return separator.join(word.capitalize() for word in text.split(separator))


def _load(libraries: list[str]) -> tuple[str, list[str]]:
    """The first of ``libraries`` that loads (empty if all fail), and why the others did not.

    pynvml opens ``libnvidia-ml.so.1`` by name. The loader answers with the library already
    loaded under that SONAME, so a library outside its search path can be used.
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


def _sampler_class() -> Any:
    """A module and not a part of this file: a program's own bytecode is kept nowhere."""
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    return __import__("nvml_sampler").Sampler


class _Wire:
    """Standard output, kept for us: the driver's library must not print to it."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)

    def send(self, message: dict[str, Any]) -> None:
        line = to_json(message).encode() + b"\n"
        while line:
            line = line[os.write(self._out, line) :]


def to_json(value: Any) -> str:
    """The value as JSON. `json` brings `re`, 1 MB, so it is imported for unusual values alone."""
    if value is None:
        return "null"
    kind = type(value)
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return str(value)
    if kind is str and ascii(value)[1:-1] == value and '"' not in value:  # needs no escape
        return f'"{value}"'
    if kind is list or kind is tuple:
        return f"[{', '.join([to_json(one) for one in value])}]"
    if kind is dict and all(type(key) is str for key in value):
        members = [f"{to_json(key)}: {to_json(one)}" for key, one in value.items()]
        return f"{{{', '.join(members)}}}"
    import json

    return json.dumps(value)


class _Progress:
    """The name of this process, which shows what call is under way."""

    def __init__(self) -> None:
        self._comm = os.open("/proc/self/comm", os.O_WRONLY)

    def report_step(self, text: str) -> None:
        os.write(self._comm, f"nvml {text}"[:15].encode())


def _serve(wire: _Wire, pynvml: Any, libraries: list[str]) -> None:
    library, refusals = _load(libraries)
    if not library:
        wire.send({"failed": _LIBRARY_NOT_FOUND, "message": "; ".join(refusals)})
        return
    sampler = _sampler_class()(pynvml, _Progress().report_step, time.time)
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
        what, _, at = line.partition(b" ")
        if what in (b"sample", b"processes"):
            sampler.sample(wire.send, float(at), with_processes=what == b"processes")


def main() -> None:
    # If the agent is killed while we hang in a call, no process is left to end us. An open NVML
    # client prevents a GPU reset.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    pynvml = _import_pynvml(sys.argv[1])
    _serve(_Wire(), pynvml, sys.argv[2:])
    os._exit(0)  # the library's exit handlers would call the driver once more


if __name__ == "__main__":
    main()
