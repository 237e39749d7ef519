"""EvictionRequest next to the other notices of ``drain.notice``. Virtual time."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.objects import ClusterObject, ObjectKind, ObjectResource
from aggregator.cluster.port import (
    ClusterError,
    Conflict,
    Guard,
    GuardRefused,
    GuardUnreadable,
    NotFound,
    NoticeState,
    Pod,
    Refused,
    Unreachable,
)
from aggregator.workloads.eviction_progress import EVICTOR
from aggregator.workloads.eviction_requests import (
    KIND,
    REQUESTER,
    SETTLED,
    TAKEN_WITHIN,
    EvictionRequests,
    may_be_requested,
)
from tests.aggregator.test_notices import fall_ill, world_of
from tests.support.drains import GANG
from tests.support.memory_cluster import World
from tests.support.notices import WITHIN, started
from tests.support.replica import Replica
from tests.support.virtual_replica import Running
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)


@dataclass
class Objects:
    """The part of an `ObjectStore` that requests need. ``acts``: a controller observes them.
    ``responders``: the states in the Eviction of each, or None where Evictions can't be read.
    """

    served: bool = True
    acts: bool = True
    away: bool = False
    forbidden: bool = False
    refuses: int = 0
    lost_places: int = 0
    lost_by: ClusterError = field(default_factory=lambda: GuardRefused("late"))
    responders: dict[str, str] | None = None
    there: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    requests: int = 0

    async def resource(self, kind: ObjectKind) -> ObjectResource:
        if self.away:
            raise Unreachable("the API server is away")
        if not self.served:
            raise NotFound(f"the cluster has no kind {kind}")
        return ObjectResource(kind.api_version, kind.kind, f"{kind.kind}s".lower(), namespaced=True)

    async def create(
        self, _: ObjectResource, namespace: str, content: Mapping[str, Any], *, guard: Guard
    ) -> ClusterObject:
        await guard()
        if self.lost_places:
            self.lost_places -= 1
            raise self.lost_by
        if self.forbidden:
            raise Refused("evictionrequests.lifecycle.k8s.io is forbidden")
        key = f"{namespace}/{content['metadata']['name']}"
        if key in self.there:
            raise Conflict("it is there already")
        status = {"observedGeneration": 1} if self.acts else {}
        self.there[key] = {**content, "status": status}
        self.made.append(key)
        return self._object(key)

    async def get(self, _: ObjectResource, namespace: str, name: str) -> ClusterObject | None:
        self.requests += 1
        key = f"{namespace}/{name}"
        return self._object(key) if key in self.there else None

    async def select(
        self, _: ObjectResource, namespace: str, labels: Mapping[str, str]
    ) -> list[ClusterObject]:
        assert labels == {REQUESTER: "requester"}
        if self.responders is None:
            raise Refused("evictions.lifecycle.k8s.io is forbidden")
        states = [{"name": name, "state": state} for name, state in self.responders.items()]
        failed = {"type": "Failed", "status": "True", "reason": "CanceledDueToNoRequesters"}
        earlier = {"targetResponders": [{**states[0], "state": "Canceled"}]} if states else {}
        found = [
            {"status": {"targetResponders": states, "responders": [{"name": "a.b/c"}]}},
            {"status": {**earlier, "conditions": [failed]}},
        ]
        specs = [one["spec"] for key, one in self.there.items() if key.startswith(namespace)]
        return [
            ClusterObject("e", namespace, "u", "1", False, {}, {**one, "spec": spec})
            for spec in specs
            for one in found
        ]

    async def delete(
        self, _: ObjectResource, found: ClusterObject, *, as_read: bool, guard: Guard
    ) -> None:
        assert as_read
        await guard()
        if self.refuses:
            self.refuses -= 1
            raise Refused("an admission policy refuses it")
        key = f"{found.namespace}/{found.name}"
        self.deleted.append(key)
        del self.there[key]

    def _object(self, key: str) -> ClusterObject:
        namespace, name = key.split("/")
        return ClusterObject(name, namespace, "u", "1", False, {}, self.there[key])


def responding(world: World, name: str = "a", **changes: Any) -> Pod:
    """A pod that names responders, in a namespace in which no annotation is permitted."""
    return world.add_pod("n1", name, has_responders=True, **changes)


def begin(world: World, objects: Objects) -> Replica:
    world.without_notes |= {"jobs"}
    requests = EvictionRequests(
        objects,  # type: ignore[arg-type]  # the methods that it calls
        lambda: list(world.quarantines.values()),
        Clocks(Running(), Running()),
        lambda: True,
    )
    return started(world, requests=requests)


def ended(world: World) -> tuple[NoticeState, str]:
    [notice] = world.quarantines["n1"].status.notices
    return notice.state, notice.message


async def test_a_request_is_made_once_and_followed_to_the_deadline() -> None:
    world, objects = world_of("n1"), Objects()
    pod = responding(world)
    replica = begin(world, objects)
    await fall_ill(replica, "n1")
    await until(lambda: objects.made, within=60)
    [content] = objects.there.values()
    assert content["spec"] == {
        "target": {"pod": {"name": pod.name, "uid": pod.uid}},
        "requester": REQUESTER,
        "intent": "Eviction",
    }
    [owner] = content["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Quarantine", world.quarantines["n1"].uid)
    await asyncio.sleep(WITHIN / 2)
    assert (world.evicted, ended(world)[0]) == ([], NoticeState.SENT)
    await replica.stop()
    replica = begin(world, objects)  # the next controller takes the same one up
    await fall_ill(replica, "n1")
    await asyncio.sleep(WITHIN / 3)
    assert (world.evicted, len(objects.made)) == ([], 1)
    await until(lambda: world.evicted == ["uid-a"], within=WITHIN)
    assert ended(world) == (NoticeState.OVER, "no answer by the deadline")
    await until(lambda: objects.deleted == objects.made, within=60)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"acts": False}, "nothing acted on its EvictionRequest within 10 s"),
        ({"served": False}, f"the cluster does not serve {KIND}"),
        ({"away": True}, "EvictionRequest: the API server is away"),
        ({"forbidden": True}, "evictionrequests.lifecycle.k8s.io is forbidden"),
    ],
)
async def test_where_nobody_acts_on_it_the_drain_goes_the_ordinary_way_in_seconds(
    how: dict[str, Any], why: str
) -> None:
    """Kubernetes 1.37.2 serves the kind and has no controller."""
    world, objects = world_of("n1"), Objects(**how)
    responding(world)
    replica = begin(world, objects)
    await fall_ill(replica, "n1")
    began = asyncio.get_running_loop().time()
    await until(lambda: world.evicted == ["uid-a"], within=120)
    assert asyncio.get_running_loop().time() - began < TAKEN_WITHIN + 60
    state, text = ended(world)
    assert state is NoticeState.OVER
    assert text.endswith(why)
    # A controller that comes later evicts nothing in our name.
    await until(lambda: not objects.there, within=60)
    await asyncio.sleep(60)
    assert objects.acts is False or objects.requests == 0  # none was made


@pytest.mark.parametrize("how", ["failed", "deleted"])
async def test_a_request_that_failed_or_was_deleted_begins_the_eviction(how: str) -> None:
    world, objects = world_of("n1"), Objects()
    responding(world)
    replica = begin(world, objects)
    await fall_ill(replica, "n1")
    await until(lambda: objects.made, within=60)
    [key] = objects.made
    if how == "failed":
        failed = {"type": "Failed", "status": "True", "message": "no responder"}
        objects.there[key] = {**objects.there[key], "status": {"conditions": [failed]}}
    else:
        del objects.there[key]
    await until(lambda: world.evicted == ["uid-a"], within=WITHIN / 2)
    assert how in ended(world)[1]


async def test_its_failure_ends_no_notice_that_the_annotation_has_delivered() -> None:
    world, objects = world_of("n1"), Objects(acts=False)
    responding(world, "annotated", namespace="elsewhere")
    replica = begin(world, objects)
    await fall_ill(replica, "n1")
    await until(lambda: objects.deleted, within=60)
    await asyncio.sleep(WITHIN / 2)
    assert world.evicted == []
    await until(lambda: world.evicted == ["uid-annotated"], within=WITHIN)


async def test_a_drain_that_is_stopped_withdraws_its_request_and_makes_it_again() -> None:
    world, objects = world_of("n1"), Objects(refuses=3)
    responding(world)
    replica = begin(world, objects)
    await fall_ill(replica, "n1")
    await until(lambda: objects.made, within=60)
    world.person_stops("drill")
    await until(lambda: objects.deleted == objects.made, within=240)  # past the refusals
    assert world.evicted == []
    world.person_stops("")
    await until(lambda: objects.there, within=120)
    assert (len(objects.made), world.evicted) == (2, [])


@pytest.mark.parametrize(
    "error",
    [
        GuardRefused("the Lease was not renewed in time"),
        GuardUnreadable("the stop switch can't be read"),
    ],
)
async def test_a_request_that_its_guard_refuses_is_made_in_a_later_round(
    error: ClusterError,
) -> None:
    """A place that is lost for a moment is no reason to evict the pod without its notice."""
    world, objects = world_of("n1"), Objects(lost_places=2, lost_by=error)
    responding(world)
    replica = begin(world, objects)
    await fall_ill(replica, "n1")
    await until(lambda: objects.made, within=60)
    assert (objects.lost_places, world.evicted) == (0, [])
    assert ended(world)[0] is NoticeState.SENT


@pytest.mark.parametrize("how", ["stopped", "gone", "answered"])
async def test_the_next_controller_withdraws_a_request_that_no_open_notice_needs(how: str) -> None:
    world, objects = world_of("n1"), Objects()
    responding(world)
    first = begin(world, objects)
    await fall_ill(first, "n1")
    await until(lambda: objects.made, within=60)
    await first.stop()
    [key] = objects.made
    other = {**objects.there[key], "spec": {**objects.there[key]["spec"], "requester": "a/b"}}
    objects.there["jobs/another"] = other
    quarantine = world.quarantines["n1"]
    [notice] = quarantine.status.notices
    if how == "stopped":
        world.person_stops("drill")
    elif how == "answered":
        over = replace(notice, state=NoticeState.READY)
        status = replace(quarantine.status, notices=(over,))
        world.quarantines["n1"] = replace(quarantine, status=status)
    else:
        world.quarantines["n1"] = replace(quarantine, deleting=True)
    second = begin(world, objects)
    if how == "stopped":
        await asyncio.sleep(SETTLED - 5)
        assert objects.deleted == []  # its drain may go on
    await until(lambda: objects.deleted == [key], within=60)
    assert list(objects.there) == ["jobs/another"]
    before = objects.requests
    await asyncio.sleep(3 * SETTLED)
    assert objects.requests <= before + 1
    await second.stop()


OWN = "example.com/saver"


@pytest.mark.parametrize(
    ("states", "state", "message"),
    [
        ({OWN: "Completed", EVICTOR: "Active"}, NoticeState.READY, f"have completed ({OWN})"),
        ({OWN: "Interrupted", EVICTOR: "Active"}, NoticeState.OVER, f"{OWN} is Interrupted"),
        ({OWN: "Inactive", EVICTOR: "Inactive"}, NoticeState.OVER, "nothing acted on its"),
        ({}, NoticeState.OVER, "nothing acted on its"),
    ],
)
async def test_an_active_responder_has_time_and_what_it_has_come_to_begins_the_eviction(
    states: dict[str, str], state: NoticeState, message: str
) -> None:
    world, objects = world_of("n1"), Objects(responders={OWN: "Active", EVICTOR: "Inactive"})
    responding(world)
    replica = begin(world, objects)
    await fall_ill(replica, "n1")
    await asyncio.sleep(WITHIN / 2)
    assert world.evicted == []
    objects.responders = states
    await until(lambda: world.evicted == ["uid-a"], within=120)
    assert ended(world)[0] is state
    assert message in ended(world)[1]
    await until(lambda: objects.deleted == objects.made, within=60)


async def test_a_request_of_another_pod_by_this_name_is_neither_followed_nor_deleted() -> None:
    world, objects = world_of("n1"), Objects()
    responding(world)

    class Foreign(Objects):
        async def create(self, *given: Any, **more: Any) -> ClusterObject:
            raise Conflict("another's")

        async def get(self, _: ObjectResource, namespace: str, name: str) -> ClusterObject:
            foreign = {"spec": {"requester": "a/b", "target": {"pod": {"uid": "uid-a"}}}}
            return ClusterObject(name, namespace, "u", "1", False, {}, foreign)

    objects = Foreign()
    replica = begin(world, objects)
    await fall_ill(replica, "n1")
    await until(lambda: world.evicted == ["uid-a"], within=120)
    assert ended(world)[1].endswith(f"another {KIND.kind} has its name")
    await asyncio.sleep(60)
    assert objects.deleted == []


async def test_only_a_pod_of_no_gang_that_names_responders_gets_one() -> None:
    pod = responding(world_of("n1"))
    assert may_be_requested((pod,), of_gang=False)
    assert not may_be_requested((pod,), of_gang=True)
    assert not may_be_requested((pod, pod), of_gang=False)
    assert not may_be_requested((replace(pod, has_responders=False),), of_gang=False)
    assert not may_be_requested((replace(pod, group="g"),), of_gang=False)

    world, objects = world_of("n1"), Objects()
    world.add_pod("n1", "plain")
    responding(world, "rank", labels=GANG)
    replica = begin(world, objects)
    await fall_ill(replica, "n1")
    await until(lambda: len(world.evicted) == 2, within=120)
    assert objects.made == []
