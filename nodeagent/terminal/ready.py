"""``sickbay-agent ready``: the running agent's answer, as a line and a code."""

import json
from pathlib import Path
from typing import Any

from nodeagent.local.client import AgentTrouble, NoAgent, RequestRefused, post_json

READY, NOT_READY, NO_ANSWER, BAD_REQUEST = "ready", "not ready", "no answer", "bad request"
_MOST_NAMED = 8


def request(socket: Path, options: Any) -> tuple[str, str, str]:
    """The verdict, the text for standard output, and that for standard error."""
    gpus = [one.strip() for one in options.gpus.split(",")] if options.gpus else []
    if not all(gpus):
        return BAD_REQUEST, "", f'--gpus "{options.gpus}": an empty name; expected such as 0,3'
    try:
        answer = post_json(socket, "/v1/ready", {"gpus": gpus}, options.timeout)
        verdict = READY if answer["ready"] else NOT_READY
        if verdict == READY and not answer["known"]:
            verdict = NO_ANSWER
        text = json.dumps(answer) if options.output == "json" else _line(answer, verdict)
    except NoAgent as error:
        return NO_ANSWER, "", f"no agent is running ({error})"
    except RequestRefused as error:
        return NO_ANSWER, "", str(error)
    except AgentTrouble as error:
        return NO_ANSWER, "", str(error)
    except (KeyError, TypeError):
        return NO_ANSWER, "", f"the process that listens on {socket} is no agent of this version"
    return verdict, text, ""


def _line(answer: Any, verdict: str) -> str:
    if verdict == NO_ANSWER:
        return f"{answer['node']}: {NO_ANSWER}: no check has run since the agent's start"
    if verdict == READY:
        return f"{answer['node']}: {READY}"
    named = [
        " ".join(filter(None, (one["code"] or one["check"], one["component"], one["message"])))
        for one in answer["against"][:_MOST_NAMED]
    ]
    more = answer["total"] - len(named)
    rest = f"; and {more} more" if more > 0 else ""
    return f"{answer['node']}: {NOT_READY}: {'; '.join(named)}{rest}"
