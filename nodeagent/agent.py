"""The agent, put together: sources, checks, latch, uplink and the local socket, in one process."""

import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodeagent import factory, kernel_feed, logs, recorder
from nodeagent.check_set import CheckSet, ends_what_it_leaves_out, is_excluded, named, unnamed
from nodeagent.checks.base import Off, Report
from nodeagent.clock import Clock, SystemClock
from nodeagent.commands import Commands
from nodeagent.config.checks import NO_KERNEL_LOG
from nodeagent.config.reload import ConfigState, Reloader
from nodeagent.config.settings import Config
from nodeagent.evidence.disk_backup import DiskBackup
from nodeagent.evidence.store import NAME, Store, UnreleasedState
from nodeagent.kernel_feed import KernelFeed
from nodeagent.local.routes import LocalRoutes
from nodeagent.local.server import AlreadyRunning, LocalServer
from nodeagent.model import CheckInfo, Clearing, Gone
from nodeagent.recorder import EvidenceRecorder
from nodeagent.scheduler import Scheduler
from nodeagent.sources.host import NotMounted
from nodeagent.sources.kmsg import Cursor, KmsgReader
from nodeagent.sources.machine_identity import identify
from nodeagent.sources.measurements import Measured, rounded
from nodeagent.sources.process_state import stuck
from nodeagent.version import VERSION

if TYPE_CHECKING:
    from nodeagent.local.launcher_socket import LauncherSocket
    from nodeagent.local.ready import Readiness
    from nodeagent.repair.executor import RepairExecutor
    from nodeagent.repair.gpu_use import GpuUse
    from nodeagent.repair.wire import OrderGateway
    from nodeagent.uplink.uplink import Uplink

log = logging.getLogger(__name__)

#: Seconds between two readings of the entries that end by time alone.
HOUSEKEEPING = 60.0
#: Seconds for a last message to the aggregator, and for children to end.
FAREWELL = 3.0

#: A configuration's file, and the function that reads it again and may raise ConfigError.
Source = tuple[Path, Callable[[], Config]]


class CannotStart(Exception):
    """The agent cannot run as configured; the text states why and what to do."""


def run(config: Config, source: Source | None = None) -> int:
    """Run the agent until SIGTERM or SIGINT; the process's exit code."""
    # gRPC's C core would repeat on stderr what the uplink logs as JSON.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    logs.start(config.log_level, node=config.node)
    if sys.version_info < (3, 12):
        # The default of this Python version keeps a thread for each child.
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    try:
        asyncio.run(Agent(config, source=source).run())
    except CannotStart as error:
        log.critical("%s", error)
        return 2
    return 0


class Agent:
    """One node's agent. ``random`` gives numbers from [0, 1); ``new_id`` short unique names.

    ``source`` is where the configuration came from; it is read again when that file changes.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        random: Callable[[], float] = random.random,
        new_id: Callable[[], str] = lambda: os.urandom(8).hex(),
        source: Source | None = None,
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._random = random
        self._new_id = new_id
        self._instance = new_id()
        self._started_at = self._clock.boottime()
        self._machine = factory.machine(config, self._clock)
        self._uplink: Uplink | None = None
        self._launchers: LauncherSocket | None = None
        self._reloader: Reloader | None = None
        if source is not None:
            path, load = source
            self._reloader = Reloader(path, config, load=load, apply=self._reconfigure)

    async def run(self) -> None:
        """Run until a signal stops it. Raises CannotStart before any change to the node."""
        self._check_config()
        self._local = LocalServer()
        claimed = self._claim()
        self._build()
        await self._serve(claimed=claimed)
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        log.info(
            "agent started",
            extra={"event": "agent.started", "version": VERSION},
        )
        self._recorder.persist()
        if self._config.kernel_log.enabled:
            self._feed.start()
        parts = [
            asyncio.create_task(stop.wait(), name="stop"),
            asyncio.create_task(self._scheduler.run(), name="scheduler"),
            asyncio.create_task(self._housekeeping(), name="housekeeping"),
        ]
        if self._uplink is not None:
            parts.append(asyncio.create_task(self._uplink.run(), name="uplink"))
        if self._repairs is not None:
            parts.append(asyncio.create_task(self._repairs.run(), name="repairs"))
        if self._reloader is not None:
            loop.add_signal_handler(signal.SIGHUP, self._reloader.run_now)
            parts.append(asyncio.create_task(self._reloader.run(), name="configuration"))
        try:
            # Unless it was ordered to stop, a part that ends has a bug: end, to be started anew.
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        finally:
            await self._end(parts)

    # -- putting together ------------------------------------------------------------------------

    def _check_config(self) -> None:
        try:
            self._boot_id = self._machine.boot_id()
        except NotMounted as error:
            raise CannotStart(str(error)) from error
        if self._config.uplink.address:
            # Imported here, so that an agent without an aggregator does not carry gRPC.
            from nodeagent.light_grpc import import_grpc

            import_grpc()
            from nodeagent.uplink.dialer import Dialer, DialError

            self._dialer = Dialer(self._config.uplink)
            try:
                self._dialer.check(self._config.uplink.address)
            except DialError as error:
                raise CannotStart(str(error)) from error

    def _claim(self) -> bool:
        """Make sure that this is the only agent of the node and of its state file.

        Returns whether the socket can be served.
        """
        try:
            with contextlib.suppress(OSError):  # saving the state reports it
                self._local.claim_file(self._config.run_dir / NAME)
            self._local.claim(self._config.socket)
        except AlreadyRunning as error:
            raise CannotStart(str(error)) from error
        except OSError as error:
            log.warning(
                "the local socket cannot be served: %s; the agent runs on without it", error
            )
            return False
        return True

    def _build(self) -> None:
        config = self._config
        store = Store(
            run_dir=config.run_dir,
            state_dir=config.state_dir,
            clock=self._clock,
            identity=identify(self._machine, config.node),
        )
        try:
            state = store.load(boot_id=self._boot_id, new_epoch=self._new_id)
        except UnreleasedState as error:
            raise CannotStart(str(error)) from error
        #: By check: the parts that the latest change of the configuration names no longer.
        self._unnamed = unnamed(state.named, config)
        state.named = named(config)
        self._state = state
        self._sources = factory.sources(config, self._machine, state.gpus, state.cliques)
        factory.restore_driver_log(self._sources.driver_log, state.latch)
        self._sources.fabric.on_change(self._renew_uplink)
        self._sources.driver.on_change(self._renew_uplink)
        self._recorder = EvidenceRecorder(
            state,
            store=store,
            copy=DiskBackup(config.run_dir / NAME, config.state_dir),
            gpus=self._sources.gpus,
            fabric=self._sources.fabric,
            clock=self._clock,
            wake=self._wake,
        )
        self._check_set = CheckSet(self._sources)
        self._check_set.follow(config)
        state.latch.keep_checks({*self._own_checks(), *self._check_set.names})
        self._end_parts(self._check_set.off)
        self._scheduler = Scheduler(
            self._check_set.scheduled,
            clock=self._clock,
            random=self._random,
            deliver=self._reported,
            known=state.latch.known,
            stuck=stuck,
        )
        self._feed = KernelFeed(
            self._make_reader,
            self._check_set.log_checks,
            cursor=None if state.kernel_seq is None else Cursor(self._boot_id, state.kernel_seq),
            deliver=self._recorder.take_log,
        )
        self._commands = Commands(
            recorder=self._recorder,
            scheduler=self._scheduler,
            nvml=self._sources.nvml,
            peers=self._sources.peers,
            gpu_use=self._gpu_use,
            measurements=self._measured,
        )
        self._repairs: RepairExecutor | None = None
        self._orders: OrderGateway
        if config.repair.allow and config.uplink.address:
            self._build_repairs()
        if config.uplink.address:
            self._build_uplink()

    def _build_repairs(self) -> None:
        # Imported here, so that an agent that obeys no order does not carry the modules.
        from nodeagent.repair.executor import Driver, RepairExecutor
        from nodeagent.repair.wire import OrderGateway

        nvml = self._sources.nvml
        self._repairs = RepairExecutor(
            self._config,
            machine=self._machine,
            boot_id=self._boot_id,
            driver=Driver(nvml.sample, self._commands.quiesce, self._commands.quiesced_for),
            gpus=self._recorder.gpus,
            was_reset=self._were_reset,
            latched=self._recorder.summary_of_faults,
            clock=self._clock,
            wall=time.time,
            wake=self._wake,
        )
        self._orders = OrderGateway(self._repairs)
        self._commands.orders = self._orders

    async def _gpu_use(self, pods: bool) -> "GpuUse":  # noqa: FBT001  # a callback of one argument
        """Imported here, as the modules are needed only where a fault or a repair is."""
        from nodeagent.repair.gpu_use import MONITORS, find_gpu_use

        use = find_gpu_use(
            self._machine,
            self._config.repair,
            children_of=os.getpid(),
            leave_out=MONITORS,
            killed=False,
        )
        if not pods:
            return use
        from nodeagent.repair.gpu_pods import find_pod_gpus

        found = await find_pod_gpus(
            self._machine,
            self._sources.gpus,
            self._sources.nvml,
            own_namespace=self._config.repair.insecure_own_pid_namespace,
        )
        return replace(use, pods=found)

    def _were_reset(self, gpus: Sequence[str]) -> None:
        """A reset that was proved ends the faults that a reset ends."""
        self._recorder.record_observations([Clearing(uuid, "gpu-reset") for uuid in gpus])

    def _build_uplink(self) -> None:
        from nodeagent.uplink import codec
        from nodeagent.uplink.uplink import Uplink

        def hello() -> Any:
            latch = self._recorder.latch
            message = codec.hello(
                node=self._config.node,
                boot_id=latch.boot_id,
                epoch=latch.epoch,
                last_acked=latch.last_acked,
                version=VERSION,
                checks=self._infos(),
                traits=self._traits(),
                instance=self._instance,
                boottime=self._clock.boottime(),
            )
            if self._repairs is not None:
                self._orders.hello(message)
            return message

        self._uplink = Uplink(
            address=self._config.uplink.address,
            dialer=self._dialer,
            host=self._commands,
            hello=hello,
            clock=self._clock,
            random=self._random,
            on_beat=self._scheduler.agent_is_awake,
        )

    def _make_reader(self, cursor: Cursor | None) -> KmsgReader:
        return factory.kernel_log(
            self._config,
            self._clock,
            boot_id=self._boot_id,
            after=cursor,
            started_at=self._started_at,
        )

    async def _serve(self, *, claimed: bool) -> None:
        """Answer on this node. If that fails, log it and continue: evidence matters more."""
        answers = LocalRoutes(
            node=self._config.node,
            recorder=self._recorder,
            commands=self._commands,
            scheduler=self._scheduler,
            feed=self._feed,
            infos=self._infos,
            uplink=self._uplink_state,
            config=ConfigState() if self._reloader is None else self._reloader.state,
            clock=self._clock,
        )
        try:
            if claimed:
                await self._local.serve_socket(answers.routes())
        except OSError as error:
            log.warning(
                "the local socket cannot be served: %s; the agent runs on without it", error
            )
        if self._config.metrics_listen:
            address = self._config.metrics_listen
            try:
                token = self._config.metrics_token_file
                await self._local.serve_port(address, answers.public_routes(), token)
            except (OSError, ValueError) as error:
                log.warning("metrics cannot be served at metrics_listen %s: %s", address, error)
        if self._config.ready.launcher_socket is not None:
            await self._serve_launchers(self._config.ready.launcher_socket, answers.readiness)

    async def _serve_launchers(
        self, path: Path, read: Callable[[Sequence[str]], "Readiness"]
    ) -> None:
        # Imported here, so that an agent without the socket does not carry it.
        from nodeagent.local.launcher_socket import LauncherSocket

        launchers = LauncherSocket(path, read)
        try:
            await launchers.start()
        except OSError as error:
            log.warning("ready.launcher_socket %s cannot be served: %s", path, error)
            return
        self._launchers = launchers

    # -- running -------------------------------------------------------------------------------

    def _reconfigure(self, config: Config) -> None:
        """Follow a changed configuration; checks with unchanged settings continue undisturbed."""
        logs.set_level(config.log_level)
        before = self._check_set.names
        self._unnamed = unnamed(self._state.named, config)
        self._state.named = named(config)
        self._config = config
        self._check_set.follow(config)
        self._scheduler.use(self._check_set.scheduled)
        self._feed.use(self._check_set.log_checks)
        self._end_parts(before - self._check_set.names)
        self._renew_uplink()

    def _end_parts(self, checks: Iterable[str]) -> None:
        """``checks`` no longer run. One that a person has turned off ends its failed parts too; one
        of a site's own that is removed does not: its section may be back with the next version.
        """
        latch = self._recorder.latch
        for name in sorted(checks):
            gone = [Gone(name, component) for component in latch.known(name)]
            self._recorder.record_observations(gone)
            off = name in self._check_set.off
            if off and latch.clear_by_operator(component="", code=name):
                self._recorder.changed_by_hand()

    def _renew_uplink(self) -> None:
        """Our Hello has changed."""
        if self._uplink is not None:
            self._uplink.renew()

    def _wake(self) -> bool:
        if self._uplink is None:
            return False
        self._uplink.wake()
        return self._uplink.streaming

    def _reported(self, name: str, report: Report, *, whole: bool) -> None:
        if isinstance(report, Off):
            gone = [Gone(name, component) for component in self._recorder.latch.known(name)]
            self._recorder.record_observations(gone)
        else:
            self._recorder.record_observations(report, run_of=name if whole else "")
        # A person or another program has taken these out, which ends the fault of an absent one.
        latch = self._recorder.latch
        out = self._unnamed.get(name, frozenset())
        ends_all = whole and ends_what_it_leaves_out(name, report)
        for component in latch.known(name):
            is_out = component in out or is_excluded(component, self._config.checks.get(name))
            is_out |= ends_all and bool(component)
            if is_out and latch.clear_by_operator(component=component, code=name):
                self._recorder.changed_by_hand()

    async def _housekeeping(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING)
            if self._recorder.latch.expire(self._clock.boottime()):
                self._recorder.changed_by_hand()

    async def _end(self, parts: "list[asyncio.Task[Any]]") -> None:
        log.info("agent is stopping", extra={"event": "agent.stopping"})
        self._feed.stop()
        if self._uplink is not None:
            self._uplink.stop()
            await asyncio.wait(
                [part for part in parts if part.get_name() == "uplink"], timeout=FAREWELL
            )
        for part in parts:
            part.cancel()
        self._scheduler.cancel()
        closing = asyncio.gather(self._sources.nvml.close(), self._sources.disk.close())
        # With the parts: an order under way restores the persistence mode that it dropped.
        await asyncio.wait({closing, *parts}, timeout=FAREWELL)
        self._recorder.close()
        if self._launchers is not None:
            await self._launchers.close()
        await self._local.close()

    def _measured(self) -> list[Measured]:
        """All measurements of now: those that checks took, and how long each check takes."""
        measurements = self._sources.measurements
        durations = self._scheduler.durations()
        return [
            *measurements.current(self._clock.boottime()),
            *(
                Measured("check-duration", name, measurements.machine, rounded(seconds * 1000))
                for name, seconds in durations.items()
            ),
        ]

    # -- identity ------------------------------------------------------------------------------

    def _infos(self) -> list[CheckInfo]:
        unscheduled = [CheckInfo(name, 0.0) for name in (*self._feed.checks, *self._own_checks())]
        off = [
            CheckInfo(name, self._config.checks[name].interval, why)
            for name, why in self._check_set.off.items()
        ]
        if not self._config.kernel_log.enabled:
            off.append(CheckInfo(kernel_feed.CHECK, 0.0, NO_KERNEL_LOG))
        return [*self._scheduler.infos(), *unscheduled, *off]

    def _own_checks(self) -> tuple[str, ...]:
        """The names under which the agent reports about itself; no check has them."""
        if self._config.kernel_log.enabled:
            return kernel_feed.CHECK, recorder.CHECK
        return (recorder.CHECK,)

    def _traits(self) -> dict[str, str]:
        """The node's properties by which the aggregator searches for a common cause."""
        system = os.uname()
        traits = {"kernel": system.release, "arch": system.machine}
        if self._sources.fabric.cliques:
            traits["fabric_clique"] = self._sources.fabric.cliques
        driver = self._sources.driver.read()
        return {**traits, "driver": driver} if driver else traits

    def _uplink_state(self) -> dict[str, Any]:
        return {"state": "off"} if self._uplink is None else self._uplink.as_json()
