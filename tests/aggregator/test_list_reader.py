"""A list that is decoded while it arrives: the same objects, wherever its pieces end."""

import json
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.kubernetes.list_reader import ListReader
from aggregator.cluster.kubernetes.objects import PartialObjectMetadata, decode
from aggregator.cluster.port import Refused

KIND = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
#: A text that looks like the beginning of another object.
HOSTILE = '},{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"x"'


def node(name: str, **labels: str) -> dict[str, object]:
    fields = [{"manager": "kubelet", "fieldsV1": {"f:metadata": {"f:labels": {}}}}] * 2
    metadata = {"name": name, "uid": f"uid-{name}", "labels": labels, "managedFields": fields}
    return {**KIND, "metadata": metadata}


def body_of(nodes: Iterable[Mapping[str, object]], *, spaces: bool = False) -> bytes:
    whole = {
        "kind": "PartialObjectMetadataList",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "7"},
        "items": list(nodes),
    }
    return json.dumps(whole, separators=None if spaces else (",", ":")).encode() + b"\n"


def reader() -> ListReader[str]:
    return ListReader(lambda raw: decode(raw, PartialObjectMetadata).metadata.name)


def read(body: bytes, size: int) -> list[str]:
    found = reader()
    for start in range(0, len(body), size):
        found.take(body[start : start + size])
    return found.finish()


@given(
    st.lists(st.text(max_size=8) | st.just(HOSTILE), max_size=6),
    st.integers(1, 500),
    st.booleans(),
)
def test_each_object_is_found_wherever_a_piece_ends(
    texts: list[str],
    size: int,
    spaces: bool,  # noqa: FBT001
) -> None:
    nodes = [node(f"node-{number}", text=text) for number, text in enumerate(texts)]
    assert read(body_of(nodes, spaces=spaces), size) == [f"node-{n}" for n in range(len(texts))]


def test_objects_without_a_kind_are_found() -> None:
    nodes = [{"metadata": {"name": f"node-{number}"}} for number in range(5)]
    assert read(body_of(nodes), 9) == [f"node-{number}" for number in range(5)]


def test_an_object_that_has_the_beginning_of_another_in_it_is_one() -> None:
    odd = {"metadata": {"name": "odd"}, "status": {"owners": [1, {"metadata": {"name": "x"}}]}}
    assert read(body_of([odd, {"metadata": {"name": "next"}}]), 11) == ["odd", "next"]


@pytest.mark.parametrize("items", ["[]", "null"])
def test_an_empty_list_has_no_objects(items: str) -> None:
    body = body_of([]).replace(b"[]", items.encode())
    assert read(body, 7) == []


def test_an_answer_that_is_sent_again_counts_alone() -> None:
    found, body = reader(), body_of([node("node-1"), node("node-2"), node("node-3")])
    found.take(body[: len(body) // 2])
    found.begin()
    found.take(body)
    assert found.finish() == ["node-1", "node-2", "node-3"]


@pytest.mark.parametrize("cut", [30, 200, 600])
def test_a_list_that_breaks_off_is_none(cut: int) -> None:
    with pytest.raises(Refused):
        read(body_of([node("node-1"), node("node-2"), node("node-3")])[:cut], 50)


def test_a_body_that_is_no_list_is_refused() -> None:
    with pytest.raises(Refused):
        read(b"<html>a captive portal</html>" * 5_000, 1_000)


def test_what_was_decoded_is_not_kept() -> None:
    """The body of 100,000 Nodes is 280 MB."""
    found = reader()
    body = body_of(node(f"node-{number}", text="x" * 200) for number in range(2_000))
    most = 0
    for start in range(0, len(body), 4_096):
        found.take(body[start : start + 4_096])
        most = max(most, len(found._buffer))
    assert len(found.finish()) == 2_000
    assert most < 10_000
