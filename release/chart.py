"""The chart as it is published: with the addresses of the project, which the tree does not name.

`python -m release.chart FOLDER [--source URL] [--files URL]` copies deploy/helm/sickbay to
FOLDER/sickbay. `--source` gives its Chart.yaml `home` and `sources`; `--files`, the address before
a file's path, is the default `documentation_url`, so that alerts have links.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

CHART = Path(__file__).parents[1] / "deploy" / "helm" / "sickbay"


def copy_chart(folder: Path, source: str, files: str = "") -> Path:
    """The copy. Raises OSError."""
    copy = folder / CHART.name
    shutil.copytree(CHART, copy)
    if source:
        with (copy / "Chart.yaml").open("a", encoding="utf-8") as chart:
            chart.write(f"home: {json.dumps(source)}\nsources: [{json.dumps(source)}]\n")
    if files:
        with (copy / "files" / "aggregator.yaml").open("a", encoding="utf-8") as config:
            config.write(f"documentation_url: {json.dumps(files.rstrip('/'))}\n")
    return copy


def main(argv: Sequence[str]) -> int:
    """0 when the copy is written."""
    parser = argparse.ArgumentParser(prog="python -m release.chart", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", default="", metavar="URL", help="where the source code is")
    parser.add_argument("--files", default="", metavar="URL", help="what precedes a file's path")
    options = parser.parse_args(argv)
    print(copy_chart(options.folder, options.source, options.files))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
