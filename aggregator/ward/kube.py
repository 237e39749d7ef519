"""Acting through the Kubernetes API, with the person's own kubeconfig and rights."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import msgspec

from aggregator.kube import paths
from aggregator.kube.access import Sources
from aggregator.kube.limiter import Lane, Limiter
from aggregator.kube.objects import RECORD_NAME, Bare, RecordObject, decode, to_record
from aggregator.kube.quarantines import GROUP, VERSION, decode_quarantine, encode_spec
from aggregator.kube.transport import MERGE_PATCH, METADATA, Transport, encode
from aggregator.quarantine.cluster import (
    ClusterError,
    Conflict,
    NotFound,
    QuarantineSpec,
    Refused,
)
from aggregator.ward import acting
from aggregator.ward.errors import UsageError, WardError

_DEADLINE = 20.0


class KubeHands:
    """`Hands` on the cluster that ``sources`` lead to; the record is in ``namespace``.

    ``how`` are the options that lead there once more, for people; it begins with a space. Raises
    UsageError where they lead nowhere.
    """

    def __init__(self, sources: Sources, namespace: str, *, how: str) -> None:
        if not sources.in_cluster and not sources.has_file:
            raise UsageError(
                f"there is no kubeconfig at {sources.path}, and this is no pod with a service "
                "account; expected --kubeconfig FILE, or --local DATABASE without Kubernetes"
            )
        self._sources = sources
        self._namespace = namespace
        self._how = how

    def stop(self, reason: str) -> str:
        async def work(api: Transport) -> str:
            before = await self._stop(api)
            if before is None:
                await self._make_record(api, reason)
                return acting.stopped_where_nothing_was(self._namespace, reason, how=self._how)
            await self._set_stop(api, reason)
            return acting.stopped(before, reason, how=self._how)

        return self._do(work)

    def resume(self) -> str:
        async def work(api: Transport) -> str:
            before = await self._stop(api)
            if before:
                await self._set_stop(api, None)
            return acting.resumed(before or "")

        return self._do(work)

    def release(self, node: str) -> str:
        async def work(api: Transport) -> str:
            where = paths.quarantine(node)
            try:
                body = await api.request("GET", where, kind="quarantines", lane=Lane.RELEASE)
                found = decode_quarantine(body)
                fence = {"preconditions": {"uid": found.uid}}
                await api.request(
                    "DELETE", where, kind="quarantines", lane=Lane.RELEASE, body=encode(fence)
                )
            except NotFound as error:
                raise WardError(acting.none_such(node)) from error
            return acting.released(node, found.spec)

        return self._do(work)

    def quarantine(self, node: str, spec: QuarantineSpec) -> str:
        async def work(api: Transport) -> str:
            await _must_be_a_node(api, node)
            stop = await self._stop_if_seen(api)
            told = msgspec.to_builtins(encode_spec(spec))
            body = {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": "Quarantine",
                "metadata": {"name": node},
                "spec": {name: value for name, value in told.items() if value is not None},
            }
            try:
                await api.request(
                    "POST",
                    paths.QUARANTINES,
                    kind="quarantines",
                    lane=Lane.TAINT,
                    body=encode(body),
                )
            except Conflict as error:
                known = await api.request(
                    "GET", paths.quarantine(node), kind="quarantines", lane=Lane.TAINT
                )
                change = f"kubectl edit quarantine {node}, or release it first"
                text = acting.already(node, decode_quarantine(known).spec, change=change)
                raise WardError(text) from error
            except NotFound as error:
                raise WardError(
                    f"this cluster knows no quarantines: {error}\n"
                    "  Is sickbay installed? kubectl apply --server-side -f crd.yaml"
                ) from error
            return acting.quarantined(node, spec, stop=stop, how=self._how)

        return self._do(work)

    def annotate(self, node: str, wish: acting.Wish) -> str:
        async def work(api: Transport) -> str:
            where = paths.node(node)
            try:
                body = await api.request(
                    "GET", where, kind="nodes", lane=Lane.RECORD, accept=METADATA
                )
                meta = decode(body, Bare).metadata
                if wish.idle and not wish.changes(meta.annotations or {}):
                    return wish.idle
                await api.request(
                    "PATCH",
                    where,
                    kind="nodes",
                    lane=Lane.RECORD,
                    body=encode({"metadata": {"uid": meta.uid, "annotations": wish.annotations}}),
                    content_type=MERGE_PATCH,
                )
            except NotFound as error:
                raise WardError(f'there is no node "{node}"\n  See: kubectl get nodes') from error
            return wish.said

        return self._do(work)

    # -- the stop switch -----------------------------------------------------------------

    async def _stop(self, api: Transport) -> str | None:
        """Why it is stopped, "" when it is not, None where there is no record yet."""
        try:
            body = await api.request(
                "GET", paths.record(self._namespace), kind="configmaps", lane=Lane.RECORD
            )
        except NotFound:
            return None
        return to_record(decode(body, RecordObject)).stop

    async def _stop_if_seen(self, api: Transport) -> str | None:
        """The same, for who may not see it too: None."""
        try:
            return await self._stop(api) or ""
        except Refused as error:
            if error.status != 403:
                raise
            return None

    async def _set_stop(self, api: Transport, reason: str | None) -> None:
        await api.request(
            "PATCH",
            paths.record(self._namespace),
            kind="configmaps",
            lane=Lane.RECORD,
            body=encode({"data": {"stop": reason}}),
            content_type=MERGE_PATCH,
        )

    async def _make_record(self, api: Transport, reason: str) -> None:
        where = paths.config_maps(self._namespace)
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": RECORD_NAME},
            "data": {"stop": reason},
        }
        try:
            await api.request("POST", where, kind="configmaps", lane=Lane.RECORD, body=encode(body))
        except Conflict:
            await self._set_stop(api, reason)  # an aggregator made it in between
        except NotFound as error:
            raise WardError(
                f"there is no namespace {self._namespace}\n  Where is sickbay? Set --namespace"
            ) from error

    def _do(self, work: Callable[[Transport], Awaitable[str]]) -> str:
        async def run() -> str:
            limiter = Limiter(qps=10, burst=20, clock=time.monotonic)
            rng = random.Random()  # noqa: S311 - jitter, no secret
            api = Transport(
                self._sources, limiter, clock=time.monotonic, rng=rng, deadline=_DEADLINE
            )
            try:
                await self._open(api)
                return await work(api)
            finally:
                await api.close()

        try:
            return asyncio.run(run())
        except ClusterError as error:
            raise WardError(str(error)) from error

    @staticmethod
    async def _open(api: Transport) -> None:
        try:
            await api.open()
        except Refused as error:  # of what the command line or the environment names
            raise UsageError(
                f"{error}\n  Another one: --kubeconfig FILE, --context NAME"
            ) from error


async def _must_be_a_node(api: Transport, node: str) -> None:
    """A typo must not become a quarantine of nothing. Who may not read nodes is believed."""
    try:
        body = await api.request(
            "GET", paths.node(node), kind="nodes", lane=Lane.RECORD, accept=METADATA
        )
        decode(body, Bare)
    except NotFound as error:
        raise WardError(f'there is no node "{node}"\n  See: kubectl get nodes') from error
    except Refused as error:
        if error.status != 403:
            raise
