"""Random mutants of the acting core, run against the tests that fit each: `make mutants`.

    MUTANTS_SEED=7        which mutants are drawn
    MUTANTS_COUNT=500     how many, or "all"
    MUTANTS_PACKAGE=...   only of these, separated by commas: names of packages.py, folders, files,
                          or lines (aggregator/policy/windows.py:147)
    MUTANTS_TESTS=...     only by these tests: files or folders, separated by commas
    MUTANTS_JOBS=2        trials at a time; one for each processor if it is not set
    MUTANTS_FRESH=1       find anew which tests run what, also of unchanged files of tests

Figures go to build/bench/mutants.json, the survivors to build/mutants/survivors.txt.
"""

import os
import sys
import time
from collections.abc import Sequence

from tests.mutants import equivalent, run
from tests.mutants.packages import ROOT
from tests.mutants.report import figures, save, survivors, table, wrongly_excused

FIGURES = ROOT / "build" / "bench" / "mutants.json"
SURVIVORS = ROOT / "build" / "mutants" / "survivors.txt"


def main(environment: dict[str, str]) -> int:
    began = time.monotonic()
    try:
        options = run.options(environment)
        outcomes = run.run(options)
    except (run.BadOption, equivalent.BadList) as error:
        print(f"make mutants: {error}", file=sys.stderr)
        return 2
    save(FIGURES, figures(outcomes, seed=options.seed, seconds=time.monotonic() - began))
    SURVIVORS.parent.mkdir(parents=True, exist_ok=True)
    SURVIVORS.write_text(survivors(outcomes) + "\n")
    print(f"\nsurvived:\n{survivors(outcomes)}\n\n{table(outcomes)}")
    print(f"\nfigures: {FIGURES.relative_to(ROOT)}")
    return _complain(wrongly_excused(outcomes))


def _complain(wrong: Sequence[str]) -> int:
    for line in wrong:
        print(f"{equivalent.PATH.name} calls it equivalent: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(dict(os.environ)))
