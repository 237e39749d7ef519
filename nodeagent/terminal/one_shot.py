"""One run of every check where no agent runs, without a change to any file.

An agent's state file of this boot is read and left as it is: faults that it latched still count,
and the kernel log is new from where it stopped. Where there is no such file the log is read from
the start of its ring. Records from before this moment are then *historical* (shown, and no
failure), because no state shows whether a fault of last week was dealt with; not where the machine
came up within ``kernel_log.boot_grace``. The level checks see faults that are still present.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from nodeagent import factory, kernel_feed
from nodeagent.checks.base import CheckSpec, Off, Report
from nodeagent.checks.by_start import ChecksByStart
from nodeagent.clock import Clock
from nodeagent.config.checks import off_by_config, specs_of
from nodeagent.config.settings import CheckSettings, Config, ConfigError
from nodeagent.configfile.toml_table import Problem
from nodeagent.evidence.latch import Latch
from nodeagent.evidence.state import State, StateError, Unreleased, restore
from nodeagent.evidence.store import NAME as STATE_FILE
from nodeagent.local.findings import Findings, from_latch
from nodeagent.model import Batch, CheckInfo, Observation, Status
from nodeagent.scheduler import CHECK_ERROR, HUNG
from nodeagent.sources.host import HostRoots, NotMounted
from nodeagent.sources.kmsg import Cursor, KernelLogUnavailable, Record
from nodeagent.sources.machine_identity import identify
from sickbay.json_text import read_json

#: Left over for the output: the checks get the rest of the time.
_MARGIN = 0.5
#: How long children may take to end; one in state D takes longer, and is left behind.
_FAREWELL = 0.2


async def run_once(config: Config, clock: Clock, *, within: float) -> Findings:
    """Every check's result ``within`` that number of seconds; a late one is ``unknown``, reason
    ``hung``.

    A probe that hangs in the kernel outlives this call as a child process: leave by os._exit.
    """
    run = _OneShot(config, clock, until=clock.boottime() + max(within - _MARGIN, within / 2))
    try:
        return await run.findings()
    finally:
        await run.close()


def _boot_id(machine: HostRoots) -> str:
    """Raises ConfigError where ``run`` does not start either."""
    try:
        return machine.boot_id()
    except NotMounted as error:
        expected = f"a {error.name}fs"
        problem = Problem(str(error.path), 0, error.name, str(error), expected)
        raise ConfigError([problem]) from error


class _OneShot:
    def __init__(self, config: Config, clock: Clock, *, until: float) -> None:
        self._config = config
        self._clock = clock
        self._until = until
        self._off: dict[str, str] = {}
        self._notes: list[str] = []
        machine = factory.machine(config, clock)
        left = self._left_behind(machine)
        self._latch, self._kernel_seq = left.latch, left.kernel_seq
        self._sources = factory.sources(config, machine, left.gpus, single_run=True)

    def _left_behind(self, machine: HostRoots) -> State:
        """An agent's state in run_dir, read only; its results are old, so its faults alone."""
        path = self._config.run_dir / STATE_FILE
        boot_id = _boot_id(machine)
        try:
            document = read_json(path.read_bytes())
            identity = identify(machine, self._config.node)
            state = restore(document, boot_id=boot_id, new_epoch=None, identity=identity)
        except FileNotFoundError:
            pass  # no agent ran since the boot, so no fault is latched
        except Unreleased:
            self._notes.append(f"{path} is of an unreleased version; latched faults are not known")
        except (OSError, ValueError, StateError) as error:
            self._notes.append(f"{path} can't be used, so latched faults are not known: {error}")
        else:
            state.latch.components.clear()
            state.latch.expire(self._clock.boottime())
            return state
        return State(Latch(boot_id=boot_id, epoch=""))

    async def findings(self) -> Findings:
        on = []
        for spec in specs_of(self._config):
            off = off_by_config(spec, self._config)
            if off:
                self._off[spec.name] = off
            else:
                on.append(spec)
        await asyncio.gather(*(self.run_checks(spec) for spec in on if spec.interval))
        # After the probes: only NVML knows the UUIDs of the GPUs that the log names by address.
        await self._read_kernel_log([spec for spec in on if not spec.interval])
        return from_latch(
            self._latch,
            self._clock.boottime(),
            node=self._config.node,
            source="probe",
            checks=[
                CheckInfo(spec.name, self._settings(spec).interval, self._off.get(spec.name, ""))
                for spec in specs_of(self._config)
            ],
            notes=self._notes,
        )

    async def close(self) -> None:
        closing = (self._sources.nvml.close(), self._sources.disk.close())
        await asyncio.wait([asyncio.ensure_future(end) for end in closing], timeout=_FAREWELL)

    def _settings(self, spec: CheckSpec) -> CheckSettings:
        return self._config.checks[spec.name]

    async def run_checks(self, spec: CheckSpec) -> None:
        settings = self._settings(spec)
        check: Any = spec.build(self._sources, settings.options)
        allowed = min(settings.deadline, self._until - self._clock.boottime())
        # Not wait_for: it waits for the end of the task that it cancels, which may hang too.
        run: asyncio.Task[Report] = asyncio.ensure_future(check.run_check())
        await asyncio.wait({run}, timeout=max(allowed, 0))
        if not run.done():
            self._unknown(spec.name, HUNG, f"no result in {allowed:.3g} s")
            return
        error = run.exception()
        if error is not None:  # one check's defect must not cost the others' results
            self._unknown(spec.name, CHECK_ERROR, f"{type(error).__name__}: {error}")
            return
        report = run.result()
        if isinstance(report, Off):
            self._off[spec.name] = report.reason
        else:
            self._take(report)

    def _unknown(self, check: str, reason: str, message: str) -> None:
        self._take([Observation(check, "", Status.UNKNOWN, reason, message)])

    def _take(self, batch: Batch) -> None:
        self._latch.apply(batch, self._clock.boottime())

    async def _read_kernel_log(self, specs: Sequence[CheckSpec]) -> None:
        if not specs:
            return
        boot_id = self._latch.boot_id
        reader = factory.kernel_log(
            self._config,
            self._clock,
            boot_id=boot_id,
            after=None if self._kernel_seq is None else Cursor(boot_id, self._kernel_seq),
            started_at=self._clock.boottime(),
        )
        built: dict[str, Any] = {
            spec.name: spec.build(self._sources, self._settings(spec).options) for spec in specs
        }
        checks = ChecksByStart(built)
        records = 0
        try:
            reader.open()
            while not reader.caught_up and self._clock.boottime() < self._until:
                for item in reader.read_batch():
                    records += isinstance(item, Record)
                    self._take(kernel_feed.read(checks, item))
                await asyncio.sleep(0)
            self._take([kernel_feed.readable(records)])
        except KernelLogUnavailable as error:
            self._take([kernel_feed.unavailable(error)])
        finally:
            reader.close()
