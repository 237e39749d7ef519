"""The release recipe as a dry run: versions agree, and the exact commands in their order."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from release import publish, version_check
from release.tree import ROOT, version

DIGEST = "sha256:" + "0" * 64
ARGUMENTS = [
    *("--registry", "registry.example.test/health"),
    *("--index", "https://index.example.test/upload"),
    *("--remote", "upstream"),
    *("--base", f"registry.example.test/python@{DIGEST}"),
    *("--key", "release.key"),
    *("--source", "https://source.example.test/sickbay"),
    *("--files", "https://source.example.test/sickbay/files/"),
]
TARGET = publish.Target(
    version="1.2.3",
    registry="registry.example.test/health",
    index="https://index.example.test/upload",
    remote="upstream",
    base=f"registry.example.test/python@{DIGEST}",
    key="release.key",
)


def released(folder: Path) -> Path:
    """The files of this tree that name the version, as they are on the day of a release."""
    for name in {name for name, _ in version_check._PLACES} | {"CHANGELOG.md"}:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    changelog = folder / "CHANGELOG.md"
    text = f"## [Unreleased]\n\n## [{version()}] - 2026-12-01\n### Added\n- All of it.\n"
    changelog.write_text(text, "utf-8")
    return folder


def git(answers: dict[str, str]) -> Callable[..., str]:
    """A git that answers so, and "" else."""
    return lambda *arguments: answers.get(arguments[0], "")


def test_every_place_of_this_tree_names_one_version() -> None:
    found = [one for one in version_check.problems(ROOT, version()) if one.file != "CHANGELOG.md"]
    assert found == []


def test_a_tree_on_the_day_of_its_release_has_no_problem(tmp_path: Path) -> None:
    assert version_check.problems(released(tmp_path), version()) == []


@pytest.mark.parametrize("name", sorted({name for name, _ in version_check._PLACES}))
def test_another_version_in_any_place_is_found(tmp_path: Path, name: str) -> None:
    tree = released(tmp_path)
    path = tree / name
    path.write_text(path.read_text("utf-8").replace(version(), "9.9.9"), "utf-8")
    [problem, *_] = version_check.problems(tree, version())
    assert str(problem) == f"{name}: is of version 9.9.9; expected {version()}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("## [Unreleased]\n", "has 0 sections"),
        (f"## [{version()}] - unreleased\n- x\n", "expected the release's date"),
        (f"## [Unreleased]\n- new\n\n## [{version()}] - 2026-12-01\n", "[Unreleased] has entries"),
    ],
)
def test_a_changelog_that_is_not_finished_is_found(tmp_path: Path, text: str, told: str) -> None:
    tree = released(tmp_path)
    (tree / "CHANGELOG.md").write_text(text, "utf-8")
    [problem] = version_check.problems(tree, version())
    assert told in problem.text


def test_a_file_that_is_missing_is_found(tmp_path: Path) -> None:
    tree = released(tmp_path)
    (tree / "deploy/helm/sickbay/Chart.yaml").unlink()
    files = {problem.file for problem in version_check.problems(tree, version())}
    assert files == {"deploy/helm/sickbay/Chart.yaml"}


def test_the_commands_are_exactly_these(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = released(tmp_path)
    code = publish.main([*ARGUMENTS, "--dry-run"], tree=tree, run_git=git({}))
    assert code == publish.OK
    base, number = f"registry.example.test/python@{DIGEST}", version()
    images = "registry.example.test/health/sickbay"
    out = "build/release"
    expected = f"""\
# test
make test
make test-images
make test-packages
# tag
git tag --sign v{number} -m 'sickbay {number}'
# build
rm -rf {out} && mkdir -p {out}
env SICKBAY_SOURCE_URL=https://source.example.test/sickbay \
SICKBAY_FILES_URL=https://source.example.test/sickbay/files/ \
.venv/bin/python -m hatchling build -d {out}/dist
build/packaging-env/bin/twine check --strict {out}/dist/*
.venv/bin/python -m release.images --base={base} --repository=registry.example.test/health/ \
--bills={out} --platform=linux/amd64 --source=https://source.example.test/sickbay
.venv/bin/python -m release.images --base={base} --repository=registry.example.test/health/ \
--bills={out} --platform=linux/arm64 --source=https://source.example.test/sickbay
.venv/bin/python -m release.debian_packages --output {out}/debian
.venv/bin/python -m release.chart {out}/chart --source=https://source.example.test/sickbay \
--files=https://source.example.test/sickbay/files/
helm package {out}/chart/sickbay --destination {out}
# sign files
(cd {out} && sha256sum dist/* debian/*.deb *.tgz *.cdx.json > SHA256SUMS)
cosign sign-blob --yes --key release.key --bundle {out}/SHA256SUMS.bundle {out}/SHA256SUMS
# push images
buildah manifest create {images}-agent:{number}
buildah manifest add {images}-agent:{number} {images}-agent:{number}-amd64
buildah manifest add {images}-agent:{number} {images}-agent:{number}-arm64
buildah manifest push --all --format=oci --digestfile={out}/agent.digest \
{images}-agent:{number} docker://{images}-agent:{number}
cosign sign --yes --key release.key {images}-agent@"$(cat {out}/agent.digest)"
cosign attest --yes --key release.key --type cyclonedx \
--predicate {out}/sickbay-agent-amd64.cdx.json \
{images}-agent@"$(cat {out}/agent.digest)"
cosign attest --yes --key release.key --type cyclonedx \
--predicate {out}/sickbay-agent-arm64.cdx.json \
{images}-agent@"$(cat {out}/agent.digest)"
buildah manifest create {images}-aggregator:{number}
buildah manifest add {images}-aggregator:{number} {images}-aggregator:{number}-amd64
buildah manifest add {images}-aggregator:{number} {images}-aggregator:{number}-arm64
buildah manifest push --all --format=oci --digestfile={out}/aggregator.digest \
{images}-aggregator:{number} docker://{images}-aggregator:{number}
cosign sign --yes --key release.key {images}-aggregator@"$(cat {out}/aggregator.digest)"
cosign attest --yes --key release.key --type cyclonedx \
--predicate {out}/sickbay-aggregator-amd64.cdx.json \
{images}-aggregator@"$(cat {out}/aggregator.digest)"
cosign attest --yes --key release.key --type cyclonedx \
--predicate {out}/sickbay-aggregator-arm64.cdx.json \
{images}-aggregator@"$(cat {out}/aggregator.digest)"
# push the chart
helm push {out}/sickbay-{number}.tgz oci://registry.example.test/health/charts 2>&1 \
| tee {out}/chart.log
sed -n 's/^Digest: //p' {out}/chart.log > {out}/chart.digest && test -s {out}/chart.digest
cosign sign --yes --key release.key \
registry.example.test/health/charts/sickbay@"$(cat {out}/chart.digest)"
# push the tag
git push upstream v{number}
# publish on the index
build/packaging-env/bin/twine upload --non-interactive \
--repository-url https://index.example.test/upload {out}/dist/*
"""
    assert capsys.readouterr().out == expected


def test_a_dry_run_names_every_obstacle_and_still_prints_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = released(tmp_path)
    ask = git({"status": " M README.md", "tag": f"v{version()}"})
    assert publish.main([*ARGUMENTS, "--dry-run"], tree=tree, run_git=ask) == publish.USAGE
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "release: git: the tree has changes; expected a commit",
        f"release: git: there is a tag v{version()} already; expected a new version",
    ]
    assert "# publish on the index" in said.out


def test_a_release_with_an_obstacle_runs_no_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = git({"status": " M README.md"})
    assert publish.main(ARGUMENTS, tree=released(tmp_path), run_git=ask) == publish.USAGE
    assert capsys.readouterr().out == ""


def test_a_command_that_fails_ends_the_release_before_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [
        publish.Step("one", ("touch done", "false", "touch later")),
        publish.Step("two", ("touch later",)),
    ]
    monkeypatch.setattr(publish, "steps", lambda target: steps)
    tree = released(tmp_path)
    assert publish.main(ARGUMENTS, tree=tree, run_git=git({})) == publish.FAILED
    assert (tree / "done").exists()
    assert not (tree / "later").exists()
    assert "one: the command above ended with 1" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--registry", "--index", "--remote", "--base", "--key"])
def test_no_place_has_a_default(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    at = ARGUMENTS.index(option)
    with pytest.raises(SystemExit) as ended:
        publish.main([*ARGUMENTS[:at], *ARGUMENTS[at + 2 :], "--dry-run"])
    assert ended.value.code == publish.USAGE
    assert option in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--registry", "https://registry.example.test"),
        ("--registry", "a b"),
        ("--index", "index.example.test"),
        ("--base", "python:3.13"),
    ],
)
def test_a_place_of_the_wrong_form_is_refused(option: str, value: str) -> None:
    at = ARGUMENTS.index(option)
    with pytest.raises(SystemExit) as ended:
        publish.main([*ARGUMENTS[:at], option, value, *ARGUMENTS[at + 2 :], "--dry-run"])
    assert ended.value.code == publish.USAGE


def test_a_value_with_a_shells_letters_is_quoted() -> None:
    hostile = publish.Target(**{**_fields(TARGET), "remote": "x; touch y", "key": "$(touch z)"})
    commands = [command for step in publish.steps(hostile) for command in step.commands]
    assert "git push 'x; touch y' v1.2.3" in commands
    assert all("'$(touch z)'" in command for command in commands if command.startswith("cosign"))


def test_every_make_target_of_the_recipe_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for step in publish.steps(TARGET):
        for command in step.commands:
            if command.startswith("make "):
                assert re.search(rf"^{command.removeprefix('make ')}:", makefile, re.MULTILINE)


def test_the_documentation_names_every_step() -> None:
    page = (ROOT / "docs" / "releasing.md").read_text("utf-8")
    for step in publish.steps(TARGET):
        assert f"| {step.title} |" in page, step.title


def _fields(target: publish.Target) -> dict[str, str]:
    return {name: getattr(target, name) for name in publish.Target.__dataclass_fields__}
