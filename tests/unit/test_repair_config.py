"""The section ``repair``: off by default, and each mistake with its line and what to write."""

from pathlib import Path

import pytest

from aggregator.config.settings import load
from aggregator.configfile.yaml_source import ConfigError
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.repairers.command import CommandRepairer
from aggregator.repairers.factory import repair_settings

LOCAL = """\
cluster: {kind: local}
listen: {grpc: "127.0.0.1:1", web: "127.0.0.1:2", insecure_plaintext: true}
identity: {kind: insecure-trust-hello}
"""


def loaded(tmp_path: Path, repair: str) -> object:
    path = tmp_path / "aggregator.yaml"
    (tmp_path / "secret").write_text("hush")
    path.write_text(LOCAL + repair)
    return load(path).repair


def problems(tmp_path: Path, repair: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, repair)
    return refused.value.lines()


@pytest.mark.parametrize(
    "text", ["", "repair:\n", "repair: {mode: off}\n", 'repair: {mode: "off"}\n']
)
def test_repairs_are_off_unless_the_mode_says_otherwise(tmp_path: Path, text: str) -> None:
    found = loaded(tmp_path, text)
    assert found.mode is RepairMode.OFF  # type: ignore[attr-defined]
    assert repair_settings(found, domain_labels=(), wall=lambda: 0.0).off  # type: ignore[arg-type]


def test_each_kind_has_the_repairer_that_is_configured(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        "repair:\n  mode: repair\n  repairers:\n"
        "    - {kind: reboot, command: [reboot-it, '{node}']}\n"
        "    - {kind: gpu-reset, command: [reset-it], idempotent: true, timeout: 10m}\n"
        "    - {kind: ticket, webhook: {url: 'https://example/', secret_file: secret}}\n",
    )
    made = repair_settings(found, domain_labels=("rack",), wall=lambda: 0.0)  # type: ignore[arg-type]
    assert set(made.repairers) == {"gpu-reset", "reboot", "ticket"}
    assert made.repairers["gpu-reset"].timeout == 600.0
    assert made.repairers["gpu-reset"].repairer.sends_twice
    assert isinstance(made.repairers["reboot"].repairer, CommandRepairer)
    assert not made.repairers["reboot"].repairer.sends_twice
    assert made.rules.mode is RepairMode.REPAIR
    assert made.domain_labels == ("rack",)


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("repair: {mode: on}\n", "repair.mode: "),
        ("repair: {mode: reboot}\n", "repair.mode: "),
        (
            "repair: {mode: repair}\n",
            'repair.mode: repairs nodes, and no repairer is configured; expected repairers, or "ob',
        ),
        (
            "repair: {repairers: [{kind: reboot}]}\n",
            "repairers[0]: has nobody who carries it out; expected",
        ),
        (
            (
                "repair:\n  repairers:\n    - kind: reboot\n      command: [a]\n"
                "      webhook: {url: 'https://x/', secret_file: secret}\n"
            ),
            "repairers[0]: has command and webhook; expected one of command, webhook, redfish",
        ),
        (
            "repair: {repairers: [{kind: reboot, command: [a, '{nod}']}]}\n",
            'no value is filled in for "{nod}"',
        ),
        (
            (
                "repair: {repairers: [{kind: replace, "
                "ipmi: {host: h, user: u, password_file: secret}}]}"
            ),
            "repairers[0].ipmi: restarts the machine; expected it under reboot",
        ),
        (
            "repair: {repairers: [{kind: ticket, command: [a]}]}\n",
            "repairers[0].command: a ticket has more evidence than arguments; expected webhook",
        ),
        (
            (
                "repair:\n  repairers:\n    - kind: reboot\n      idempotent: true\n"
                "      webhook: {url: 'https://x/', secret_file: secret}\n"
            ),
            "repairers[0].idempotent: is about a command; expected command beside it",
        ),
        (
            (
                "repair:\n  repairers:\n    - kind: reboot\n"
                "      redfish: {url: 'http://bmc/', user: u, password_file: secret}\n"
            ),
            "redfish.url: would send the BMC's password in the clear; expected https://",
        ),
        (
            (
                "repair:\n  repairers:\n    - kind: reboot\n"
                "      redfish: {url: 'https://bmc/', user: u, password_file: none}\n"
            ),
            "redfish.password_file: ",
        ),
        (
            (
                "repair:\n  repairers:\n    - kind: reboot\n"
                "      ipmi: {host: '-oProxy', user: u, password_file: secret}\n"
            ),
            "ipmi.host: ",
        ),
        (
            "repair: {repairers: [{kind: reboot, command: [a]}, {kind: reboot, command: [b]}]}\n",
            'repairers[1].kind: "reboot" has an entry already; expected one entry for each',
        ),
        ("repair: {attempts: 0}\n", "repair.attempts: "),
        ("repair: {window: 1m}\n", "repair.window: "),
        ("repair: {repairers: [{kind: reset, command: [a]}]}\n", "repair.repairers[0].kind: "),
    ],
)
def test_a_mistake_is_named_with_its_key_and_what_to_write(
    tmp_path: Path, text: str, reply: str
) -> None:
    (found,) = problems(tmp_path, text)
    assert ".yaml:" in found
    assert reply in found
    assert "expected" in found
