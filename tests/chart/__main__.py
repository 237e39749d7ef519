"""`make chart`: write the files of the chart that are made from others, and its renderings."""

import sys

from tests.chart import values_docs
from tests.chart.renderings import GOLDEN_RENDERINGS, render, written
from tests.chart.templates import chart_files
from tests.controlplane import binaries
from tests.controlplane.toolchain import NoControlPlane


def main() -> int:
    """0 when all is written; 1 where helm can't be had for the renderings."""
    for path, text in chart_files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    values_docs.write()
    try:
        helm = binaries.program("helm")
    except NoControlPlane as error:
        print(f"the golden renderings are as they were: {error.reason}", file=sys.stderr)
        return 1
    for rendering in GOLDEN_RENDERINGS:
        rendering.golden.parent.mkdir(exist_ok=True)
        rendering.golden.write_text(written(render(helm, rendering)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
