"""A coroutine that is awaited only while its purpose stands."""

import asyncio

from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import while_in_force


async def test_a_result_that_comes_together_with_a_change_is_returned() -> None:
    node_state = NodeState("n1", now=asyncio.get_running_loop().time)
    node_state.work.queue()

    async def act() -> str:
        return "done"

    assert await while_in_force(node_state, act(), lambda: False) == "done"
