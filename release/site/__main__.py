"""Builds the site: `python -m release.site --version 0.1.0`, in the environment of `make docs`.

Every problem is an error: a broken link or anchor, a page without a place in the navigation, a
diagram that can't be drawn.
"""

import argparse
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

from release.site.versions import VersionError, check, lead_from_sources, publish
from release.tree import ROOT

START = "docs/README.html"
OK, FAILED, USAGE = 0, 1, 2


def build(version: str, output: Path, source: Path = ROOT) -> int:
    """An exit code. Writes output/VERSION, and the files that all versions share."""
    from sphinx.cmd.build import build_main

    # Documents stay until the end; to look for garbage among them takes a third of the build.
    gc.disable()
    os.environ["SICKBAY_SITE_VERSION"] = version
    os.environ.setdefault("SOURCE_DATE_EPOCH", "0")  # no page has the time of its build
    folder = output / version
    shutil.rmtree(folder, ignore_errors=True)
    configuration = str(Path(__file__).parent)
    strict = ("--fail-on-warning", "--keep-going", "--nitpicky", "--quiet")
    with tempfile.TemporaryDirectory() as work:
        places = ("-c", configuration, "-d", work, "-b", "html", str(source), str(folder))
        code = build_main([*strict, *places])
    if code != OK:
        return FAILED
    _copy_schemas(source, folder)
    lead_from_sources(folder, _pages(folder, source))
    versions = publish(output, START)
    print(f"{folder / START} (versions here: {', '.join(versions)})")
    return OK


def _copy_schemas(source: Path, there: Path) -> None:
    """Editors and clients name them by the path in the tree, which Sphinx' downloads don't keep."""
    for file in (*source.glob("docs/reference/*.json"), *source.glob("aggregator/*/*.json")):
        copy = there / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)


def _pages(folder: Path, source: Path) -> list[str]:
    """The pages that are made of a file of the tree, by its path without .md."""
    names = (file.relative_to(folder).with_suffix("") for file in folder.rglob("*.html"))
    return sorted(str(name) for name in names if (source / f"{name}.md").is_file())


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m release.site", description=__doc__)
    parser.add_argument("--version", default="dev", help="the folder's name, and that in the list")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site", help="the root")
    parser.add_argument("--source", type=Path, default=ROOT, help="the tree with the pages")
    chosen = parser.parse_args(arguments)
    try:
        return build(check(chosen.version), chosen.output.resolve(), chosen.source.resolve())
    except VersionError as error:
        print(f"make docs: {error}", file=sys.stderr)
        return USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
