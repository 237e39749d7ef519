"""``sickbay-agent simulate``: from its options to a fleet that runs until a signal stops it."""

import argparse
import asyncio
import gc
import logging
import os
import random
import resource
import signal
import sys
import threading
from pathlib import Path

from nodeagent import logs
from nodeagent.clock import SystemClock
from nodeagent.config.credential_files import wrong_with_authorities
from nodeagent.config.settings import UplinkConfig
from nodeagent.configfile import values
from nodeagent.configfile.toml_table import ConfigError, Problem
from nodeagent.simulate import machine
from nodeagent.simulate.events import Known, ScenarioError, ScenarioEvent, read_line, read_scenario
from nodeagent.simulate.fleet import Fleet
from nodeagent.simulate.node import SimulatedNode
from nodeagent.uplink.dialer import Dialer, DialError
from sickbay import regular_file

log = logging.getLogger(__name__)

#: Files besides the connections: the interpreter's own, logs, a scenario.
_OTHER_FILES = 64


def run(options: argparse.Namespace) -> int:
    """Simulate until SIGTERM, SIGINT, or the end of ``--stdin``; the exit code.

    Raises ConfigError for a scenario, a list of names or tokens that cannot be used.
    """
    names = _names(options)
    known = Known(frozenset(names), frozenset(machine.CHECKS), options.gpus)
    events = read_scenario(options.scenario, known) if options.scenario else []
    _check(options, names)
    logs.start(options.log_level)
    # A line from each of a thousand uplinks is too much: "attached" reports for all of them.
    for noisy in ("nodeagent.uplink.uplink", "nodeagent.uplink.stream"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    _allow_files(len(names) + _OTHER_FILES)
    # The nodes live as long as the process: looking through them for garbage finds none.
    gc.set_threshold(100_000, 20, 50)
    asyncio.run(_run(options, names, known, events))
    return 0


async def _run(
    options: argparse.Namespace, names: list[str], known: Known, events: list[ScenarioEvent]
) -> None:
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "big")
    rng, jitter = random.Random(seed), random.Random()  # noqa: S311 - nothing secret
    clock = SystemClock()
    changed = asyncio.Event()
    nodes = [
        SimulatedNode(
            name,
            gpus=options.gpus,
            seed=seed,
            address=options.aggregator,
            dialer=Dialer(_uplink(options, name), _sharing(options.connections, number)),
            clock=clock,
            draw=rng.random,
            jitter=jitter.random,
            on_change=changed.set,
        )
        for number, name in enumerate(names)
    ]
    gc.freeze()
    fleet = Fleet(nodes, rng=rng, changed=changed)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if options.stdin:
        _listen(fleet, known, stop)
    extra = {"nodes": len(names), "aggregator": options.aggregator, "seed": seed}
    log.info("simulation started", extra=extra)
    await fleet.run(events, stop)


def _listen(fleet: Fleet, known: Known, stop: asyncio.Event) -> None:
    """Take events from standard input. A thread: a file or a terminal can't be waited for."""
    loop = asyncio.get_running_loop()

    def take(line: str) -> None:
        try:
            event = read_line(line, known)
        except ScenarioError as refused:
            log.error("event refused: %s", refused, extra={"line": line.strip()[:200]})  # noqa: TRY400
        else:
            fleet.let_happen(event)

    def read() -> None:
        for line in sys.stdin.buffer:  # any bytes: an exception here would end the thread
            if line.strip():
                loop.call_soon_threadsafe(take, line.decode(errors="backslashreplace"))
        loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=read, name="stdin", daemon=True).start()


def _names(options: argparse.Namespace) -> list[str]:
    if options.names is None:
        width = max(4, len(str(options.nodes)))
        made = [f"{options.prefix}{number:0{width}d}" for number in range(1, options.nodes + 1)]
        try:
            values.node_name(made[-1])
        except ValueError as error:
            what = f"so named, the last node's name {error}"
            raise ConfigError([Problem("--prefix", 0, "", what, values.NODE_NAME)]) from None
        return made
    file = str(options.names)
    try:
        # An editor's byte order mark would be part of the first name.
        lines = regular_file.read(options.names).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError([Problem(file, 0, "", f"can't be read: {why}", "a text file")]) from None
    problems: list[Problem] = []
    names: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        name = line.strip()
        if not name:
            continue
        if name in names:
            what = f'"{name}" is on line {names[name]} already'
            problems.append(Problem(file, number, "", what, "each name once"))
            continue
        names[name] = number
        try:
            values.node_name(name)
        except ValueError as error:
            problems.append(Problem(file, number, "", str(error), values.NODE_NAME))
    if not names:
        problems.append(Problem(file, 0, "", "names no node", "a node's name on each line"))
    if problems:
        raise ConfigError(problems)
    return list(names)


def _check(options: argparse.Namespace, names: list[str]) -> None:
    """Refuse now any option that would otherwise fail at each attempt to connect."""
    problems = []
    for option, folder, what, ends in (
        ("--token-dir", options.token_dir, "token", ("",)),
        ("--cert-dir", options.cert_dir, "certificate", (".crt", ".key")),
    ):
        if folder is None:
            continue
        missing = [n for n in names if not all((folder / (n + end)).is_file() for end in ends)]
        if missing:
            lacks = f"has no {what} for {len(missing)} of {len(names)} nodes, {missing[0]} for one"
            wanted = "a file named as each node" if ends == ("",) else "NODE.crt and NODE.key"
            problems.append(Problem(str(folder), 0, option, lacks, wanted))
    if options.cert_dir is not None and options.ca_file is None:
        what = "needs TLS"
        problems.append(Problem("--cert-dir", 0, "", what, "--ca-file too"))
    if options.ca_file is not None and (what := wrong_with_authorities(options.ca_file)):
        problems.append(Problem(str(options.ca_file), 0, "--ca-file", what, "a CA in PEM"))
    try:
        Dialer(_uplink(options, names[0])).check(options.aggregator)
    except DialError as error:
        what = str(error).replace("aggregator.ca_file", "--ca-file")
        what = what.replace("aggregator.insecure_plaintext = true", "--insecure-plaintext")
        problems.append(Problem("--aggregator", 0, "", what))
    if problems:
        raise ConfigError(problems)


def _uplink(options: argparse.Namespace, name: str) -> UplinkConfig:
    tokens: Path | None = options.token_dir
    certificates: Path | None = options.cert_dir
    return UplinkConfig(
        address=options.aggregator,
        ca_file=options.ca_file,
        cert_file=certificates / f"{name}.crt" if certificates is not None else None,
        key_file=certificates / f"{name}.key" if certificates is not None else None,
        token_file=tokens / name if tokens is not None else None,
        server_name=options.server_name,
        insecure_plaintext=options.insecure_plaintext,
    )


def _sharing(connections: int, number: int) -> dict[str, int]:
    """Options of gRPC for the ``number``-th node: its own connection, or one of ``connections``.

    Channels of the same arguments share a connection through gRPC's global pool.
    """
    if not connections:
        return {}
    return {
        "grpc.use_local_subchannel_pool": 0,
        "sickbay.simulated_connection": number % connections,
    }


def _allow_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    if reachable < wanted:
        log.warning("%d files may be open, and %d are needed: see --connections", hard, wanted)
