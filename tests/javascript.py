"""Parses the JavaScript of the pages, as a browser would: a mistake fails `make lint`.

    python -m tests.javascript [FILE...]    exit code 1 where a file is no script

The parser is V8, in the Node.js that Playwright ships for the tests in a browser.
"""

import pathlib
import subprocess
import sys
from collections.abc import Sequence

from playwright._impl._driver import compute_driver_executable

ROOT = pathlib.Path(__file__).resolve().parent.parent
#: `node --check` parses a module of Node.js, in which a `return` outside of functions is allowed.
PARSE = """
for (const filename of process.argv.slice(1))
  new (require("vm").Script)(require("fs").readFileSync(filename, "utf8"), { filename });
"""


def scripts() -> list[str]:
    """The files of the pages."""
    found = (file for folder in ("aggregator", "release") for file in (ROOT / folder).rglob("*.js"))
    return sorted(map(str, found))


def main(files: Sequence[str]) -> int:
    """Parse the files. Returns the exit code."""
    node, _ = compute_driver_executable()
    line = [node, "--eval", PARSE, "--", *(files or scripts())]
    return subprocess.run(line, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
