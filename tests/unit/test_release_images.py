"""The plan of an image's build: the base by digest, labels, times of the commit."""

import argparse
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from release import debian_base, images, tree

DIGEST = "sha256:" + "0" * 64
PLAN = images.Plan(
    repository="example.test/",
    version="1.2.3",
    revision="abc",
    epoch=1700000000,
    base=f"example.test/python@{DIGEST}",
    builder=f"example.test/builder@{DIGEST}",
    options=("--volume=/a:/a:ro",),
)


@pytest.mark.parametrize(
    "base", ["python:3.13", "python", f"python@{DIGEST[:-1]}", f"python@{DIGEST}0", f"@{DIGEST}"]
)
def test_a_base_that_is_not_named_by_its_digest_is_refused(
    base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        images.main(["--base", base], {})
    assert ended.value.code == images.USAGE
    assert "expected NAME@sha256:" in capsys.readouterr().err


def test_a_build_takes_its_base_from_the_digest_and_its_times_from_the_epoch() -> None:
    command = PLAN.build("agent")
    assert f"--build-arg=PYTHON=example.test/python@{DIGEST}" in command
    assert f"--build-arg=BUILDER=example.test/builder@{DIGEST}" in command
    assert "--timestamp=1700000000" in command
    assert "--tag=example.test/sickbay-agent:1.2.3" in command
    assert "--file=deploy/Dockerfile.agent" in command
    assert "--volume=/a:/a:ro" in command
    for option in command:
        name, _, file = option.partition("=")
        assert name not in {"--file", "--ignorefile"} or (tree.ROOT / file).is_file()


def test_a_label_without_a_value_is_left_out() -> None:
    labels = PLAN.labels()
    assert labels["org.opencontainers.image.base.digest"] == DIGEST
    assert "org.opencontainers.image.source" not in labels


def test_the_dockerfiles_declare_each_argument_that_a_build_gives() -> None:
    for program in images.PROGRAMS:
        text = (tree.ROOT / "deploy" / f"Dockerfile.{program}").read_text("utf-8")
        for option in PLAN.build(program):
            if option.startswith("--build-arg="):
                name = option.split("=")[1]
                assert f"\nARG {name}=" in text
                assert f"\nFROM ${{{name}}}" in text


@pytest.mark.parametrize("epoch", ["yesterday", "-1", "1.5"])
def test_a_time_that_is_no_number_is_refused(epoch: str) -> None:
    with pytest.raises(tree.TreeError, match="expected seconds since 1970"):
        tree.commit_time({"SOURCE_DATE_EPOCH": epoch})


def test_a_given_time_is_taken_for_the_commits() -> None:
    assert tree.commit_time({"SOURCE_DATE_EPOCH": "1700000000"}) == 1700000000


def test_the_base_of_debian_has_python_and_no_package_manager_of_it() -> None:
    command = debian_base.bootstrap_command(debian_base.PACKAGES, "trixie", Path("root.tar"))
    assert "--include=python3,python-is-python3,libstdc++6,ca-certificates,tzdata" in command
    assert command[-2:] == ["trixie", "root.tar"]


def test_sizes_are_written_in_mib(tmp_path: Path) -> None:
    file = tmp_path / "bench" / "images.json"
    built = {"agent": images.Built("a", DIGEST, 10 * 2**20, 5 * 2**20)}
    images.write_figures(file, built)
    assert '"image_agent_mib": 10.0' in file.read_text("utf-8")
    assert '"image_agent_packed_mib": 5.0' in file.read_text("utf-8")


def test_an_image_of_a_platform_names_it_and_its_base_is_of_that_architecture() -> None:
    arm = replace(PLAN, platform="linux/arm64")
    assert arm.image("agent").endswith(f"{PLAN.version}-arm64")
    assert "--platform=linux/arm64" in arm.build("agent")
    command = debian_base.bootstrap_command((), "trixie", Path("root.tar"), "arm64")
    assert "--architectures=arm64" in command


def test_each_stage_of_a_build_for_arm_has_the_fast_processor_of_the_emulator() -> None:
    arm = replace(PLAN, platform="linux/arm64")
    for program in images.PROGRAMS:
        assert "--build-arg=QEMU_CPU=cortex-a76" in arm.build(program)
        text = (tree.ROOT / "deploy" / f"Dockerfile.{program}").read_text("utf-8")
        stages = text.split("\nFROM ")[1:]
        assert all("\nARG QEMU_CPU=max\n" in stage for stage in stages)
    assert not [option for option in PLAN.build("agent") if "QEMU_CPU" in option]


def test_a_platform_that_this_machine_cannot_run_is_refused_with_the_remedy(
    tmp_path: Path,
) -> None:
    foreign = {"x86_64": "linux/arm64", "aarch64": "linux/amd64"}[os.uname().machine]
    with pytest.raises(images.ImageError, match="install qemu-user-static"):
        images.check_emulation(foreign, binfmt=tmp_path)
    machine = "aarch64" if foreign == "linux/arm64" else "x86_64"
    (tmp_path / f"qemu-{machine}").touch()
    images.check_emulation(foreign, binfmt=tmp_path)
    images.check_emulation("", binfmt=tmp_path)


def test_an_unknown_platform_is_refused_by_name() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected linux/amd64 or linux/arm64"):
        images.platform_of("linux/riscv64")


@pytest.mark.parametrize(
    ("printed", "refusal"),
    [
        ("183 /usr/bin/python3.13\n", ""),
        ("62 /usr/bin/true\n183 /opt/x.so\n", "x: /usr/bin/true is no program of linux/arm64"),
        ("", "x: no program was found"),
    ],
)
def test_an_image_with_a_program_of_another_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch, printed: str, refusal: str
) -> None:
    monkeypatch.setattr(images, "_run_in", lambda *_: printed)
    with pytest.raises(images.ImageError, match=refusal) if refusal else nullcontext():
        images.check_machine("x", "linux/arm64")


def test_the_machines_of_a_root_are_read_from_its_files(tmp_path: Path) -> None:
    for name, machine in (("one", 62), ("two.so", 183), ("three", 183)):
        head = b"\x7fELF\x02\x01\x01".ljust(18, b"\0") + machine.to_bytes(2, "little")
        (tmp_path / name).write_bytes(head)
    (tmp_path / "text").write_text("no program")
    (tmp_path / "link").symlink_to("gone")
    command = [sys.executable, "-c", images.ELF_SCAN, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found = dict(line.split(maxsplit=1) for line in ran.stdout.splitlines())
    assert found.keys() == {"62", "183"}
    assert found["62"] == str(tmp_path / "one")
