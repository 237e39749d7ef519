"""Commands of a person on the node, by the unix socket: clear faults, release the driver."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from nodeagent.commands import CommandRefused, Commands
from nodeagent.local.server import LocalResponse, Routes, json_answer
from sickbay.json_text import read_json

Carry = Callable[[Any], Awaitable[str]]


def routes(commands: Commands) -> Routes:
    """For the unix socket alone: only root may open it."""

    async def cleared(order: Any) -> str:
        return commands.cleared(gpu=_text(order, "gpu"), code=_text(order, "code"))

    async def quiesce(order: Any) -> str:
        seconds = order["seconds"]
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError
        return await commands.quiesce(float(seconds))

    return {
        ("POST", "/v1/cleared"): partial(
            _carry_out, cleared, 'expected {"gpu": UUID, "code": CODE} or one of the two'
        ),
        ("POST", "/v1/quiesce"): partial(
            _carry_out, quiesce, 'expected {"seconds": NUMBER}; 0 ends it'
        ),
    }


async def _carry_out(carry: Carry, expected: str, body: bytes) -> LocalResponse:
    try:
        result = await carry(read_json(body))
    except CommandRefused as error:
        return json_answer({"error": str(error)}, 400)
    except (ValueError, KeyError, TypeError, AttributeError):
        return json_answer({"error": expected}, 400)
    return json_answer({"result": result})


def _text(order: Any, key: str) -> str:
    value = order.get(key, "")
    if not isinstance(value, str):
        raise TypeError
    return value
