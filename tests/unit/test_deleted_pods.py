"""Tokens of deleted pods are refused; silence, doubt and a strange answer change nothing."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.agent_pods import PodEvent, PodGone, PodSeen, PodsListed
from aggregator.ingest.deleted_pods import FEW, MOST_KEPT, SHARE, UNSEEN_FOR, WINDOW, DeletedPods


class Replica:
    """A `DeletedPods` with its clock, and the pods whose streams are attached."""

    def __init__(self, attached: Iterable[str] = ()) -> None:
        self.now = 1_000.0
        self.attached: set[str] = set()
        self.ended: list[str] = []
        self.pods = DeletedPods(now=lambda: self.now)
        for uid in attached:
            self.attach(uid)

    def attach(self, uid: str) -> bool:
        """Present a token of the pod; whether it was accepted."""
        if self.pods.is_gone(uid):
            return False
        self.pods.note(uid)
        self.attached.add(uid)
        return True

    def take(self, *news: PodEvent) -> list[str]:
        """The pods whose streams end because of it."""
        for one in news:
            self.pods.take(one)
        return self.tick()

    def tick(self, seconds: float = 1.0) -> list[str]:
        self.now += seconds
        ended = list(self.pods.due(lambda: self.attached))
        self.attached.difference_update(ended)
        self.ended += ended
        return ended

    def listed(self, *uids: str, ago: float = 0.0) -> PodsListed:
        return PodsListed(frozenset(uids), self.now - ago)


def fleet(n: int) -> list[str]:
    return [f"uid-{i}" for i in range(n)]


def test_the_stream_of_a_deleted_pod_ends_and_its_token_is_refused() -> None:
    replica = Replica(fleet(10))
    assert replica.take(replica.listed(*fleet(10)), PodGone("uid-3")) == ["uid-3"]
    assert not replica.attach("uid-3")
    assert replica.attach("uid-4")
    assert replica.take(PodSeen("uid-new")) == []
    assert replica.attach("uid-new")


def test_a_deleted_pod_without_a_stream_is_refused_too() -> None:
    replica = Replica()
    replica.take(replica.listed("a", "b"), PodGone("a"))
    assert not replica.attach("a")


def test_a_stream_that_attaches_just_after_the_deletion_ends() -> None:
    replica = Replica(fleet(3))
    replica.pods.note("slow")  # its token was presented; its Hello is under way
    replica.take(replica.listed("slow", *fleet(3)), PodGone("slow"))
    replica.attached.add("slow")
    assert replica.tick() == ["slow"]


def test_a_pod_that_went_while_no_aggregator_ran_is_found_by_the_list() -> None:
    replica = Replica(["old", *fleet(9)])
    replica.tick()
    assert replica.take(replica.listed(*fleet(9))) == ["old"]
    assert not replica.attach("old")


def test_a_pod_that_is_younger_than_the_list_is_not_gone() -> None:
    replica = Replica(fleet(9))
    replica.tick()
    early = replica.listed(*fleet(9))
    replica.tick()
    replica.attach("young")
    assert replica.take(early) == []
    assert replica.attach("young")


def test_an_unknown_pod_is_let_in_and_a_later_list_settles_it() -> None:
    replica = Replica(fleet(9))
    replica.tick()
    replica.take(replica.listed(*fleet(9)))
    assert not replica.pods.wants_list()
    assert replica.attach("stale")
    assert not replica.pods.wants_list(), "a watch may lag"
    replica.tick(UNSEEN_FOR)
    assert replica.pods.wants_list()
    assert replica.take(replica.listed(*fleet(9))) == ["stale"]
    assert not replica.pods.wants_list()
    assert not replica.attach("stale")


def test_a_holder_who_comes_and_goes_is_refused_all_the_same() -> None:
    replica = Replica(fleet(9))
    replica.tick()
    replica.take(replica.listed(*fleet(9)))
    replica.attach("stale")
    replica.attached.discard("stale")
    replica.tick(UNSEEN_FOR)
    replica.take(replica.listed(*fleet(9)))
    assert not replica.attach("stale")


def test_an_empty_list_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica(["a"])
    replica.tick()
    assert replica.take(replica.listed()) == []
    assert replica.attach("a")
    assert "is empty: no stream ends" in caplog.text


@pytest.mark.parametrize("by", ["list", "watch"])
def test_many_that_are_gone_at_once_change_nothing(
    by: str, caplog: pytest.LogCaptureFixture
) -> None:
    replica, all_of_them = Replica(fleet(100)), fleet(100)
    replica.tick()
    replica.take(replica.listed(*all_of_them))
    lost = all_of_them[: FEW + 1]
    news: list[PodEvent] = [PodGone(uid) for uid in lost] if by == "watch" else []
    replica.tick()
    assert replica.take(*news or [replica.listed(*all_of_them[FEW + 1 :])]) == []
    assert all(replica.attach(uid) for uid in lost)
    assert caplog.text.count("are gone: no stream ends") == 1
    replica.take(*map(PodSeen, lost))  # they were there
    replica.tick(WINDOW)
    assert replica.ended == []


def test_those_that_were_held_end_when_their_number_is_small_again() -> None:
    replica = Replica(fleet(100))
    replica.tick()
    replica.take(replica.listed(*fleet(100)), *map(PodGone, fleet(FEW + 1)))
    replica.attached.discard("uid-0")  # its new pod has taken over
    assert sorted(replica.tick()) == fleet(FEW + 1)[1:]
    assert not replica.attach("uid-0")


def test_no_more_than_the_share_ends_within_the_window() -> None:
    replica = Replica(fleet(100))
    replica.tick()
    replica.take(replica.listed(*fleet(100)))
    for uid in fleet(FEW):
        assert replica.take(PodGone(uid)) == [uid]
    assert replica.take(PodGone("uid-50")) == []
    assert replica.tick(WINDOW) == ["uid-50"]


def test_a_roll_of_all_agents_refuses_every_old_pod_and_ends_no_stream() -> None:
    replica, old = Replica(fleet(500)), fleet(500)
    replica.tick()
    replica.take(replica.listed(*old))
    for uid in old:
        replica.attached.discard(uid)  # its agent has ended
        replica.take(PodGone(uid), PodSeen(f"{uid}-new"))
        assert replica.attach(f"{uid}-new")
    assert replica.ended == []
    assert not any(replica.attach(uid) for uid in old)


def test_a_pod_that_a_restored_etcd_has_again_is_let_in() -> None:
    replica = Replica(fleet(9))
    replica.tick()
    replica.take(replica.listed(*fleet(9)), PodGone("uid-1"))
    replica.take(replica.listed(*fleet(9)))
    assert replica.attach("uid-1")


@pytest.mark.slow
def test_memory_is_bounded() -> None:
    replica = Replica()
    for number in range(2 * MOST_KEPT):
        replica.pods.note(f"presented-{number}")
    replica.take(replica.listed("a"))
    replica.take(*(PodGone(f"deleted-{number}") for number in range(2 * MOST_KEPT)))
    refused = sum(replica.pods.is_gone(f"deleted-{number}") for number in range(2 * MOST_KEPT))
    assert refused == MOST_KEPT


UIDS = st.sampled_from(fleet(30))


@pytest.mark.slow
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("attach"), UIDS),
            st.tuples(st.just("gone"), UIDS),
            st.tuples(st.just("seen"), UIDS),
            st.tuples(st.just("list"), st.frozensets(UIDS)),
            st.tuples(st.just("tick"), st.sampled_from([1.0, 30.0, WINDOW])),
        ),
        max_size=60,
    )
)
def test_only_what_the_cluster_denied_ends_and_never_many_at_once(
    steps: list[tuple[str, object]],
) -> None:
    replica = Replica()
    #: When the cluster last said that a pod was there, or not.
    denied: set[str] = set()
    ended_at: list[float] = []
    for what, value in steps:
        match what, value:
            case "attach", str(uid):
                assert replica.attach(uid) or uid in denied
                ended = []
            case "gone", str(uid):
                denied.add(uid)
                ended = replica.take(PodGone(uid))
            case "seen", str(uid):
                ended = replica.take(PodSeen(uid))
                denied.discard(uid)
                assert not replica.pods.is_gone(uid)
            case "list", frozenset() as uids:
                denied = (denied | set(fleet(30))) - uids
                ended = replica.take(replica.listed(*uids))
                assert uids or not ended
            case "tick", float(seconds):
                ended = replica.tick(seconds)
            case _:
                raise AssertionError(what)
        assert set(ended) <= denied
        ended_at += [replica.now for _ in ended]
        most = max(FEW, int(SHARE * 30))
        assert sum(replica.now - at < WINDOW for at in ended_at) <= most
