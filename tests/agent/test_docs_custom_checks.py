"""docs/own-checks.md: its examples are taken out of it and run, its rule is evaluated."""

import re
import subprocess
from pathlib import Path

import pytest

from aggregator.health.model import Component, Fault
from aggregator.health.model import Status as Evaluated
from aggregator.health.node import NodeHealth
from aggregator.policy.evaluate import evaluate
from nodeagent.checks import custom_command
from nodeagent.config.settings import load
from nodeagent.sources.command import Outcome
from tests.agent.cli import agent, configured
from tests.agent.site_package import install
from tests.support.replica import component, fault, hello, shipped_policy, snapshot
from tests.support.text_files import text_file

PAGE = (Path(__file__).parents[2] / "docs/own-checks.md").read_text()
ENVIRON = {"NODE_NAME": "n1"}


def example(kind: str, word: str) -> str:
    """The only block of this kind that has ``word`` in it."""
    blocks = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    [found] = [block for block in blocks if word in block]
    return str(found)


def installed(folder: Path) -> Path:
    """The page's programs, in a folder that stands for /opt/site/checks."""
    programs = folder / "checks"
    programs.mkdir()
    for name in ("open-files", "scratch-mounted"):
        path = text_file(programs / name, example("bash", f"# {name} "))
        path.chmod(0o755)
    return programs


def settings(programs: Path, *, limits: str = '"80", "95"', scratch: str = "/proc") -> str:
    text = example("toml", "[own.open-files]").replace("/opt/site/checks", str(programs))
    return text.replace('"/scratch"', f'"{scratch}"').replace('"80", "95"', limits)


def results(config: Path, site: Path | None = None) -> dict[str, dict[str, str]]:
    environ = {"PYTHONPATH": str(site)} if site else {}
    done = agent("check", "--config", config, "-o", "json", env=environ)
    return {each["check"]: each for each in done.json["results"]}


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [
        ('"80", "95"', ("ok", "")),
        ('"0", "95"', ("degraded", "warning")),
        ('"0", "0"', ("failed", "critical")),
        ('"eighty", "95"', ("unknown", "unknown")),
    ],
)
def test_the_program_for_nagios(tmp_path: Path, limits: str, verdict: tuple[str, str]) -> None:
    config = configured(tmp_path)
    config.write_text(config.read_text() + settings(installed(tmp_path), limits=limits))
    seen = results(config)["open-files"]
    assert (seen["status"], seen["reason"]) == verdict
    words = r"\d+ open files, \d+% of what the kernel allows"
    if "eighty" in limits:
        words = r"a defect of the check, line \d+"
    assert re.fullmatch(words, seen["message"])
    assert "|" not in seen["message"]


@pytest.mark.parametrize(
    ("make", "verdict", "words"),
    [
        ("nothing", ("failed", "problem"), "/scratch does not exist"),
        ("folder", ("failed", "problem"), "nothing is mounted on /scratch"),
        pytest.param("mount", ("ok", ""), "/scratch is mounted", marks=pytest.mark.root),
    ],
)
def test_the_program_for_npd(
    tmp_path: Path, make: str, verdict: tuple[str, str], words: str
) -> None:
    config = configured(tmp_path)
    scratch = tmp_path / "root/scratch"
    config.write_text(config.read_text() + settings(installed(tmp_path), scratch="/scratch"))
    if make != "nothing":
        scratch.mkdir()
    if make == "mount":
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", scratch], check=True)
    try:
        seen = results(config)["scratch-mounted"]
    finally:
        if make == "mount":
            subprocess.run(["umount", scratch], check=True)
    assert (seen["status"], seen["reason"]) == verdict
    assert seen["message"] == words


def test_the_python_class(tmp_path: Path) -> None:
    package = example("toml", "project.entry-points")
    [(name, target)] = re.findall(r'^([\w-]+) = "(.*)"$', package, re.MULTILINE)
    text = example("python", "SPEC = CheckSpec")
    module = target.partition(":")[0]
    assert f"{module}.py" in text
    site = install(tmp_path, module, text, f"{name} = {target}")
    config = configured(tmp_path)
    own_settings = example("toml", "entry_point =")
    config.write_text(config.read_text() + own_settings)
    seen = results(config, site)["pid-space"]
    assert (seen["status"], seen["reason"]) == ("ok", "")
    assert re.fullmatch(r"\d+ of \d+ process IDs", seen["message"])
    config.write_text(config.read_text().replace('"60%"', '"0%"'))
    seen = results(config, site)["pid-space"]
    assert (seen["status"], seen["reason"]) == ("degraded", "nearly-full")


def test_each_example_has_about_twenty_lines() -> None:
    for kind, word in [("bash", "# open-files "), ("bash", "# scratch-"), ("python", "SPEC")]:
        assert len(example(kind, word).splitlines()) <= 24


def test_the_table_of_codes_is_what_the_agent_goes_by() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "126", "127"]
    for code, nagios, npd in rows:
        for protocol, cell in ((custom_command.NAGIOS, nagios), (custom_command.NPD, npd)):
            text = nagios if cell == "the same" else cell
            status, reason, _ = custom_command.evaluate(protocol, Outcome(exit=int(code), out="x"))
            words = status.name.lower() + (f", reason `{reason}`" if reason else "")
            assert text == words, (code, protocol)


def test_the_table_of_keys_is_what_the_loader_takes(tmp_path: Path) -> None:
    table = PAGE.partition("### Keys of [own.NAME]\n")[2].partition("\n## ")[0]
    keys = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    path = tmp_path / "agent.toml"
    path.write_text('[own.a]\ncommand = ["/x"]\nprotocol = "npd"\nnonsense = 1\n')
    said = agent("checks", "--config", path).err
    taken = said.partition("expected one of ")[2].strip().split(", ")
    assert sorted({*taken, "entry_point"}) == sorted(keys)
    path.write_text('[own.a]\ncommand = ["/x"]\nprotocol = "npd"\n')
    settings = load(path, ENVIRON).checks["a"]
    defaults = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| `\"?([^`\"]+)\"?` \|", table, re.MULTILINE))
    assert defaults == {"on": "true", "interval": "60s", "time_limit": "10s"}
    assert (settings.on, settings.interval) == (True, 60.0)
    assert settings.deadline - custom_command.GRACE == 10.0


def test_the_table_of_kernel_line_keys_is_what_the_loader_takes(tmp_path: Path) -> None:
    table = PAGE.partition("| key of [kernel_lines.NAME] |")[2].partition("\n## ")[0]
    path = text_file(tmp_path / "agent.toml", '[kernel_lines.a]\npattern = "x"\nnonsense = 1\n')
    taken = agent("checks", "--config", path).err.partition("expected one of ")[2].strip()
    keys = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(taken.split(", ")) == sorted(keys)


def evaluated(site: str | None, *evidence: Component | Fault) -> set[str]:
    """The actions by the shipped rules, with a site's if there are any, for this evidence."""
    health = NodeHealth(hello("n1"))
    health.snapshot(snapshot(*evidence))
    found = evaluate(shipped_policy(site), health, {}, 1000.0)
    return {incident.action for incident in found.incidents.values()}


def test_no_shipped_rule_acts_on_a_check_that_it_does_not_know() -> None:
    for reason in ("critical", "problem", "anything"):
        assert evaluated(None, component("scratch-mounted", "", Evaluated.FAILED, reason)) == set()
    assert evaluated(None, fault("fabric:x", "c")) == {"observe"}


def test_the_rule_acts_on_failed_alone_and_on_nothing_else() -> None:
    rule = example("yaml", "site-scratch")
    failed = component("scratch-mounted", "", Evaluated.FAILED, "problem")
    assert evaluated(rule, failed) == {"cordon"}
    assert evaluated(rule, component("scratch-mounted", "", Evaluated.FAILED, "other")) == set()
    for status in (Evaluated.UNKNOWN, Evaluated.DEGRADED, Evaluated.OK):
        assert evaluated(rule, component("scratch-mounted", "", status, "problem")) == set()
    assert evaluated(rule, component("open-files", "", Evaluated.FAILED, "problem")) == set()
