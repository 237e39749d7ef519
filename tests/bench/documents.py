"""Fills the measured figures of README.md and docs/: `make figures`.

The figures that documents show are kept in docs/figures/measured.json: by benchmark, with the day,
the commit and the machine. `make figures` first takes over each build/bench/NAME.json that is
there, then fills each of these places from that file, in every page:

- a row of a table whose first cell ends with a key, below a heading that names the benchmark
  ("## From a line ...: `make bench-taint`", "| p50 (`taint_p50_ms`) | 19.6 ms | 20 ms |"): the
  second cell;
- in a sentence: `<!-- =taint.taint_p50_ms -->19.6 ms<!-- / -->`; `taint.source` is the day, the
  commit and the machine;
- the same for a key that begins with `*`: the second cell is SQLite's, the third PostgreSQL's;
- whole tables: between `<!-- measured: scale -->` and `<!-- /measured -->`.

A unit is the end of the key. All other numbers of the pages with figures are listed in
docs/figures/other-numbers.json, by their kind: a test fails for one that is in neither file. With
--check no file is changed, and the exit code is 1 where one would be.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench import figures
from tests.bench.rows import faults_table, known_nodes_table, scale_table, sizing_tables
from tests.bench.small import SMALL

ROOT = Path(__file__).parents[2]
MEASURED = Path("docs") / "figures" / "measured.json"
#: Characters of a value that a document may show, such as the points of `growth`.
MOST_SHOWN = 600
OTHERS = Path("docs") / "figures" / "other-numbers.json"
#: The benchmark of a figure, its figures by key, and "date", "commit", "machine".
Measured = Mapping[str, Mapping[str, Any]]

#: The ends of keys, before "_per_...", that are units; and how a figure of that unit is written.
UNITS = {
    "_bytes": " bytes",
    "_ms": " ms",
    "_us": " µs",
    "_min": " min",
    "_s": " s",
    "_mib": " MiB",
    "_kib": " KiB",
    "_percent": " %",
}
_PER = re.compile(r"_per_[a-z0-9]+$")
_HEADING = re.compile(r"^#+ .*`make (?:bench-)?([a-z-]+)`")
#: A row with one key; one with several is written by hand.
_ROW = re.compile(r"^(\| (?:(?!\(`)[^|])*\(`([a-z0-9_]+)`\)) \|([^|]*)\|(.*)$")
_PAIR = re.compile(r"^(\| (?:(?!\(`)[^|])*\(`\*_([a-z0-9_]+)`\)) \|([^|]*)\|([^|]*)\|(.*)$")
_INLINE = re.compile(r"(<!-- =([a-z-]+)\.([a-z0-9_]+) -->)(.*?)(<!-- / -->)", re.DOTALL)
_BLOCK = re.compile(r"(<!-- measured: ([a-z-]+) -->\n)(.*?)(<!-- /measured -->)", re.DOTALL)
_DATABASES = ("sqlite", "postgres")
_FENCE = re.compile(r"^(```|~~~)")


class NotMeasured(Exception):
    """A document shows a figure that no benchmark has written; the text says where."""


def written(key: str, value: object) -> str:
    """A figure as documents have it."""
    if isinstance(value, str):
        return value
    assert isinstance(value, int | float)
    unit = next((unit for end, unit in UNITS.items() if _PER.sub("", key).endswith(end)), "")
    return f"{value:,.12g}{unit}"


def figure(measured: Measured, benchmark: str, key: str) -> str:
    """The text of one figure. Raises NotMeasured."""
    if benchmark not in measured:
        raise NotMeasured(f"{benchmark}: no such benchmark in {MEASURED}")
    found = measured[benchmark]
    if key == "source":
        return f"{found['date']}, commit {found['commit']}, {found['machine']}"
    if key not in found:
        raise NotMeasured(f"{benchmark}.{key}: not in {MEASURED}")
    return written(key, found[key])


def blocks(measured: Measured) -> dict[str, Callable[[], str]]:
    """The tables that are made whole, by name."""
    return {
        "scale": lambda: scale_table(measured["scale"]),
        "sizing": lambda: sizing_tables(measured["scale"], measured["scale-curves"]),
        "known-nodes": lambda: known_nodes_table(measured["nodes"]),
        "faults": lambda: faults_table(measured["faults"]),
    }


def filled(text: str, measured: Measured) -> str:
    """The page with its figures. Raises NotMeasured for a figure that is not there."""
    tables = blocks(measured)

    def block(found: re.Match[str]) -> str:
        if found[2] not in tables:
            raise NotMeasured(f"<!-- measured: {found[2]} -->: expected one of {sorted(tables)}")
        return f"{found[1]}{tables[found[2]]()}\n{found[4]}"

    def inline(found: re.Match[str]) -> str:
        return f"{found[1]}{figure(measured, found[2], found[3])}{found[5]}"

    return "\n".join(_rows(_INLINE.sub(inline, _BLOCK.sub(block, text)), measured))


def _rows(text: str, measured: Measured) -> Iterator[str]:
    """Its lines, each keyed row of a table below a benchmark's heading with its figure."""
    benchmark, generated = "", False
    for line in text.split("\n"):
        if line.startswith("#"):
            heading = _HEADING.match(line)
            benchmark = heading[1] if heading else benchmark if line.startswith("###") else ""
        generated = line.startswith("<!-- measured: ") or (
            generated and not line.startswith("<!-- /measured")
        )
        row = _ROW.match(line)
        if row and benchmark in measured and not generated and row[2] in measured[benchmark]:
            yield f"{row[1]} | {figure(measured, benchmark, row[2])} |{row[4]}"
        elif (pair := _PAIR.match(line)) and f"sqlite_{pair[2]}" in measured.get(benchmark, {}):
            both = [figure(measured, benchmark, f"{one}_{pair[2]}") for one in _DATABASES]
            yield f"{pair[1]} | {both[0]} | {both[1]} |{pair[5]}"
        else:
            yield line


def without_figures(text: str) -> str:
    """The page without what `filled` fills, and without blocks of code: what people have written.

    A keyed row keeps its first cell alone, because its last one is an aim.
    """
    lines, fenced, generated = [], False, False
    for line in _INLINE.sub("", _BLOCK.sub("", text)).split("\n"):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and not generated:
            row = _ROW.match(line) or _PAIR.match(line)
            lines.append(row[1] if row else line)
    return "\n".join(lines)


#: A number with a unit of measurement.
_NUMBER = re.compile(
    r"(?<![\w.,`-])\d[\d,]*(?:\.\d+)? ?"
    r"(?:ms|µs|s|min|minutes?|seconds?|hours?|[KMG]iB|[KMG]B|bytes|%|requests|TFLOP/s)(?![\w-])"
)


def numbers(text: str) -> list[str]:
    """The numbers with a unit that people have written into a page, in order."""
    return _NUMBER.findall(re.sub(r"`[^`]*`", "", without_figures(text)))


def pages(root: Path) -> list[Path]:
    """The documents that may show figures."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def take_over(measured: dict[str, Any], folder: Path) -> list[str]:
    """Read the figures of the last runs into ``measured``; the names of those that were there."""
    names = []
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        if "date" in found:
            # Curves of a hundred points are in the drawings alone.
            measured[path.stem] = {
                key: value for key, value in found.items() if len(json.dumps(value)) < MOST_SHOWN
            }
            names.append(path.stem)
    return names


def main(arguments: Sequence[str], root: Path = ROOT, folder: Path = figures.FOLDER) -> int:
    """Fill all pages; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make figures", description="Fill the documents' figures")
    parser.add_argument("--check", action="store_true", help="change no file; 1 if one is stale")
    check = parser.parse_args(arguments).check
    if SMALL and not check:
        print("figures: BENCH_SMALL is set, and the figures of small forms mean nothing: unset it")
        return 2
    file = root / MEASURED
    measured: dict[str, Any] = json.loads(file.read_text())
    if not check:
        for name in take_over(measured, folder):
            print(f"{MEASURED}: {name} of {measured[name].get('date', 'the same run')}")
        file.write_text(json.dumps(measured, indent=1, sort_keys=True) + "\n")
    stale = 0
    for page in pages(root):
        text = page.read_text()
        try:
            new = filled(text, measured)
        except NotMeasured as missing:
            print(f"{page.relative_to(root)}: {missing}", file=sys.stderr)
            return 2
        if new != text:
            stale += 1
            print(f"{page.relative_to(root)}: {'stale' if check else 'filled'}")
            if not check:
                page.write_text(new)
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
