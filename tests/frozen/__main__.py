"""`python -m tests.frozen add`: freeze what the present version writes, in a folder of its name.

`add --again` writes the folder anew: for a version that is not released yet, and for no other.
"""

import sys
import tempfile
from pathlib import Path

from aggregator.version import VERSION
from tests.frozen.makers import files

HERE = Path(__file__).parent


def main(words: list[str]) -> int:
    if words not in (["add"], ["add", "--again"]):
        sys.stderr.write("usage: python -m tests.frozen add [--again]\n")
        return 2
    folder = HERE / VERSION
    if folder.exists() and "--again" not in words:
        text = "a frozen file is never changed; expected a new version"
        sys.stderr.write(f"{folder} is there: {text}\n")
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        made = files(Path(scratch))
    folder.mkdir(exist_ok=True)
    for name, text in made.items():
        (folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
