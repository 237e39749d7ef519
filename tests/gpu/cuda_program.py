"""A program on the GPU, written for the driver's own API: neither CUDA's toolkit nor PyTorch.

    python cuda_program.py KIND [NAME]

KIND: ``hold`` (has the GPU open until its standard input ends), ``spin`` (works on it until then),
``invalid-address``, ``misaligned`` and ``trap`` (a kernel that faults). NAME becomes the name of
the process. Prints ``ready`` when it has the GPU, then one line of JSON: CUDA's result, as a number
and a name. Exit code 77: there is no CUDA driver or no GPU.
"""

import ctypes
import json
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

MISSING = 77
KINDS = ("hold", "spin", "invalid-address", "misaligned", "trap")
PTX = Path(__file__).with_name("kernels.ptx")

_INVALID_ADDRESS = 0x00DE_AD00_0000
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_SPIN_NS = 200_000_000


class CudaError(Exception):
    """A call of the driver's API that failed."""


class Cuda:
    """The driver's API, as far as it is needed here, with the first GPU's primary context."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        self._device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(self._device), 0)
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)

    def load(self, path: Path) -> ctypes.c_void_p:
        """The module of a PTX file, compiled by the driver, or by ptxas where that is refused."""
        module = ctypes.c_void_p()
        try:
            self._call("cuModuleLoadData", ctypes.byref(module), path.read_bytes() + b"\0")
        except CudaError:
            self._call("cuModuleLoadData", ctypes.byref(module), self._assembled(path))
        return module

    def run(self, module: ctypes.c_void_p, kernel: str, argument: int) -> int:
        """Run one thread of it to its end; CUDA's result."""
        function, value = ctypes.c_void_p(), ctypes.c_uint64(argument)
        self._call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        one = ctypes.c_uint(1)
        self._call(
            "cuLaunchKernel", function, one, one, one, one, one, one, 0, None, arguments, None
        )
        return int(self._cuda.cuCtxSynchronize())

    def memory(self) -> int:
        """The address of some memory of the GPU."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4096))
        return address.value

    def name_of(self, result: int) -> str:
        name = ctypes.c_char_p()
        self._cuda.cuGetErrorName(result, ctypes.byref(name))
        return (name.value or b"").decode()

    def _assembled(self, path: Path) -> bytes:
        found = shutil.which("ptxas", path="/usr/local/cuda/bin") or shutil.which("ptxas")
        if found is None:
            raise CudaError("the driver compiles no PTX, and there is no ptxas")
        numbers = []
        for attribute in (_MAJOR, _MINOR):
            number = ctypes.c_int()
            self._call("cuDeviceGetAttribute", ctypes.byref(number), attribute, self._device)
            numbers.append(str(number.value))
        command = [found, f"-arch=sm_{''.join(numbers)}", "-o", "/dev/stdout", str(path)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result:
            raise CudaError(f"{name} gave {result} {self.name_of(result)}")


def _result(cuda: Cuda, kind: str) -> int:
    module = cuda.load(PTX)
    print("ready", flush=True)
    if kind == "hold":
        sys.stdin.read()
        return 0
    if kind == "spin":
        result = 0
        while not result and not select.select([sys.stdin], [], [], 0)[0]:
            result = cuda.run(module, "spin", _SPIN_NS)
        return result
    if kind == "trap":
        return cuda.run(module, "stop", 0)
    return cuda.run(
        module, "store", _INVALID_ADDRESS if kind == "invalid-address" else cuda.memory() + 1
    )


def main(kind: str, name: str = "") -> int:
    """The exit code; a kernel's fault is no failure of this program."""
    if name:
        Path("/proc/self/comm").write_text(name)
    try:
        cuda = Cuda()
    except (OSError, CudaError) as error:
        print(f"no CUDA here: {error}", file=sys.stderr)
        return MISSING
    result = _result(cuda, kind)
    print(json.dumps({"result": result, "name": cuda.name_of(result)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
