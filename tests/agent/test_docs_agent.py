"""The agent's docs say what the agent does: every key, every check, every default."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from nodeagent.checks import registry
from nodeagent.checks.base import Kind
from nodeagent.config.settings import Config, default, keys, load
from nodeagent.local.findings import Result
from nodeagent.model import Status
from tests.agent.cli import PROGRAM, StandIn, agent, answer, configured, result
from tests.support.text_files import text_file

REPOSITORY = Path(__file__).parents[2]
AGENT = (REPOSITORY / "docs/agent.md").read_text()
#: The health check and the prolog.
SLURM_EXAMPLES = [
    REPOSITORY / f"deploy/examples/slurm/{name}" for name in ("sickbay-health", "50-sickbay")
]
CHECKS = (REPOSITORY / "docs/reference/checks.md").read_text()


def rows(text: str) -> dict[str, list[str]]:
    """The tables' rows by the name in their first cell."""
    found = re.findall(r"^\| `([^`]+)` \|(.*)\|$", text, re.MULTILINE)
    return {key: [cell.strip() for cell in rest.split(" | ")] for key, rest in found}


def sections() -> dict[str, str]:
    parts = re.split(r"^## (\S+)$", CHECKS, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("key", keys())
def test_every_key_of_the_configuration_is_documented(key: str) -> None:
    first, *rest = key.split(".")
    if not rest and first in (
        "expect",
        "aggregator",
        "kernel_log",
        "nvml",
        "repair",
        "ready",
        "checks",
        "own",
        "kernel_lines",
    ):
        assert f"\n### [{first}" in AGENT
    elif first == "checks" and len(rest) == 1:
        assert rest[0] in sections()
    elif first == "checks":
        spec = registry.by_name()[rest[0]]
        if spec.interval or rest[1] not in ("interval", "deadline"):
            assert rest[1] in rows(sections()[rest[0]])
    else:
        assert key in rows(AGENT)


def test_no_key_is_documented_that_does_not_exist() -> None:
    reference = AGENT.partition("\n## Configuration\n")[2]
    assert reference
    assert set(rows(reference)) <= set(keys())


def test_the_documented_defaults_are_the_real_ones(tmp_path: Path) -> None:
    """Every literal in the tables is written into a file, and changes no setting."""
    reference = AGENT.partition("\n## Configuration\n")[2]
    literal = re.compile(r'`("[^"]*"|true|false|\d+|\[.*\])`')
    lines, counted = [], 0
    for key, cells in rows(reference).items():
        value = literal.fullmatch(cells[1])
        if value:
            lines.append(f"{key} = {value[1]}")
            counted += 1
    for name, text in sections().items():
        for key, cells in rows(text).items():
            value = literal.fullmatch(cells[1])
            assert value, (name, key, cells)
            lines.append(f"checks.{name}.{key} = {value[1]}")
    assert counted >= 9
    path = text_file(tmp_path / "agent.toml", "\n".join(lines))
    assert load(path, {"NODE_NAME": "n"}) == default({"NODE_NAME": "n"})


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Kind.SIZE, 0, '"0B"'),
        (Kind.SIZE, 4096, '"4KiB"'),
        (Kind.SIZE, 1000, '"1000B"'),
        (Kind.SIZE, 50 << 30, '"50GiB"'),
        (Kind.DURATION, 0.5, '"0.5s"'),
        (Kind.TEXTS, ("a", 'b"'), '["a", "b\\""]'),
    ],
)
def test_defaults_are_shown_as_they_would_be_written(kind: Kind, value: object, text: str) -> None:
    assert registry.written(kind, value) == text


def test_every_command_and_flag_is_documented() -> None:
    usage = agent("--help").out + agent("check", "--help").out
    commands = re.findall(r"^    ([a-z][a-z-]+)\s", usage, re.MULTILINE)
    assert {"run", "check", "checks", "parse-kmsg", "simulate"} <= set(commands)
    for word in [*commands, *re.findall(r"--[a-z-]+", usage)]:
        assert word in ("--help", "--output") or word in AGENT, word


def test_the_example_of_a_check_is_what_the_command_prints(tmp_path: Path) -> None:
    library = (
        "the NVML library cannot be loaded; set nvml.library to its path (libnvidia-ml.so.1: "
        "cannot open shared object file: No such file or directory)"
    )
    results = [
        Result(
            "gpu-inventory",
            "",
            Status.FAILED,
            "no-library",
            f"0 of 8 expected GPUs are on the PCI bus; {library}",
            42,
        ),
        *(
            Result(name, "", Status.UNKNOWN, "no-library", library, 40.0)
            for name in [spec.name for spec in registry.SPECS if spec.name.startswith("gpu-")][1:8]
        ),
        Result("memory", "", Status.OK, "", "1893.2 of 2015 GiB available", 9000.0),
        *(
            Result(
                "nic-link",
                f"mlx5_{n}",
                Status.OK,
                "",
                "up; losses of the link since the boot: 0",
                9e3,
            )
            for n in range(4)
        ),
        Result("disk-space", "/", Status.OK, "", "19 % used, 1374 GiB free", 9000.0),
        Result(
            "reach",
            "gateway",
            Status.OK,
            "",
            "10.0.0.1 on bond0: answers an echo in 0.2 ms",
            9000.0,
        ),
    ]
    config = configured(tmp_path)
    with StandIn(tmp_path / "run/agent.sock", answer(*results)):
        said = agent("check", "--config", config).out
    assert f"```\n$ sickbay-agent check\n{said}```\n" in AGENT, said


def test_the_example_errors_are_what_the_agent_says(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text("\n" * 7 + '[expect]\ngpus = "8"\n\n\n\n[kernel_log]\nbot_grace = "1m"\n')
    said = agent("check", "--config", path).err.replace(str(path), "/etc/sickbay/agent.toml")
    assert said in AGENT


@pytest.mark.parametrize(
    ("status", "draining", "drained", "prolog"),
    [
        (Status.FAILED, False, True, 1),
        (Status.FAILED, True, False, 1),
        (Status.DEGRADED, False, False, 0),
    ],
)
def test_the_slurm_scripts_drain_a_failed_node_once_and_no_other(
    tmp_path: Path, *, status: Status, draining: bool, drained: bool, prolog: int
) -> None:
    """The shipped examples, with a scontrol that records its arguments."""
    config = configured(tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    state = "IDLE+DRAIN" if draining else "IDLE"
    for name, text in {
        "scontrol": f'[ "$1" = show ] && echo State={state} || echo "$@" >> {tmp_path}/told',
        "logger": f'echo "$3" >> {tmp_path}/logged',
        "sickbay-agent": f'exec {PROGRAM} "$@" --config {config}',
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    environ = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURMD_NODENAME": "n1"}
    codes = []
    with StandIn(tmp_path / "run/agent.sock", answer(result(status))):
        for script in SLURM_EXAMPLES:
            text = script.read_text().replace("/opt/sickbay/bin/", "")
            codes.append(subprocess.run(["bash", "-c", text], env=environ, check=False).returncode)
    told = tmp_path / "told"
    assert codes == [0, prolog]
    assert told.exists() == drained
    reason = "sickbay: disk-space /: so and so full"
    if drained:
        assert told.read_text() == f"update NodeName=n1 State=DRAIN Reason={reason}\n"
    if prolog:
        assert (tmp_path / "logged").read_text() == f"{reason}\n"


def test_the_slurm_scripts_drain_nothing_where_the_agent_is_not_installed(tmp_path: Path) -> None:
    told = tmp_path / "told"
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {told}\n')
    (tmp_path / "scontrol").chmod(0o755)
    for script in SLURM_EXAMPLES:
        assert "/opt/sickbay/bin/" in script.read_text()
        assert f"({script.relative_to(REPOSITORY)})" in AGENT.replace("../", "")
        text = script.read_text().replace("/opt/sickbay/bin/", f"{tmp_path}/not-there/")
        environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURMD_NODENAME": "n1"}
        done = subprocess.run(["bash", "-c", text], env=environ, check=False, capture_output=True)
        assert done.returncode == 0, done
    assert "State=DRAIN" not in (told.read_text() if told.exists() else "")


def test_the_default_paths_are_documented() -> None:
    config: Config = default({"NODE_NAME": "n"})
    for path in (config.run_dir, config.state_dir, config.kernel_log.path):
        assert f'"{path}"' in AGENT
