"""Puts the aggregator together and runs it until it is told to stop.

Data flows one way: ingest, health, policy, quarantine, cluster; page, alerts and history hear of
what happened through the ledger.
"""

import asyncio
import logging
import random
import signal
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any

from aggregator import garbage
from aggregator.alerts.alerts import Address, Alerts
from aggregator.config.settings import Config
from aggregator.history.doors import Credentials
from aggregator.history.history import History
from aggregator.history.lemons import LemonWatch
from aggregator.history.recorder import Recorder
from aggregator.hooks.build import hook_rules
from aggregator.ingest.keys import KeyStore
from aggregator.ingest.server import IngestServer, build, open_keys
from aggregator.joining import Joining
from aggregator.kube.cluster import KubeCluster
from aggregator.local.cluster import Commands, LocalCluster
from aggregator.policy.lemons import Bounds
from aggregator.policy.shipped import odd, read_policy
from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.cluster import ClusterError
from aggregator.quarantine.controller import NO_NEWS_YET, Controller
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.blame import CommonLimits
from aggregator.quarantine.decide.drainplan import DrainRules
from aggregator.quarantine.fleet import Fleet
from aggregator.quarantine.ledger import Ledger, Transition
from aggregator.quarantine.settings import Settings
from aggregator.quarantine.timekeeper import watch
from aggregator.state import make_folders
from aggregator.together import together
from aggregator.web.certificate import Certificate
from aggregator.web.feed import Feed
from aggregator.web.server import Web
from aggregator.web.stats import Stats

log = logging.getLogger("sickbay.app")

_CONNECT_FIRST = 0.5
_CONNECT_MOST = 5.0
_UNUSABLE = "the cluster can't be used"
#: People are told when nothing has happened for so long (seconds), and after so many at the latest.
_TOLD_AFTER = 0.05
_TOLD_WITHIN = 2.0
#: In a storm so many at a time, a few milliseconds' work, and then a pause (seconds).
_TOLD_AT_ONCE = 16
_TOLD_EVERY = 0.005


class Ledgers:
    """One ledger made of several: the log, history, alerts, the page.

    They are told a moment later, in order: what acts on a fault goes first, for each millisecond
    counts there. While much happens that is after `_TOLD_WITHIN`. `flush` tells what is left.
    """

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        self._ledgers = ledgers
        #: Each with the moment at which it came, by the loop's clock.
        self._untold: deque[tuple[float, Transition]] = deque()

    def note(self, transition: Transition) -> None:
        loop = asyncio.get_running_loop()
        if not self._untold:
            loop.call_later(_TOLD_AFTER, self._tell_some)
        self._untold.append((loop.time(), transition))

    def flush(self) -> None:
        while self._untold:
            self._tell(self._untold.popleft()[1])

    def _tell_some(self) -> None:
        """Tell what is due, and look again while anything is left."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        quiet = bool(self._untold) and now - self._untold[-1][0] >= _TOLD_AFTER
        try:
            for _ in range(_TOLD_AT_ONCE):
                if not self._untold or not (quiet or now - self._untold[0][0] >= _TOLD_WITHIN):
                    break
                self._tell(self._untold.popleft()[1])
        finally:
            if self._untold:
                due = self._untold[0][0] + _TOLD_WITHIN
                calm = self._untold[-1][0] + _TOLD_AFTER
                loop.call_later(max(_TOLD_EVERY, min(due, calm) - now), self._tell_some)

    def _tell(self, transition: Transition) -> None:
        log.info(
            transition.summary,
            extra={"kind": transition.kind.value, "incident": transition.incident},
        )
        for ledger in self._ledgers:
            ledger.note(transition)


def _settings(config: Config) -> Settings:
    limits, drain = config.limits, config.drain
    return Settings(
        mode=config.mode,
        limits=Limits(
            concurrent=limits.concurrent,
            concurrent_percent=limits.concurrent_percent,
            pool_label=limits.pool_label,
            pool_percent=limits.pool_percent,
            quorum_percent=limits.quorum_percent,
            new_per_window=limits.new_per_window,
            new_per_window_percent=limits.new_per_window_percent,
            window=limits.window,
            cooldown=limits.cooldown,
            after_upgrade=limits.after_upgrade,
        ),
        common=CommonLimits(
            percent=limits.common_cause_percent,
            nodes=limits.common_cause_nodes,
            window=limits.window,
            domain_percent=limits.domain_percent,
            domain_labels=limits.domain_labels,
            clique_label=limits.clique_label,
        ),
        drain=DrainRules(
            delete_empty_dir_data=drain.delete_empty_dir_data,
            evict_unmanaged=drain.evict_unmanaged,
            evict_unwilling=drain.evict_unwilling,
            protected=drain.protected_labels(),
            namespaces=tuple(one.rule() for one in drain.namespaces),
            stuck_after=drain.stuck_after,
            gangs=drain.gangs,
            gang_pods=drain.gang_pods,
        ),
        drain_deadline=drain.deadline,
        evictions_at_once=limits.evictions_at_once,
        silent_after=config.agents.silent_after,
        silent_drain_after=limits.silent_drain_after,
        off_balancers=drain.off_load_balancers,
        hooks=hook_rules(drain, wall=time.time),
        silent_action="cordon" if config.agents.silent_failing == "cordon" else "observe",
    )


def _cluster(config: Config) -> KubeCluster | LocalCluster:
    where = config.cluster
    if where.kind == "kubernetes":
        return KubeCluster(
            kubeconfig=str(where.kubeconfig or ""),
            namespace=where.namespace,
            qps=where.requests_per_second,
            burst=where.burst,
            shards=config.shards.on,
        )
    commands = where.local.commands
    return LocalCluster(
        where.local.database,
        commands=Commands(
            commands.cordon, commands.drain, commands.release, where.local.command_timeout
        ),
        wall=time.time,
    )


def _alerts(config: Config, clocks: Clocks, rng: random.Random) -> Alerts:
    webhooks = [
        Address(hook.url, hook.secret_file, hook.kinds, hook.timeout)
        for hook in config.alerts.webhooks
    ]
    return Alerts(config.alerts.outbox, webhooks, clocks=clocks, rng=rng)


def _history(config: Config, clocks: Clocks, rng: random.Random, replica: str) -> History:
    where = config.history
    return History(
        where.database,
        keep=where.keep,
        most_rows=where.most_rows,
        clocks=clocks,
        rng=rng,
        credentials=Credentials(where.password_file, where.ca_file, where.insecure_plaintext),
        replica=replica,
    )


async def _connect(cluster: KubeCluster | LocalCluster, fleet: Fleet, rng: random.Random) -> None:
    """Try until the cluster lets us in, saying plainly what it answers meanwhile."""
    wait = _CONNECT_FIRST
    while True:
        try:
            await cluster.start()
        except ClusterError as error:
            _not_yet(fleet, _UNUSABLE, str(error))
            await asyncio.sleep(max(rng.uniform(0, wait), error.retry_after or 0))
            wait = min(_CONNECT_MOST, wait * 2)
        else:
            return


async def _until_alone(joining: Joining, fleet: Fleet) -> None:
    """Where this replica was told of no others: wait until none is at work, and say so."""
    await joining.until_alone(
        waits=lambda why: _not_yet(fleet, "it does not begin yet", why, in_company=True),
        away=lambda why: _not_yet(fleet, _UNUSABLE, why),
    )
    if fleet.in_company:
        fleet.in_company, fleet.view_lost = False, NO_NEWS_YET


def _not_yet(fleet: Fleet, what: str, error: str, *, in_company: bool = False) -> None:
    """Said once, however often the same is found."""
    if fleet.view_lost != error:
        log.warning(what, extra={"error": error})
    fleet.view_lost, fleet.in_company = error, in_company


async def run(config: Config) -> None:
    """Run until SIGTERM or SIGINT.

    Raises what keeps it from starting: `ConfigError` (the policy), `SeatError`, `StateError`,
    `ListenError`, `TlsError`, `TrustError`, `WebListenError`.
    """
    policy = read_policy(config.policy.file)
    for problem in odd(config.policy.file, policy) if config.policy.file is not None else ():
        where = f"{config.policy.file}:{problem.line}"
        log.warning("a rule is odd", extra={"at": where, "reason": problem.text})
    make_folders(config)
    rng = random.Random()  # noqa: S311 - jitter, no secret
    fleet = Fleet(how=config.cluster.how)
    clocks = Clocks(time.monotonic, time.time)
    cluster = _cluster(config)
    joining = Joining(config, cluster, policy_hash=policy.hash, version=version("sickbay"))
    feed = Feed(epoch=rng.getrandbits(32))
    history = _history(config, clocks, rng, joining.name)
    alerts = _alerts(config, clocks, rng)
    ledger = Ledgers([feed, history, alerts])
    controller = Controller(
        cluster=cluster,
        policy=policy,
        settings=_settings(config),
        fleet=fleet,
        ledger=ledger,
        clocks=clocks,
        rng=rng,
        witness=Recorder(history.record),
        shards=joining.shards,
    )
    keys = _keys(config, cluster)
    ingest = build(
        config,
        controller,
        name=joining.name,
        keys=keys,
        is_current=controller.is_current,
        cluster_away=lambda: bool(fleet.view_lost),
        among_others=lambda: joining.shards.council.among_others,
        now=time.monotonic,
        wall=time.time,
    )
    joining.serve(
        controller.conferring, ingest, keys, cluster_away=lambda: bool(fleet.view_lost), rng=rng
    )
    web = Web(
        fleet=fleet,
        history=history,
        feed=feed,
        stats=Stats(
            ingest=ingest.stats,
            api=cluster.counters if isinstance(cluster, KubeCluster) else None,
            outbox=alerts.depth,
            alert_trouble=lambda: alerts.problem,
            history=history,
        ),
        clocks=clocks,
        version=version("sickbay"),
        ready=lambda: _not_ready(fleet, controller, ingest),
        shards=joining.shards,
        ca_file=config.shards.ca_file,
        history_shared=not config.history.is_file,
    )

    lemons = LemonWatch(
        stories=history,
        fleet=fleet,
        ledger=ledger,
        clocks=clocks,
        bounds=Bounds(
            quarantines=config.lemons.quarantines,
            codes=config.lemons.codes,
            days=config.lemons.days,
            returns=config.lemons.returns,
            signals=config.lemons.signals,
        ),
        say=controller.say,
        # Each file of history is its own replica's alone to read.
        leads=lambda: config.history.is_file or joining.shards.leads(),
    )

    async def work() -> None:
        await _connect(cluster, fleet, rng)
        await _until_alone(joining, fleet)
        log.info("connected", extra={"cluster": cluster.kind})
        await together(controller=controller.run(), joining=joining.run())

    async with AsyncExitStack() as ending:
        ending.push_async_callback(cluster.close)
        _until_the_end(watch(clocks.doubt, fleet.doubt_clock), "clock", ending)
        history.start()
        ending.push_async_callback(history.close)
        alerts.start()
        ending.push_async_callback(alerts.close)
        ending.callback(ledger.flush)
        await _serve_page(config, web, ending)
        await ingest.start()
        ending.push_async_callback(ingest.stop)
        log.info(
            "started",
            extra={"version": version("sickbay"), "mode": config.mode.value, "policy": policy.hash},
        )
        _until_the_end(lemons.run(), "lemons", ending)
        _until_the_end(garbage.search_when_quiet(), "garbage", ending)
        working = _until_the_end(work(), "controller", ending)
        await asyncio.wait({working, _told_to_stop()}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        await joining.leave(lambda: ingest.stats.attached)
    log.info("stopped")


def _keys(config: Config, cluster: KubeCluster | LocalCluster) -> KeyStore | None:
    """What verifies the tokens of agents, and of other replicas; None where there are none."""
    wanted = config.identity.kind == "token" or config.shards.on
    if not wanted or not isinstance(cluster, KubeCluster):
        return None
    return open_keys(config, cluster.signing_keys, now=time.monotonic)


async def _serve_page(config: Config, web: Web, ending: AsyncExitStack) -> None:
    certificate = None
    if config.listen.tls is not None:
        tls = config.listen.tls
        certificate = Certificate(tls.cert_file, tls.key_file, wall=time.time)
        _until_the_end(certificate.follow(), "page certificate", ending)
    address = await web.start(
        config.listen.web, certificate.context if certificate is not None else None
    )
    ending.push_async_callback(web.close)
    log.info("the page is served", extra={"address": address, "tls": certificate is not None})


def _until_the_end(
    work: Coroutine[Any, Any, None], name: str, ending: AsyncExitStack
) -> "asyncio.Task[None]":
    task = asyncio.create_task(work, name=name)

    async def end() -> None:
        task.cancel()
        await asyncio.wait({task})

    ending.push_async_callback(end)
    return task


def _not_ready(fleet: Fleet, controller: Controller, ingest: IngestServer) -> list[str]:
    """Why this process can't do its work now, in words."""
    trouble = ingest.certificate_trouble()
    alone = f"agents and other replicas turn away: {trouble}" if trouble else ""
    return [reason for reason in (fleet.view_lost, controller.record_problem, alone) if reason]


def _told_to_stop() -> asyncio.Task[bool]:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    # To the agent it means "read the file again"; here it must not end the process.
    loop.add_signal_handler(
        signal.SIGHUP, lambda: log.warning("SIGHUP: configuration and policy are read at a start")
    )
    return asyncio.create_task(told.wait(), name="stop")
