"""Where the NVML worker's memory goes: ``python -m tests.gpu.worker_memory FOLDER``, two tables.

One worker for each variant (worker_stages.py), with the proportional set size after each step, and
the parts of it in the end. FOLDER keeps all of smaps. Further arguments name the variants to run
(all). GPU_AGENT_PYTHON and GPU_AGENT_SITE are as in measure.py.
"""

import contextlib
import os
import re
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodeagent.sources.nvml_library import SONAME, candidates
from tests.gpu.environment import optimized

_PROGRAM = Path(__file__).with_name("worker_stages.py")
_STEPS = ("python", "pynvml", "library", "init", "first", "released", "later")
_PARTS = ("libnvidia-ml", "behind libnvidia-ml", "heap", "anonymous", "Python", "other files")
_SMALL_MALLOC = {
    "MALLOC_TOP_PAD_": "0",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_MMAP_THRESHOLD_": "65536",
}
_ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
#: Options of worker_stages.py, and variables.
VARIANTS: Sequence[tuple[str, Mapping[str, str]]] = (
    ("base", {}),
    ("thp-off", {}),
    ("arena", _ONE_ARENA),
    ("malloc", _SMALL_MALLOC),
    ("trim", {}),
    ("no-inforom", {}),
    ("no-seldom", {}),
    ("flags=1", {}),
    ("flags=2", {}),
    ("beside another", {}),
    ("thp-off,trim", _ONE_ARENA | _SMALL_MALLOC),
    ("base", {}),
)
_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+ *(.*)")
_MANY, _MOST_ROWS, _GROWTH = 100, 18, 40


@dataclass(frozen=True)
class Region:
    """One mapping of smaps: its place, its file or name, and its sizes in KiB."""

    start: int
    end: int
    mode: str
    name: str
    sizes: Mapping[str, int]


def regions(smaps: str) -> Iterator[Region]:
    """Those of one smaps. An anonymous mapping right behind a file's is named "behind FILE".

    It has that file's .bss, and whatever the kernel has merged with it.
    """
    found: list[tuple[int, int, str, str, dict[str, int]]] = []
    for line in smaps.splitlines():
        if head := _HEAD.fullmatch(line):
            start, end, name = int(head[1], 16), int(head[2], 16), head[4].strip()
            if not name and found and found[-1][1] == start and found[-1][3].startswith("/"):
                name = f"behind {Path(found[-1][3]).name}"
            found.append((start, end, head[3], name, {}))
        elif line.endswith(" kB"):
            key, _, value = line.partition(":")
            found[-1][4][key] = int(value.split()[0])
    return (Region(*each) for each in found)


def part(name: str) -> str:
    """The row of the table that a mapping's name belongs to."""
    file = Path(name).name
    if file.startswith("libnvidia-ml") or name.startswith("/dev/nvidia"):
        return "libnvidia-ml"
    if name.startswith("behind libnvidia-ml"):
        return "behind libnvidia-ml"
    if file.startswith(("python", "libpython")) or "/lib-dynload/" in name:
        return "Python"
    if name == "[heap]":
        return "heap"
    return "other files" if name.startswith("/") else "anonymous"


def _total(found: Sequence[Region], key: str, of: str = "") -> int:
    return sum(each.sizes.get(key, 0) for each in found if of in ("", part(each.name)))


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _mib(kib: float) -> str:
    return f"{kib / 1024:.1f}"


def _growth(calls: str) -> list[tuple[int, str]]:
    """By how many KiB the size grew in each call of the first reading, and the call's name."""
    found, name, before = [], "", 0
    for line in calls.splitlines():
        if line.startswith("call "):
            following = line[5:]
        elif line.startswith("Pss:"):
            now = int(line.split()[1])
            if name:
                found.append((now - before, name))
            name, before = following, now
    return found


def _detail(folder: Path) -> str:
    """The mappings of the last step that count most, and the calls of the first reading."""
    found = list(regions((folder / "later").read_text()))
    by_name: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for each in found:
        name = Path(each.name).name or f"anonymous at {each.start >> 32:x}"
        for key, value in each.sizes.items():
            by_name[name, each.mode][key] += value
    keys = ("Size", "Rss", "Pss", "Private_Dirty", "Private_Clean", "Shared_Clean", "AnonHugePages")
    ranked = sorted(by_name.items(), key=lambda item: -item[1]["Pss"])[:_MOST_ROWS]
    rows: list[Sequence[str]] = [("mapping, KiB", "mode", *keys)]
    rows += [(name, mode, *(str(sizes[key]) for key in keys)) for (name, mode), sizes in ranked]
    growth = [
        f"{name} {kib}" for kib, name in _growth((folder / "calls").read_text()) if kib >= _GROWTH
    ]
    return f"{_table(rows)}\nKiB of the first reading's calls: {', '.join(growth)}"


def _segments(library: str) -> str:
    """Sizes in KiB of each part of an ELF file that is loaded: in the file, and in memory."""
    content = Path(library).read_bytes()[:4096]
    offset, size, count = (
        *struct.unpack_from("<Q", content, 32),
        *struct.unpack_from("<HH", content, 54),
    )
    found = []
    for number in range(count):
        kind, flags, _, _, _, stored, in_memory = struct.unpack_from(
            "<IIQQQQQ", content, offset + number * size
        )
        if kind == 1:  # PT_LOAD
            mode = "".join(name for bit, name in ((4, "r"), (2, "w"), (1, "x")) if flags & bit)
            found.append(f"{mode} {stored // 1024}/{in_memory // 1024}")
    return f"{Path(library).resolve().name}: {', '.join(found)}"


def _run(
    command: Sequence[str], options: str, folder: Path, given: Sequence[str], env: Mapping[str, str]
) -> None:
    folder.mkdir(parents=True)
    done = subprocess.run(
        [*command, str(_PROGRAM), options, str(folder), *given],
        check=False,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
    )
    if done.returncode:
        (folder / "failed").write_text(f"{done.returncode} {done.stderr[-400:]}")


@contextlib.contextmanager
def _another(
    command: Sequence[str],
    folder: Path,
    given: Sequence[str],
    env: Mapping[str, str],
    *,
    wanted: bool,
) -> Iterator[None]:
    """A second worker that has the library loaded meanwhile, as DCGM has on many nodes."""
    if not wanted:
        yield
        return
    folder.mkdir(parents=True)
    process = subprocess.Popen(
        [*command, str(_PROGRAM), "hold", str(folder), *given],
        env=dict(env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.communicate()


def main(folder: Path, only: Collection[str] = ()) -> None:
    python = os.environ.get("GPU_AGENT_PYTHON", sys.executable)
    site = os.environ.get("GPU_AGENT_SITE", "")
    env = optimized(python, site)
    if not site:
        import pynvml

        site = str(Path(pynvml.__file__).parent)
    command = [python, "-I", "-S", "-OO", "-X", f"pycache_prefix={env['PYTHONPYCACHEPREFIX']}"]
    given = [site, SONAME, *candidates(Path("/"), os.environ)]
    _run(command, "base", folder / "first", given, env)  # the library's pages come from the disk
    rows: list[Sequence[str]] = [("variant, MiB", *_STEPS, *_PARTS, "dirty", "huge pages")]
    variants = [(options, more) for options, more in VARIANTS if not only or options in only]
    for number, (options, more) in enumerate(variants):
        own = folder / f"{number:02}"
        with _another(command, folder / "another", given, env, wanted=options == "beside another"):
            _run(command, options, own, given, {**env, **more})
        name = options + "".join(f" {key}={value}" for key, value in more.items())
        if (own / "failed").exists():
            why = (own / "failed").read_text()[:_MANY]
            rows.append((f"{name}: {why}", *[""] * (len(rows[0]) - 1)))
            continue
        steps = {step: list(regions((own / step).read_text())) for step in _STEPS}
        last = steps["later"]
        cells = [_mib(_total(steps[step], "Pss")) for step in _STEPS]
        cells += [_mib(_total(last, "Pss", of=each)) for each in _PARTS]
        cells += [_mib(_total(last, "Private_Dirty")), _mib(_total(last, "AnonHugePages"))]
        rows.append((name, *cells))
    print(_table(rows))
    print(_detail(folder / "00"))
    print("\n".join(_segments(library) for library in candidates(Path("/"), os.environ)))
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    print(f"transparent huge pages: {huge.read_text().strip() if huge.exists() else 'none'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
