"""The demo shows the alerts that an on-call person would get."""

from http import HTTPStatus
from typing import Any

from aggregator.demo.receiver import LoopbackReceiver


class AlertReceiver(LoopbackReceiver):
    """Keeps the alerts that were delivered."""

    def __init__(self) -> None:
        super().__init__()
        self._alerts: list[dict[str, Any]] = []

    def received(self) -> list[dict[str, Any]]:
        """All alerts, each once: a delivery may be repeated."""
        return list({one["id"]: one for one in self._alerts}.values())

    def forget(self) -> None:
        """Begin anew: the next part of the story has alerts of its own."""
        self._alerts.clear()

    def answer(self, body: dict[str, Any]) -> tuple[HTTPStatus, str]:
        self._alerts.extend(body["alerts"])
        return HTTPStatus.NO_CONTENT, ""
