"""One NVML worker that keeps its memory's state after each step. Run by worker_memory.py.

    python -I -S worker_stages.py OPTIONS FOLDER PYNVML LIBRARY...

OPTIONS: words joined by commas, each a change of the worker that may save memory. FOLDER gets a
copy of /proc/self/smaps for each step, and ``calls`` with the sums after each NVML call of the
first reading. As in the worker, each import here is memory: it has none of the worker's own beyond.
"""

import ctypes
import os
import sys
import time

_SOURCES = os.path.join(  # noqa: PTH118  pathlib costs 1 MB
    os.path.dirname(os.path.abspath(__file__)),  # noqa: PTH100, PTH120
    "../../nodeagent/sources",
)
_PR_SET_THP_DISABLE = 41
_LATER = 5
_FIRST_AT, _EVERY = 1_000.0, 400.0


def _copy(source: str, target: int) -> None:
    fd = os.open(source, os.O_RDONLY)
    while chunk := os.read(fd, 16384):
        os.write(target, chunk)
    os.close(fd)


def _keep(folder: str, step: str) -> None:
    target = os.open(f"{folder}/{step}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    _copy("/proc/self/smaps", target)
    os.close(target)


def main() -> None:
    options, folder, pynvml_folder, *libraries = sys.argv[1:]
    chosen = options.split(",")
    libc = ctypes.CDLL(None)
    if "thp-off" in chosen:
        libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    _keep(folder, "python")
    sys.path.append(_SOURCES)
    nvml_worker = __import__("nvml_worker")
    pynvml = nvml_worker._import_pynvml(pynvml_folder)
    _keep(folder, "pynvml")
    library, refusals = nvml_worker._load(libraries)
    if not library:
        sys.exit("; ".join(refusals))
    _keep(folder, "library")
    calls = os.open(f"{folder}/calls", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    looks = [False]

    def report_call(call: str) -> None:
        if looks[0]:
            os.write(calls, f"call {call}\n".encode())
            _copy("/proc/self/smaps_rollup", calls)

    sampler = nvml_worker._sampler_class()(pynvml, report_call, time.time)
    if "no-inforom" in chosen:
        sampler._validate_inforom = lambda _handle: 0
    if "no-seldom" in chosen:
        sampler._seldom = lambda *_: {}
    flags = sum(int(each[6:]) for each in chosen if each.startswith("flags="))
    initialise = pynvml.nvmlInitWithFlags
    pynvml.nvmlInitWithFlags = lambda _flags: initialise(flags)
    sampler.start()
    _keep(folder, "init")
    looks[0] = True
    sampler.sample(lambda _message: None, _FIRST_AT)
    looks[0] = False
    _keep(folder, "first")
    if "trim" in chosen:
        libc.malloc_trim(0)
    _keep(folder, "released")
    for number in range(_LATER):
        sampler.sample(lambda _message: None, _FIRST_AT + number * _EVERY)
    _keep(folder, "later")
    if "hold" in chosen:
        print("ready", flush=True)
        sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
