"""Renders the agent's answers on its own node: results as JSON, metrics as text. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nodeagent.config.reload import ConfigState
from nodeagent.dataclass import dataclass
from nodeagent.evidence.latch import Latch
from nodeagent.kernel_feed import Tally
from nodeagent.local.findings import from_latch
from nodeagent.model import CheckInfo
from nodeagent.scheduler import Scheduled


@dataclass(frozen=True, slots=True)
class About:
    """The agent itself. ``uplink`` is JSON for people: state, address, error."""

    node: str
    version: str
    uptime: float
    uplink: Mapping[str, Any]
    state_problem: str
    kernel_records: int
    kernel_seconds: float
    log_checks: Mapping[str, Tally]
    quiesced_for: float
    config: ConfigState


def as_json(latch: Latch, checks: Sequence[CheckInfo], about: About, now: float) -> dict[str, Any]:
    """The answer of ``GET /v1/results``: ``sickbay-agent check -o json``, and the agent itself."""
    findings = from_latch(latch, now, node=about.node, source="agent", checks=checks)
    agent = {
        "version": about.version,
        "boot_id": latch.boot_id,
        "uptime_seconds": round(about.uptime, 3),
        "uplink": about.uplink,
        "last_seq": latch.last_seq,
        "last_acked": latch.last_acked,
        "state_problem": about.state_problem,
        "quiesced_seconds": round(about.quiesced_for, 3),
        "config_problem": about.config.problem,
        "config_restart_for": list(about.config.restart_for),
    }
    return findings.as_json() | {"agent": agent}


def metrics(latch: Latch, checks: Iterable[Scheduled], about: About, now: float) -> str:
    """The text of ``GET /metrics``: the agent's own health, and counts of its evidence."""
    page = _MetricsText()
    page.family(
        "sickbay_agent_info",
        "gauge",
        "1 for the version that runs.",
        [({"version": about.version}, 1)],
    )
    page.one(
        "sickbay_agent_uptime_seconds", "gauge", "Seconds since the agent's start.", about.uptime
    )
    connected = int(about.uplink.get("state") == "streaming")
    page.one(
        "sickbay_agent_streaming", "gauge", "1 while an aggregator takes the evidence.", connected
    )
    unacked = latch.last_seq - latch.last_acked
    page.one(
        "sickbay_agent_unacknowledged_messages",
        "gauge",
        "Messages that were sent and are not safe yet.",
        unacked,
    )
    saved = int(not about.state_problem)
    page.one(
        "sickbay_agent_state_saved",
        "gauge",
        "1 when the latest save of the latch succeeded.",
        saved,
    )
    current = int(not (about.config.problem or about.config.restart_for))
    text = "1 while the agent runs with the contents of its file."
    page.one("sickbay_agent_config_current", "gauge", text, current)
    text = "Changed configurations that were applied."
    page.one("sickbay_agent_config_reloads_total", "counter", text, about.config.reloads)
    text = "Changed configurations with mistakes."
    page.one("sickbay_agent_config_refused_total", "counter", text, about.config.failures)
    records = about.kernel_records
    page.one(
        "sickbay_agent_kernel_records_total",
        "counter",
        "Kernel log records that were read.",
        records,
    )
    text = "Seconds spent on them, all kernel log checks together."
    page.one("sickbay_agent_kernel_log_read_seconds_total", "counter", text, about.kernel_seconds)
    _log_check_metrics(page, about.log_checks)
    statuses = Counter((e.check, e.status.name.lower()) for e in latch.components.values())
    page.family(
        "sickbay_agent_components",
        "gauge",
        "Components by their check's status.",
        [({"check": c, "status": s}, n) for (c, s), n in sorted(statuses.items())],
    )
    codes = Counter(f.code for f in latch.faults.values())
    page.family(
        "sickbay_agent_faults",
        "gauge",
        "Latched faults.",
        [({"code": code}, n) for code, n in sorted(codes.items())],
    )
    text = "How long the GPU driver stays released."
    page.one("sickbay_agent_quiesced_seconds", "gauge", text, about.quiesced_for)
    _check_metrics(page, list(checks), now)
    return page.text()


def _log_check_metrics(page: "_MetricsText", tallies: Mapping[str, Tally]) -> None:
    faults = [({"check": name}, tally.faults) for name, tally in tallies.items()]
    text = "Faults that a kernel log check found."
    page.family("sickbay_agent_log_check_faults_total", "counter", text, faults)
    errors = [({"check": name}, tally.errors) for name, tally in tallies.items()]
    text = "Records on which the check itself failed: 0, or it has a defect."
    page.family("sickbay_agent_log_check_errors_total", "counter", text, errors)


def _check_metrics(page: "_MetricsText", checks: Sequence[Scheduled], now: float) -> None:
    def each(name: str, kind: str, text: str, value: str) -> None:
        samples = [({"check": c.name}, getattr(c, value)) for c in checks]
        page.family(f"sickbay_agent_check_{name}", kind, text, samples)

    each("runs_total", "counter", "Runs that ended.", "runs")
    each("errors_total", "counter", "Runs that ended with a defect of the check.", "errors")
    each("hangs_total", "counter", "Runs that exceeded their deadline.", "hangs")
    each("duration_seconds", "gauge", "How long the latest run took.", "last_duration")
    # A run that hangs has not ended, and its check is no success as long as that lasts.
    begun = [check for check in checks if check.runs or check.hung_since is not None]
    well = [({"check": c.name}, int(not c.error and c.hung_since is None)) for c in begun]
    about = "1 when the latest run ended without error and in time, also if it found a fault."
    page.family("sickbay_agent_check_success", "gauge", about, well)
    ages = [({"check": c.name}, now - c.last_success) for c in checks if c.last_success is not None]
    about = "Seconds since the last such run."
    page.family("sickbay_agent_check_success_age_seconds", "gauge", about, ages)


class _MetricsText:
    def __init__(self) -> None:
        self._lines: list[str] = []

    def one(self, name: str, kind: str, about: str, value: float) -> None:
        self.family(name, kind, about, [({}, value)])

    def family(
        self, name: str, kind: str, about: str, samples: Iterable[tuple[Mapping[str, str], float]]
    ) -> None:
        self._lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        for labels, value in samples:
            pairs = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
            self._lines.append(f"{name}{{{pairs}}} {value:g}" if pairs else f"{name} {value:g}")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
