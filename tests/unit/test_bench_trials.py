"""When a benchmark takes the aggregator for being at rest between two trials."""

from typing import Any, cast

import pytest

from tests.bench.trials import AGGREGATOR, until_rest
from tests.controlplane.plane import ControlPlane


class Audited:
    """A plane whose audit log grows by one request at each look."""

    def __init__(self, resource: str, name: str | None) -> None:
        about = {"resource": resource, "subresource": "status", "name": name}
        self._entry = {"verb": "patch", "user": {"username": AGGREGATOR}, "objectRef": about}

    def audit_mark(self) -> int:
        return 0

    def audit_entries(self, _since: int) -> list[dict[str, Any]]:
        return [self._entry]


def rests(resource: str, name: str | None) -> None:
    plane = cast("ControlPlane", Audited(resource, name))
    until_rest(plane, AGGREGATOR, seconds=0.0, timeout_s=0.0, without={"drained"})


def test_the_status_of_a_node_of_an_earlier_trial_may_change_at_rest() -> None:
    rests("quarantines", "drained")


@pytest.mark.parametrize(
    ("resource", "name"), [("quarantines", "other"), ("nodes", "other"), ("events", None)]
)
def test_any_other_change_is_no_rest(
    monkeypatch: pytest.MonkeyPatch, resource: str, name: str | None
) -> None:
    monkeypatch.setattr("tests.controlplane.waiting.PATIENCE", 0.0)
    with pytest.raises(TimeoutError):
        rests(resource, name)
