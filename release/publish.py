"""A release: checked, tagged, built, signed and published, one printed command after the other.

    python -m release.publish --registry HOST/PATH --index URL --remote NAME --base NAME@sha256:...
        --key KEY [--source URL --files URL] [--dry-run]

The tree names no registry, index or repository: each is an argument without a default. --dry-run
prints the commands and runs none. docs/releasing.md explains each step.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from release import version_check
from release.images import PLATFORMS, PROGRAMS, by_digest
from release.tree import ROOT, TreeError, git, version

OK, FAILED, USAGE = 0, 1, 2
#: Everything that a release makes; `make clean` removes it.
OUT = "build/release"
_PYTHON = ".venv/bin/python"
_TWINE = "build/packaging-env/bin/twine"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a release goes. ``key`` is cosign's: a file, or a key management system's URI."""

    version: str
    registry: str
    index: str
    remote: str
    base: str
    key: str
    source: str = ""
    files: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a release: shell commands, run in the root of the tree."""

    title: str
    commands: tuple[str, ...]


def steps(target: Target) -> list[Step]:
    """The release's steps in their order. What can be undone comes first; the index comes last,
    because it takes no version twice.
    """
    return [
        Step("test", ("make test", "make test-images", "make test-packages")),
        Step("tag", (_words("git", "tag", "--sign", f"v{target.version}", "-m", _tag(target)),)),
        Step("build", tuple(_build(target))),
        Step("sign files", tuple(_sign_files(target))),
        Step("push images", tuple(_images(target))),
        Step("push the chart", tuple(_chart(target))),
        Step("push the tag", (_words("git", "push", target.remote, f"v{target.version}"),)),
        Step("publish on the index", (_index(target),)),
    ]


def _tag(target: Target) -> str:
    return f"sickbay {target.version}"


def _build(target: Target) -> Iterator[str]:
    yield f"rm -rf {OUT} && mkdir -p {OUT}"
    urls = {"SICKBAY_SOURCE_URL": target.source, "SICKBAY_FILES_URL": target.files}
    given = [f"{name}={text}" for name, text in urls.items() if text]
    build = (_PYTHON, "-m", "hatchling", "build", "-d", f"{OUT}/dist")
    yield _words(*(("env", *given) if given else ()), *build)
    yield _words(_TWINE, "check", "--strict") + f" {OUT}/dist/*"
    images = [f"--base={target.base}", f"--repository={target.registry}/", f"--bills={OUT}"]
    source = [f"--source={target.source}"] if target.source else []
    for platform in PLATFORMS:
        yield _words(_PYTHON, "-m", "release.images", *images, f"--platform={platform}", *source)
    yield _words(_PYTHON, "-m", "release.debian_packages", "--output", f"{OUT}/debian")
    files = [f"--files={target.files}"] if target.files else []
    yield _words(_PYTHON, "-m", "release.chart", f"{OUT}/chart", *source, *files)
    yield _words("helm", "package", f"{OUT}/chart/sickbay", "--destination", OUT)


def _sign_files(target: Target) -> Iterator[str]:
    files = "dist/* debian/*.deb *.tgz *.cdx.json"
    yield f"(cd {OUT} && sha256sum {files} > SHA256SUMS)"
    yield _words(
        *("cosign", "sign-blob", "--yes", "--key", target.key),
        *("--bundle", f"{OUT}/SHA256SUMS.bundle", f"{OUT}/SHA256SUMS"),
    )


def _images(target: Target) -> Iterator[str]:
    """One name for all platforms: a node pulls its own."""
    for program in PROGRAMS:
        name = f"{target.registry}/sickbay-{program}"
        image, digest = f"{name}:{target.version}", f"{OUT}/{program}.digest"
        architectures = [platform.partition("/")[2] for platform in PLATFORMS]
        yield _words("buildah", "manifest", "create", image)
        for architecture in architectures:
            yield _words("buildah", "manifest", "add", image, f"{image}-{architecture}")
        push = ("buildah", "manifest", "push", "--all", "--format=oci", f"--digestfile={digest}")
        yield _words(*push, image, f"docker://{image}")
        yield from _signed(name, digest, target)
        for architecture in architectures:
            bill = f"{OUT}/sickbay-{program}-{architecture}.cdx.json"
            attest = ("cosign", "attest", "--yes", "--key", target.key, "--type", "cyclonedx")
            yield f"{_words(*attest, '--predicate', bill)} {_by_digest(name, digest)}"


def _chart(target: Target) -> Iterator[str]:
    """Helm prints "Digest: sha256:..." to standard error."""
    file, digest = f"{OUT}/sickbay-{target.version}.tgz", f"{OUT}/chart.digest"
    push = _words("helm", "push", file, f"oci://{target.registry}/charts")
    yield f"{push} 2>&1 | tee {OUT}/chart.log"
    yield f"sed -n 's/^Digest: //p' {OUT}/chart.log > {digest} && test -s {digest}"
    yield from _signed(f"{target.registry}/charts/sickbay", digest, target)


def _signed(name: str, digest: str, target: Target) -> Iterator[str]:
    sign = _words("cosign", "sign", "--yes", "--key", target.key)
    yield f"{sign} {_by_digest(name, digest)}"


def _by_digest(name: str, file: str) -> str:
    """A signature is of a digest: a tag may have moved meanwhile."""
    return f'{shlex.quote(name)}@"$(cat {file})"'


def _index(target: Target) -> str:
    upload = (_TWINE, "upload", "--non-interactive", "--repository-url", target.index)
    return f"{_words(*upload)} {OUT}/dist/*"


def _words(*words: str) -> str:
    return shlex.join(words)


def obstacles(target: Target, tree: Path, run_git: Callable[..., str] = git) -> list[str]:
    """Why this tree can't be released now; empty when it can."""
    found = [str(problem) for problem in version_check.problems(tree, target.version)]
    if run_git("status", "--porcelain"):
        found.append("git: the tree has changes; expected a commit")
    if run_git("tag", "--list", f"v{target.version}"):
        found.append(f"git: there is a tag v{target.version} already; expected a new version")
    return found


def main(
    arguments: Sequence[str],
    *,
    tree: Path = ROOT,
    run_git: Callable[..., str] = git,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Print, check and run the release; returns the exit code."""
    options = _parser().parse_args(arguments)
    target = Target(
        version=version(),
        registry=options.registry.rstrip("/"),
        index=options.index,
        remote=options.remote,
        base=options.base,
        key=options.key,
        source=options.source or "",
        files=options.files or "",
    )
    try:
        found = obstacles(target, tree, run_git)
    except TreeError as error:
        found = [str(error)]
    for text in found:
        print(f"release: {text}", file=sys.stderr)
    if found and not options.dry_run:
        return USAGE
    for step in steps(target):
        print(f"# {step.title}", flush=True)
        for command in step.commands:
            print(command, flush=True)
            if not options.dry_run:
                shell = ["bash", "-euo", "pipefail", "-c", command]
                code = subprocess.run(shell, cwd=tree, env=environ, check=False).returncode
                if code != 0:
                    text = f"release: {step.title}: the command above ended with {code}"
                    print(f"{text}; no later step was begun", file=sys.stderr)
                    return FAILED
    return USAGE if found else OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m release.publish", description=__doc__, allow_abbrev=False
    )
    place = "images go to HOST/PATH/sickbay-NAME, the chart to HOST/PATH/charts"
    parser.add_argument(
        "--registry", required=True, type=_registry, metavar="HOST/PATH", help=place
    )
    parser.add_argument(
        "--index", required=True, type=_url, metavar="URL", help="where twine uploads to"
    )
    parser.add_argument("--remote", required=True, help="git's remote that gets the tag")
    parser.add_argument(
        "--base", required=True, type=by_digest, metavar="NAME@sha256:DIGEST", help="of the images"
    )
    parser.add_argument("--key", required=True, help="cosign's private key: a file, or a URI")
    parser.add_argument(
        "--source",
        type=_url,
        metavar="URL",
        help="the project's page: metadata, labels",
    )
    parser.add_argument(
        "--files",
        type=_url,
        metavar="URL",
        help="what precedes a file's path in a link, for the README on the index",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check, print the commands, and run none"
    )
    return parser


def _registry(text: str) -> str:
    if re.fullmatch(r"[a-z0-9][a-z0-9.-]*(:\d+)?(/[a-z0-9._-]+)*/?", text) is None:
        what = "expected HOST/PATH in small letters, without https://"
        raise argparse.ArgumentTypeError(f"{text!r} is no registry; {what}")
    return text


def _url(text: str) -> str:
    if re.fullmatch(r"https?://[^\s/]+(/\S*)?", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no address; expected https://HOST/...")
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
