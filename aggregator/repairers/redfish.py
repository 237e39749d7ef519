"""A restart by the machine's BMC: Redfish's ComputerSystem.Reset.

DMTF DSP0268, ComputerSystem, action Reset: a POST with ResetType to
``SYSTEM/Actions/ComputerSystem.Reset``. A second one would restart the machine a second time, so
an order is sent once; the Node's other boot id proves it.
"""

import base64
import ssl
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from aggregator.alerts.http_channel import words_of
from aggregator.cluster.port import Guard
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairOrder
from aggregator.repairers.sent_once import SentOnce
from aggregator.runtime.guarded_connector import guarded_post
from aggregator.runtime.secret_file import SecretError, read_password, secret_of
from aggregator.tls.client_context import CaFileError, client_context
from sickbay.json_text import read_json

_ATTEMPT = 60.0
_MOST_ANSWER = 64 * 1024
_MOST_TEXT = 500
_TAKEN = frozenset({200, 201, 202, 204})
#: The service does not have the function or the version (RFC 9110): nothing was carried out.
_NOT_IMPLEMENTED = frozenset({501, 505})


@dataclass(frozen=True, slots=True)
class RedfishTarget:
    """``url`` is that of the system, with ``{node}`` for the node's name.

    ``ca_file``: the authority of the BMC's certificate; None: those of this machine.
    """

    url: str
    user: str
    password_file: Path
    reset_type: str
    ca_file: Path | None


class RedfishRepairer(SentOnce):
    """Implements `Repairer`."""

    sends_twice = False

    def __init__(self, target: RedfishTarget) -> None:
        self._target = target

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        target = self._target
        try:
            password = await secret_of(target.password_file, read_password)
            proof = base64.b64encode(f"{target.user}:{password}".encode()).decode()
            url = target.url.replace("{node}", order.node).rstrip("/")
            context = client_context(target.ca_file) if target.ca_file is not None else None
            lasts = min(order.lasts, _ATTEMPT)
            # A time of its own for the connection: a BMC that accepts none has certainly got no
            # order.
            timeout = aiohttp.ClientTimeout(total=lasts, connect=lasts / 2)
            async with guarded_post(
                f"{url}/Actions/ComputerSystem.Reset",
                check=guard,
                timeout=timeout,
                json={"ResetType": target.reset_type},
                headers={"Authorization": f"Basic {proof}"},
                ssl=context or True,
            ) as response:
                reply = (await response.content.read(_MOST_ANSWER)).decode(errors="replace")
                location = response.headers.get("Location", "")
        except (SecretError, CaFileError) as error:
            return RepairAnswer(AnswerState.NOT_SENT, str(error))
        except aiohttp.ClientConnectorError as error:
            return RepairAnswer(AnswerState.NOT_SENT, words_of(error))
        except aiohttp.ConnectionTimeoutError:
            return RepairAnswer(AnswerState.NOT_SENT, f"no connection within {lasts / 2:g} s")
        except TimeoutError:
            return RepairAnswer(AnswerState.UNSURE, f"no answer within {lasts:g} s")
        except (aiohttp.ClientError, OSError, ssl.SSLError, ValueError) as error:
            return RepairAnswer(AnswerState.UNSURE, words_of(error))
        if response.status in _TAKEN:
            return RepairAnswer(AnswerState.TAKEN, f"{target.reset_type}: HTTP {response.status}")
        refused = 300 <= response.status < 500 or response.status in _NOT_IMPLEMENTED
        reason = _error_in(reply)
        if 300 <= response.status < 400:
            reason = (
                f"redirects to {location or 'nowhere'}, which is not followed; expected its url"
            )
        text = f"HTTP {response.status}: {reason}".rstrip(": ")[:_MOST_TEXT]
        return RepairAnswer(AnswerState.FAILED if refused else AnswerState.UNSURE, text)


def _error_in(reply: str) -> str:
    """The message of a Redfish error (DSP0266, error responses), or the text of another one."""
    try:
        error = read_json(reply)["error"]
        more = error.get("@Message.ExtendedInfo", ())
        messages = [error.get("message", ""), *(one.get("Message", "") for one in more)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return reply
    return " ".join(dict.fromkeys(str(one) for one in messages if one)) or reply
