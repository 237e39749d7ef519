"""``sickbay-agent test``: one test profile by hand, on this node, without the aggregator."""

import argparse
import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from nodeagent import factory
from nodeagent.active_tests.host import HostPrograms
from nodeagent.active_tests.model import Step, TestReport, Verdict
from nodeagent.active_tests.profile import Profile, profile_names, read_profile
from nodeagent.active_tests.runner import Node, is_peer, run_profile, unmet
from nodeagent.clock import SystemClock
from nodeagent.config.settings import Config, ConfigError
from nodeagent.local.client import AgentTrouble, NoAgent, RequestRefused, get_json, post_json
from nodeagent.repair.lock import LOCK, lock_file
from nodeagent.sources.gpu_users import GpuUsersUnknown, gpu_users

__all__ = ["NotRun", "as_json", "exit_code", "listing", "profiles", "run", "table"]

_EXIT = {Verdict.PASSED: 0, Verdict.FAILED: 1}
_NO_VERDICT = 3
#: Seconds for an answer of the running agent.
_PATIENCE = 20.0
#: Seconds for which the driver stays released beyond the test's own limit.
_SPARE = 120.0


class NotRun(Exception):
    """The test was not begun; the text states why and what to do."""

    def __init__(self, message: str, *, wrong_use: bool = False) -> None:
        super().__init__(message)
        self.wrong_use = wrong_use


def run(config: Config, options: argparse.Namespace, emit: Callable[[str], None]) -> TestReport:
    """Run the profile. Raises NotRun and ConfigError. ``emit`` gets a line for each step."""
    profile = read_profile(options.profile, config.repair.profiles)
    if options.peer and not is_peer(options.peer):
        raise NotRun(f"--peer: {options.peer!r} is no address", wrong_use=True)
    node = asyncio.run(_find_gpus(config, options.peer))
    lacking = unmet(profile.requires, node)
    if lacking:
        needs = "name it with --peer" if "address" in lacking else "choose another profile"
        raise NotRun(f"profile {profile.name}: {lacking}; {needs}", wrong_use="peer" in needs)

    def on_step(step: Step) -> None:
        emit(f"{step.name}: {step.outcome.value}{f' ({step.reason})' if step.reason else ''}")

    for number in (signal.SIGTERM, signal.SIGHUP):  # a session that ends must not keep the driver
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, signal.default_int_handler)
    with _alone(config), _driver_free(config, profile, node):
        if profile.needs_idle and not options.force:
            _refuse_gpu_users(config)
        return asyncio.run(
            run_profile(
                profile,
                node=node,
                programs=HostPrograms(config.host_root, config.repair.tool_path),
                clock=SystemClock(),
                on_step=on_step,
            )
        )


async def _find_gpus(config: Config, peer: str) -> Node:
    """The node's GPUs. NVML is read once, in a process that ends before the test."""
    sources = factory.sources(config, factory.machine(config, SystemClock()), None)
    addresses = sources.gpus.addresses()
    models: list[str] = []
    if addresses and config.nvml.enabled:
        try:
            sample = await sources.nvml.sample()
            models = [gpu.name for gpu in sample.gpus if gpu.name]
        finally:
            await sources.nvml.close()
    return Node(len(addresses), models, config.state_dir / "scratch-by-hand", peer)


@contextlib.contextmanager
def _alone(config: Config) -> Iterator[None]:
    try:
        lock = lock_file(config.run_dir)
        free = lock.__enter__()
    except OSError as error:
        raise NotRun(f"{config.run_dir}: {error.strerror}; run it as root") from error
    try:
        if not free:
            raise NotRun(
                f"another test or a repair runs on this node ({config.run_dir / LOCK} is held)"
            )
        yield
    finally:
        lock.__exit__(None, None, None)


@contextlib.contextmanager
def _driver_free(config: Config, profile: Profile, node: Node) -> Iterator[None]:
    """Have the running agent release the driver: its worker disturbs, and the test heats.

    Its GPU checks report "quiesced" meanwhile, so that clocks and heat of the test are no evidence.
    """
    if not node.gpus or not profile.uses_gpus:
        yield
        return
    try:
        results = get_json(config.socket, "/v1/results", _PATIENCE)
        before = float(results["agent"]["quiesced_seconds"])
    except NoAgent:
        yield
        return
    except (AgentTrouble, RequestRefused, KeyError, TypeError, ValueError) as error:
        raise NotRun(f"the running agent gives no answer: {error}") from error
    seconds = min(profile.limit + _SPARE, 86400.0)
    if before < seconds:
        _quiesce(config, seconds)
    try:
        yield
    finally:
        # If a person had it released before, it stays released.
        if not before:
            with contextlib.suppress(NotRun):
                _quiesce(config, 0.0)


def _quiesce(config: Config, seconds: float) -> None:
    try:
        post_json(config.socket, "/v1/quiesce", {"seconds": seconds}, _PATIENCE)
    except (NoAgent, AgentTrouble, RequestRefused) as error:
        raise NotRun(f"the running agent does not release the GPU driver: {error}") from error


def _refuse_gpu_users(config: Config) -> None:
    try:
        users = gpu_users(
            factory.machine(config, SystemClock()),
            leave_out=config.repair.gpu_daemons,
            children_of=os.getpid(),
            own_namespace=config.repair.insecure_own_pid_namespace,
        )
    except GpuUsersUnknown as error:
        raise NotRun(
            f"it cannot be seen whether a GPU is in use: {error}; or use --force"
        ) from None
    if users:
        who = "; ".join(map(str, users[:5]))
        raise NotRun(f"a GPU is in use: {who}. Drain the node first, or use --force")


# -- for people ----------------------------------------------------------------------------------


def profiles(config: Config) -> list[dict[str, Any]]:
    """All profiles with purpose, needs and programs. Raises ConfigError for one that is wrong."""
    found = []
    problems = []
    for name in profile_names(config.repair.profiles):
        try:
            profile = read_profile(name, config.repair.profiles)
        except ConfigError as error:
            problems += error.problems
            continue
        found.append(
            {
                "name": profile.name,
                "purpose": profile.purpose,
                "requires": list(profile.requires),
                "limit_seconds": profile.limit,
                "steps": [
                    {"name": step.name, "command": list(step.command), "required": step.required}
                    for step in profile.steps
                ],
            }
        )
    if problems:
        raise ConfigError(problems)
    return found


def listing(found: list[dict[str, Any]]) -> str:
    width = max((len(each["name"]) for each in found), default=0)
    lines = []
    for each in found:
        needs = f" [{', '.join(each['requires'])}]" if each["requires"] else ""
        lines.append(f"{each['name']:<{width}}  {each['purpose']}{needs}")
        programs = ", ".join(dict.fromkeys(step["command"][0] for step in each["steps"]))
        lines.append(f"{'':<{width}}  at most {each['limit_seconds'] / 60:.0f} min: {programs}")
    return "\n".join(lines)


def exit_code(report: TestReport) -> int:
    return _EXIT.get(report.outcome, _NO_VERDICT)


def as_json(report: TestReport) -> dict[str, Any]:
    return {
        "profile": report.profile,
        "outcome": report.outcome.value,
        "reason": report.reason,
        "message": report.message,
        "steps": [{**asdict(step), "outcome": step.outcome.value} for step in report.steps],
    }


def table(report: TestReport) -> str:
    lines = []
    for step in report.steps:
        lines.append(f"{step.name}  {step.outcome.value}  {step.seconds:.1f} s  {step.message}")
        for each in step.measurements:
            bounds = [
                f"{word} {bound:g}"
                for word, bound in (("at least", each.minimum), ("at most", each.maximum))
                if bound is not None
            ]
            of = f" of {each.component}" if each.component else ""
            wanted = f" ({', '.join(bounds)})" if bounds else ""
            lines.append(f"  {each.measure}{of}: {each.value:g} {each.unit}{wanted}")
    lines.append(f"{report.profile}: {report.outcome.value}: {report.message}")
    return "\n".join(lines)
