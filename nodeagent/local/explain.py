"""The reasons for the agent's results: each check's last run, its results, and its input.

``GET /v1/explain`` and ``sickbay-agent explain``. Tasks that hang in the kernel come first: no
result that waits behind them can be trusted to be fresh.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nodeagent.checks.base import Off, Report
from nodeagent.configfile.units import counted
from nodeagent.evidence.entries import ComponentEntry, FaultEntry
from nodeagent.evidence.latch import Latch
from nodeagent.model import CheckInfo
from nodeagent.scheduler import Scheduled
from nodeagent.sources.kmsg import Record
from nodeagent.sources.process_state import StuckTask


def waiting(found: Iterable[StuckTask]) -> list[dict[str, Any]]:
    """The tasks that hang in the kernel, as JSON."""
    return [
        {
            "pid": each.pid,
            "thread": each.thread,
            "name": each.name,
            "command": each.command,
            "waits_in": each.wchan,
        }
        for each in found
    ]


def as_json(
    *,
    latch: Latch,
    infos: Sequence[CheckInfo],
    scheduled: Mapping[str, Scheduled],
    log_checks: Mapping[str, Any],
    lines: Mapping[str, Iterable[Record]],
    now: float,
) -> list[dict[str, Any]]:
    """An object per check, in the order of ``infos``. Ages are seconds."""
    return [
        {
            "name": info.name,
            "interval_seconds": info.interval,
            "off_because": info.off_because,
            **_last_run(scheduled.get(info.name), now),
            **_counters(log_checks.get(info.name)),
            "results": [
                _component(entry, now)
                for entry in latch.components.values()
                if entry.check == info.name
            ],
            "faults": [
                _fault(entry, now) for entry in latch.faults.values() if entry.check == info.name
            ],
            "lines": [_line(record, now) for record in lines.get(info.name, ())],
        }
        for info in infos
    ]


def table(answer: Mapping[str, Any], only: str = "") -> str:
    """The answer for people; of one check alone if ``only`` names it."""
    lines = [
        f"STUCK: {each['command'] or each['name']} (pid {each['pid']}) waits in the kernel, in "
        f"{each['waits_in'] or 'an unknown place'}, and cannot be killed"
        for each in answer["stuck"]
    ]
    lines.append(_uplink(answer["uplink"]))
    if answer["config"]["problem"]:
        lines.append(f"configuration refused: {answer['config']['problem']}")
    if answer["config"]["restart_for"]:
        lines.append(f"changed, waits for a restart: {', '.join(answer['config']['restart_for'])}")
    for check in answer["checks"]:
        if only in ("", check["name"]):
            lines += ["", *_paragraph(check)] if lines else _paragraph(check)
    return "\n".join(lines)


def _uplink(uplink: Mapping[str, Any]) -> str:
    """Which aggregator takes the evidence, or why none does."""
    if uplink["state"] == "off":
        return "aggregator: no address is configured; the evidence stays on this node"
    where = uplink["address"]
    lasting = f"{uplink['for_seconds']:.0f} s"
    if uplink["state"] == "streaming":
        return f"aggregator: connected to {uplink['aggregator']} at {where} for {lasting}"
    error = uplink["error"] or "connecting"
    return f"aggregator: no connection for {lasting}, last tried {where}: {error}"


def _last_run(check: Scheduled | None, now: float) -> dict[str, Any]:
    if check is None:
        return {"run": None}
    success = check.last_success
    return {
        "run": {
            "deadline_seconds": check.deadline,
            "runs": check.runs,
            "errors": check.errors,
            "hangs": check.hangs,
            "error": check.error,
            "duration_seconds": round(check.last_duration, 4),
            "success_age_seconds": None if success is None else round(now - success, 3),
            "hung_for_seconds": (
                None if check.hung_since is None else round(now - check.hung_since, 3)
            ),
            "report": _latest_report(check.report),
        }
    }


def _latest_report(report: Report | None) -> list[dict[str, Any]]:
    """The latest report word for word, as it was before the latch took it."""
    if report is None:
        return []
    if isinstance(report, Off):
        return [{"kind": "Off", "reason": report.reason}]
    return [
        {"kind": type(item).__name__, **{name: _plain(item, name) for name in item.__slots__}}
        for item in report
    ]


def _plain(item: object, name: str) -> Any:
    value = getattr(item, name)
    if hasattr(value, "name"):
        return value.name.lower()
    return dict(value) if isinstance(value, Mapping) else value


def _counters(check: Any) -> dict[str, Any]:
    """Lines that a log check refused: about devices that are not here, or forged."""
    names = ("foreign", "packets", "elsewhere")
    found = {name: getattr(check, name) for name in names if hasattr(check, name)}
    return {"refused_lines": found} if found else {}


def _component(entry: ComponentEntry, now: float) -> dict[str, Any]:
    return {
        "component": entry.component,
        "status": entry.status.name.lower(),
        "reason": entry.reason,
        "message": entry.message,
        "age_seconds": round(now - entry.since, 3),
        "missed_runs": entry.absent,
        "recent": [
            {"status": status.name.lower(), "age_seconds": round(now - at, 3)}
            for status, at in entry.recent
        ],
    }


def _fault(entry: FaultEntry, now: float) -> dict[str, Any]:
    return {
        "code": entry.code,
        "component": entry.component,
        "message": entry.message,
        "count": entry.count,
        "historical": entry.historical,
        "cleared_by": entry.cleared_by.name.lower(),
        "source": entry.source,
        "source_seq": entry.source_seq,
        "last_seq": entry.last_seq,
        "details": dict(entry.details),
        "age_seconds": round(now - entry.first, 3),
        "occurrence_ages": [round(now - at, 3) for at in entry.occurrences],
    }


def _line(record: Record, now: float) -> dict[str, Any]:
    return {
        "seq": record.seq,
        "age_seconds": round(now - record.at, 3),
        "historical": record.historical,
        "text": record.text[:2000].decode("ascii", "backslashreplace"),
    }


def _paragraph(check: Mapping[str, Any]) -> list[str]:
    lines = [f"{check['name']}: {_state(check)}"]
    for each in check["results"]:
        what = " ".join(filter(None, (each["reason"], each["message"])))
        where = each["component"] or "-"
        lines.append(f"  {each['status']:<9} {where}: {what} (for {each['age_seconds']:.0f} s)")
    for each in check["faults"]:
        history = ", history" if each["historical"] else ""
        lines.append(
            f"  fault     {each['code']} {each['component'] or '-'}: "
            f"{counted(each['count'], 'time')}, last "
            f"{each['occurrence_ages'][-1]:.0f} s ago{history}"
        )
    lines += [f"  read      {each['seq']}: {each['text']}" for each in check["lines"]]
    refused = {name: n for name, n in check.get("refused_lines", {}).items() if n}
    if refused:
        words = ", ".join(f"{count} {name}" for name, count in refused.items())
        lines.append(f"  refused   lines: {words}")
    return lines


def _state(check: Mapping[str, Any]) -> str:
    if check["off_because"]:
        return f"off: {check['off_because']}"
    run = check["run"]
    if run is None:
        return "as it comes"
    every = f"every {check['interval_seconds']:g} s"
    if run["hung_for_seconds"] is not None:
        return f"{every}; HUNG for {run['hung_for_seconds']:.0f} s past its deadline"
    if run["error"]:
        return f"{every}; its latest run failed: {run['error']}"
    if run["success_age_seconds"] is None:
        return f"{every}; has not run yet"
    took, age = 1000 * run["duration_seconds"], run["success_age_seconds"]
    return f"{every}; ran {age:.0f} s ago, in {took:.0f} ms"
