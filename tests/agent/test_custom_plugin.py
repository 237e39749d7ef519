"""Entry points of others' packages: loaded when named, kept to their own affairs, no crash."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.checks.base import Off, Report
from nodeagent.config.settings import Config, ConfigError, load
from nodeagent.evidence.latch import Latch
from nodeagent.model import Clearing, FaultSighting, Gone, Loss, Observation, Status
from tests.agent.cli import agent, configured
from tests.agent.machines import made_up, sources
from tests.agent.site_package import install
from tests.support.tasks import end_tasks
from tests.support.text_files import text_file

MODULE = """
from nodeagent.checks.base import CheckSpec, Kind, Off, Option
from nodeagent.model import *

class Check:
    def __init__(self, sources, options):
        self.options = options
    async def run_check(self):
        return {look}

def build(sources, options):
    {build}
    return Check(sources, options)

SPEC = CheckSpec(
    name="fabric", sees="s", source="s", cost="c", blind_to="b", interval={interval}, deadline=5.0,
    build=build, options=(Option("limit", Kind.PERCENT, 80.0, "a limit"),), on=False,
)
"""
LOOK = '[Observation("fabric", "ib0", Status.FAILED, "down", str(self.options["limit"]))]'

Installed = Callable[..., Config]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    """Installs a package and loads a configuration that names it."""
    name = f"site_{abs(hash(tmp_path)):x}"

    def make(
        *,
        look: str = LOOK,
        build: str = "pass",
        interval: float = 30.0,
        text: str = "",
        entry: str = ":SPEC",
        more: str = "",
    ) -> Config:
        source = text or MODULE.format(look=look, build=build, interval=interval)
        site = install(tmp_path, name, source, f"fabric = {name}{entry}")
        monkeypatch.syspath_prepend(str(site))
        path = text_file(tmp_path / "agent.toml", f'[own.mine]\nentry_point = "fabric"\n{more}\n')
        return load(path, {"NODE_NAME": "n1"})

    yield make
    sys.modules.pop(name, None)


async def looked(config: Config, folder: Path) -> Report:
    [spec] = config.own
    check = spec.build(sources(made_up(folder)), config.checks[spec.name].options)
    report: Report = await check.run_check()  # type: ignore[union-attr]  # a probe
    return report


async def test_it_runs_under_the_name_that_the_site_gives_it(
    installed: Installed, tmp_path: Path
) -> None:
    config = installed(more='limit = "60%"\ninterval = "2m"')
    settings = config.checks["mine"]
    assert (settings.on, settings.interval, settings.deadline) == (True, 120.0, 5.0)
    assert await looked(config, tmp_path) == [
        Observation("mine", "ib0", Status.FAILED, "down", "60.0")
    ]


def test_its_settings_are_read_as_its_spec_says(installed: Installed) -> None:
    with pytest.raises(ConfigError) as caught:
        installed(more='limit = "60"\nlimitt = 1')
    said = [str(problem).partition(": ")[2] for problem in caught.value.problems]
    assert said == [
        'own.mine.limit: "60" has no unit; expected a percentage such as "95%"',
        (
            "own.mine.limitt: unknown key (did you mean own.mine.limit?); "
            "expected one of deadline, entry_point, interval, limit, on"
        ),
    ]


def test_what_the_configuration_does_not_name_is_not_imported(
    installed: Installed, tmp_path: Path
) -> None:
    installed(text=f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    assert (tmp_path / "ran").exists(), "named: imported"
    (tmp_path / "ran").unlink()
    for module in [name for name in sys.modules if name.startswith("site_")]:
        del sys.modules[module]
    (tmp_path / "agent.toml").write_text("")
    assert load(tmp_path / "agent.toml", {"NODE_NAME": "n1"}).own == ()
    named = text_file(tmp_path / "named.toml", '[own.mine]\nentry_point = "fabric"\n')
    assert load(named, {"NODE_NAME": "n1"}, with_checks=False).own == ()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"text": "import nothing_of_the_kind"}, "ModuleNotFoundError: No module named 'nothing"),
        ({"text": "1 / 0"}, "ZeroDivisionError"),
        ({"text": "import sys; sys.exit('bye')"}, "SystemExit: bye"),
        ({"text": "def broken("}, "SyntaxError"),
        ({"text": "SPEC = 7"}, "is a int and no CheckSpec"),
        ({"entry": ":MISSING"}, "AttributeError"),
        ({"interval": 0.0}, "others' checks are probes"),
    ],
)
async def test_a_package_that_cannot_be_used_is_unknown_with_the_reason(
    installed: Installed, tmp_path: Path, how: dict[str, str], words: str
) -> None:
    config = installed(more='limit = "60%"', **how)
    [seen] = await looked(config, tmp_path)  # type: ignore[misc]  # no Off
    assert isinstance(seen, Observation)
    assert (seen.check, seen.status, seen.reason) == ("mine", Status.UNKNOWN, "not-loaded")
    assert words in seen.message


async def test_an_entry_point_that_nobody_has_is_unknown(tmp_path: Path) -> None:
    path = text_file(tmp_path / "agent.toml", '[own.mine]\nentry_point = "no-such-thing"\n')
    [seen] = await looked(load(path, {"NODE_NAME": "n1"}), tmp_path)  # type: ignore[misc]  # no Off
    assert isinstance(seen, Observation)
    assert "no installed package has the entry point no-such-thing" in seen.message


@pytest.mark.parametrize(
    ("build", "words"),
    [("raise KeyError('x')", "KeyError: 'x'"), ("raise SystemExit('bye')", "SystemExit: bye")],
)
async def test_one_that_cannot_be_built_is_unknown(
    installed: Installed, tmp_path: Path, build: str, words: str
) -> None:
    [seen] = await looked(installed(build=build), tmp_path)  # type: ignore[misc]
    assert isinstance(seen, Observation)
    assert (seen.status, seen.reason) == (Status.UNKNOWN, "not-built")
    assert seen.message == words


@pytest.mark.parametrize(
    ("look", "words"),
    [
        ("__import__('sys').exit(1)", "SystemExit: 1"),
        ("[].append(await cancelled())", "CancelledError"),
    ],
)
async def test_one_that_ends_its_process_or_cancels_itself_is_an_error(
    installed: Installed, tmp_path: Path, look: str, words: str
) -> None:
    """It would end the agent, and `check` with a code that drains the node; or go unseen."""
    helper = """
async def cancelled():
    import asyncio
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future
"""
    module = MODULE.format(look=look, build="pass", interval=30.0) + helper
    config = installed(text=module)
    run = asyncio.ensure_future(looked(config, tmp_path))
    await asyncio.wait({run})
    assert not run.cancelled()
    assert isinstance(run.exception(), RuntimeError)
    assert words in str(run.exception())


async def test_a_run_that_the_agent_cancels_stays_cancelled(
    installed: Installed, tmp_path: Path
) -> None:
    look = "await __import__('asyncio').get_running_loop().create_future()"
    run = asyncio.ensure_future(looked(installed(look=look), tmp_path))
    await asyncio.sleep(0)
    await end_tasks(run)
    assert run.cancelled()


FAULT = (
    'FaultSighting(code="{code}", check="{check}", component="c", message="m", '
    'source="{source}", source_seq=1, at=0.0)'
)


@pytest.mark.parametrize(
    "item",
    [
        'Observation("disk-space", "/", Status.OK)',
        'Gone("gpu-inventory", "GPU-1")',
        'Clearing("GPU-1", "gpu-reset")',
        'Clearing("GPU-1", "gpu-reset", "xid:79")',
        FAULT.format(code="xid:79", check="fabric", source="fabric:x"),
        FAULT.format(code="fabric:x", check="xid", source="fabric:x"),
        FAULT.format(code="fabric:x", check="fabric", source="kmsg"),
        '"a text"',
        "None",
    ],
)
async def test_it_cannot_speak_for_others(installed: Installed, tmp_path: Path, item: str) -> None:
    config = installed(look=f"[{item}]")
    with pytest.raises(ValueError, match="fabric"):
        await looked(config, tmp_path)


async def test_its_own_faults_and_clearings_pass(installed: Installed, tmp_path: Path) -> None:
    fault = FAULT.format(code="fabric:x", check="fabric", source="fabric:log")
    others = 'Clearing("c", "expiry", "fabric:x"), Loss("fabric", 1, "m"), Gone("fabric", "d")'
    look = f"[{fault}, {others}]"
    sighting, clearing, loss, gone = await looked(installed(look=look), tmp_path)  # type: ignore[misc]
    assert isinstance(sighting, FaultSighting)
    assert (sighting.check, sighting.code) == ("mine", "fabric:x")
    assert clearing == Clearing("c", "expiry", "fabric:x")
    assert loss == Loss("fabric", 1, "m")
    assert gone == Gone("mine", "d")


async def test_a_fault_with_the_words_of_the_one_before_is_checked_too(
    installed: Installed, tmp_path: Path
) -> None:
    """The latch knows a storm's sightings by their shared words and details."""
    words = 'check="fabric", component="c", message="m", source="fabric:s", details=shared'
    faults = (
        f'FaultSighting(code="fabric:x", {words}, source_seq={seq}, at={at})'
        for seq, at in (("1", "5.0"), ("2", 'float("nan")'), ("2**70", "6.0"))
    )
    look = f"[{', '.join(faults)}] if (shared := {{}}) is not None else []"
    report = await looked(installed(look=look), tmp_path)
    assert not isinstance(report, Off)
    held = Latch(boot_id="boot-a", epoch="e")
    held.apply(report, 10.0)
    [fault] = held.faults.values()
    assert (fault.count, fault.last, fault.last_seq) == (1, 5.0, 1)


async def test_off_stays_off(installed: Installed, tmp_path: Path) -> None:
    assert await looked(installed(look='Off("no fabric")'), tmp_path) == Off("no fabric")


def test_its_defects_cost_no_other_check_its_word(tmp_path: Path) -> None:
    """The real program: one that raises, one that is not there, and one that works."""
    for name, look in {"bad": "1 / 0", "good": LOOK}.items():
        text = MODULE.format(look=look, build="pass", interval=30.0)
        site = install(tmp_path, f"site_{name}", text, f"{name} = site_{name}:SPEC")
    config = configured(tmp_path)
    with config.open("a") as file:
        for name in ("bad", "good", "none"):
            file.write(f'[own.{name}]\nentry_point = "{name}"\n')
    done = agent("check", "--config", config, "-o", "json", env={"PYTHONPATH": str(site)})
    seen = {each["check"]: each for each in done.json["results"]}
    assert seen["good"]["status"] == "failed"
    assert (seen["bad"]["status"], seen["bad"]["reason"]) == ("unknown", "check-error")
    assert seen["bad"]["message"] == "ZeroDivisionError: division by zero"
    assert (seen["none"]["status"], seen["none"]["reason"]) == ("unknown", "not-loaded")
    assert done.code == 1
