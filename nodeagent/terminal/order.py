"""``sickbay-agent cleared`` and ``quiesce``: an order to the running agent, and its answer."""

import argparse

from nodeagent.config.settings import Config
from nodeagent.local.client import AgentTrouble, NoAgent, RequestRefused, post_json

_WITHOUT = {
    "cleared": "a fault that an agent latched earlier is in its state, and is reported again when "
    "it starts: start it, then clear",
    "quiesce": "no process of sickbay holds the GPU driver now, but an agent that is started would",
}


class NotDone(Exception):
    """The order was not carried out; the text is the reason, for people."""


def cleared(config: Config, options: argparse.Namespace) -> str:
    """Report that faults are over; returns the agent's answer. Raises NotDone."""
    order = {"gpu": options.gpu, "code": options.code}
    return _order(config, options, "/v1/cleared", order)


def quiesce(config: Config, options: argparse.Namespace) -> str:
    """Have the driver released, or taken up again; the agent's answer. Raises NotDone."""
    order = {"seconds": 0.0 if options.end else options.seconds}
    return _order(config, options, "/v1/quiesce", order)


def _order(
    config: Config, options: argparse.Namespace, resource: str, order: dict[str, object]
) -> str:
    try:
        return str(post_json(config.socket, resource, order, options.timeout)["result"])
    except NoAgent as error:
        why = f"no agent is running ({error}); {_WITHOUT[options.command]}"
    except (RequestRefused, AgentTrouble) as error:
        why = str(error)
    except (KeyError, TypeError):
        why = f"the process that listens on {config.socket} is no sickbay agent"
    raise NotDone(why)
