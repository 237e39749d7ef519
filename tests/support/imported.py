"""The modules that a program of Python imports."""

import re
import subprocess
import sys
from collections.abc import Sequence

#: The options of the interpreter that has each import on stderr.
TRACED = (sys.executable, "-X", "importtime")
_LINE = re.compile(r"import time: +\d+ \| +\d+ \| +(\S+)")


def imported_by(code: str, *arguments: str) -> tuple[set[str], Sequence[str]]:
    """The modules that this code imports, and what it prints. It must end well."""
    line = [*TRACED, "-c", code, *arguments]
    done = subprocess.run(line, check=True, capture_output=True, text=True, timeout=300)
    return modules_in(done.stderr), done.stdout.split()


def modules_in(stderr: str) -> set[str]:
    """The modules in the output of a program that was started with `TRACED`."""
    return set(_LINE.findall(stderr))
