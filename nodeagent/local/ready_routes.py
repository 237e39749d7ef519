"""``POST /v1/ready``: whether a job may start on this node now. For the unix socket alone."""

from collections.abc import Callable, Sequence

from nodeagent.clock import Clock
from nodeagent.commands import Commands
from nodeagent.local.ready import Readiness, UnknownGpu, components_without, readiness
from nodeagent.local.server import LocalResponse, Routes, json_answer
from nodeagent.recorder import EvidenceRecorder
from nodeagent.sources.gpus import normalise
from sickbay.json_text import read_json

_EXPECTED = 'expected {"gpus": ["0", "GPU-...", ...]} or no body'


def reader(
    node: str, recorder: EvidenceRecorder, commands: Commands, clock: Clock
) -> Callable[[Sequence[str]], Readiness]:
    """Reads the readiness for these GPUs, for all without one. Raises UnknownGpu."""

    def read(gpus: Sequence[str]) -> Readiness:
        without: frozenset[str] = frozenset()
        if gpus:
            wanted = [normalise(one) or one for one in gpus]
            without = components_without(wanted, recorder.names_by_gpu())
        return readiness(
            recorder.latch,
            node=node,
            now=clock.boottime(),
            without=without,
            released_for=commands.quiesced_for(),
        )

    return read


def routes(read: Callable[[Sequence[str]], Readiness]) -> Routes:
    async def ready(body: bytes) -> LocalResponse:
        try:
            gpus = read_json(body)["gpus"] if body else []
            "".join(gpus)  # a list of texts, or TypeError
        except (ValueError, KeyError, TypeError):
            return json_answer({"error": _EXPECTED}, 400)
        try:
            return json_answer(read(gpus).as_json())
        except UnknownGpu as error:
            return json_answer({"error": str(error)}, 400)

    return {("POST", "/v1/ready"): ready}
