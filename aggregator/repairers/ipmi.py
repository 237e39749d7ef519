"""A restart by the machine's BMC: `ipmitool chassis power`.

The password is read from its file and given in the environment (`-E`): an argument would be seen
by every user of the machine. The Node's other boot id proves the restart.
"""

from dataclasses import dataclass
from pathlib import Path

from aggregator.cluster.local.commands import SiteCommandFailed, finish_command
from aggregator.cluster.port import Guard
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairOrder
from aggregator.repairers.sent_once import SentOnce
from aggregator.runtime.secret_file import SecretError, read_password, secret_of

_ATTEMPT = 60.0
#: Bytes of a password in IPMI 2.0 (section 22.30, Set User Password).
_MOST_PASSWORD = 20
#: Each request is sent once (`-R`), because ipmitool would repeat the order to a BMC that is slow
#: to answer, which restarts the machine as often. So it waits longer (`-N`, seconds).
_ONCE = ("-R", "1", "-N", "10")
#: ipmitool's words where no session came about, so that nothing was ordered.
_NO_SESSION = ("Unable to establish", "Could not open socket", "Address lookup")
#: Its words, with `-v`, where the BMC has refused the session: without it, a wrong password and a
#: BMC that is away look the same.
_REFUSED = (
    "RAKP 2 HMAC is invalid",  # the password is another one
    "unauthorized name",
    "invalid authentication algorithm",  # no cipher suite in common
)
#: Lines that `-v` prints in addition.
_NOISE = (
    "Loading IANA",
    "IANA PEN registry",
    "Running Get VSO",
    "Invalid completion code received: Invalid command",
    "Discovered IPMB address",
    "Get HPM.x Capabilities",
    "Unable to Get Channel Cipher Suites",
)


@dataclass(frozen=True, slots=True)
class IpmiTarget:
    """``host`` is the BMC's, with ``{node}`` for the node's name. ``power``: cycle or reset."""

    host: str
    port: int
    user: str
    password_file: Path
    power: str
    program: str


class IpmiRepairer(SentOnce):
    """Implements `Repairer`."""

    sends_twice = False

    def __init__(self, target: IpmiTarget) -> None:
        self._target = target

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        target = self._target
        try:
            password = await secret_of(target.password_file, read_password)
        except SecretError as error:
            return RepairAnswer(AnswerState.NOT_SENT, str(error))
        if len(password.encode()) > _MOST_PASSWORD:
            text = f"IPMI takes a password of {_MOST_PASSWORD} bytes at most"
            return RepairAnswer(AnswerState.FAILED, f"{target.password_file}: {text}")
        host = target.host.replace("{node}", order.node)
        argv = [
            *(target.program, "-v", "-I", "lanplus", "-H", host, "-p", str(target.port), *_ONCE),
            *("-U", target.user, "-E", "chassis", "power", target.power),
        ]
        try:
            finished = await finish_command(
                argv,
                key=f"repair.repairers.{order.repair}.ipmi",
                values={"node": order.node},
                limit=min(_ATTEMPT, order.lasts),
                secrets={"IPMI_PASSWORD": password},
                guard=guard,
            )
        except SiteCommandFailed as error:
            unsure = AnswerState.UNSURE if error.was_begun else AnswerState.NOT_SENT
            return RepairAnswer(unsure, str(error))
        lines = [one for one in finished.output.splitlines() if one.strip()]
        output = "; ".join(one for one in lines if not one.lstrip("> ").startswith(_NOISE))
        if finished.code == 0:
            return RepairAnswer(AnswerState.TAKEN, output)
        text = f"{target.program} exited with {finished.code}: {output}"
        if any(words in finished.output for words in _NO_SESSION):
            refused = any(words in finished.output for words in _REFUSED)
            return RepairAnswer(AnswerState.FAILED if refused else AnswerState.NOT_SENT, text)
        # As in: Set Chassis Power Control to Cycle failed: Command not supported in present state.
        refused = "failed:" in finished.output
        return RepairAnswer(AnswerState.FAILED if refused else AnswerState.UNSURE, text)
