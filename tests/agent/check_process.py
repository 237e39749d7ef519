"""One check in a process of its own, looked through on request: for network namespaces.

``python -m tests.agent.check_process CHECK OPTIONS-AS-JSON``; each line of input runs the check,
each line of output its verdicts: ``{component: [status, reason, message]}``.
"""

import asyncio
import json
import sys
from dataclasses import replace

from nodeagent.checks import nic_health, nic_link, peers, reach
from tests.agent.machines import observations, options, sources, this_machine

SPECS = {spec.name: spec for spec in (nic_health.SPEC, nic_link.SPEC, peers.SPEC, reach.SPEC)}


async def main(name: str, settings: str) -> None:
    spec = SPECS[name]
    chosen = json.loads(settings)
    found = replace(sources(this_machine()), single_run=chosen.pop("single_run", False))
    found.peers.named(chosen.pop("peers", ()))
    check = spec.build(found, options(spec, **chosen))
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        said = observations(await check.run_check())  # type: ignore[union-attr]  # no LogCheck here
        print(json.dumps({n: [o.status.name, o.reason, o.message] for n, o in said.items()}))
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
