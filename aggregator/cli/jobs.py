"""The commands about jobs: which jobs faults hit, and what that cost."""

import argparse
import csv
import datetime as dt
import sys
from collections.abc import Iterator
from typing import Any

from aggregator.cli.durations import moment_of
from aggregator.cli.errors import UsageError
from aggregator.cli.output import Answer, print_answer
from aggregator.cli.screen import Screen
from aggregator.cli.source import open_source
from aggregator.cli.text_table import Cell, clean, clock, listed
from aggregator.runtime.text import counted

#: The keys of the sums: as in `aggregator.jobs.report`, whose import takes half a second.
GROUPS = ("job", "team", "code", "node", "pool")
#: Of one answer.
_MOST = 1000
_COLUMNS = (
    "name",
    "hits",
    "stops",
    "lost_hours",
    "work_hours",
    "restart_hours",
    "out_of_service_hours",
    "mttr",
    "ettr",
)


def jobs(options: argparse.Namespace) -> None:
    """The jobs that faults hit; with a name, the records of one."""
    answer = _report(options, by="job", job=options.name)
    if options.name:
        answer["items"] = [one for one in answer["items"] if one["name"] == options.name]
    print_answer(options, answer, _records if options.name else _jobs)


def report(options: argparse.Namespace) -> None:
    answer = _report(options, by=options.by, job="")
    if not options.csv:
        print_answer(options, answer, _sums)
        return
    if options.output.name != "table":
        raise UsageError("--csv and -o: expected one of them")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow((answer["by"], *_COLUMNS[1:]))
    for one in answer["items"]:
        writer.writerow([_cell(one[name]) for name in _COLUMNS])


def _cell(value: object) -> object:
    """A value for a spreadsheet: no text of a tenant begins a formula."""
    if isinstance(value, str):
        text = clean(value)
        return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
    return "" if value is None else value


def _report(options: argparse.Namespace, *, by: str, job: str) -> Answer:
    now = dt.datetime.now(dt.UTC)
    times = {
        name: moment_of(getattr(options, name), now, f"--{name}")
        for name in ("since", "until")
        if getattr(options, name)
    }
    with open_source(options) as source:
        answer: Answer = source.get("report", by=by, job=job, limit=_MOST, **times)
    if answer["trouble"]:
        print(f"warning: {clean(answer['trouble'])}", file=sys.stderr)
    if answer["cut"]:
        print("warning: only the newest 50,000 records are counted", file=sys.stderr)
    if answer["total"] > len(answer["items"]):
        text = f"warning: {len(answer['items'])} of {answer['total']} rows, those with most hours"
        print(text, file=sys.stderr)
    return answer


def _jobs(answer: Answer, screen: Screen) -> Iterator[str]:
    if not answer["items"]:
        yield "no fault hit a job in that time"
        return
    columns: dict[str, Cell] = {
        "JOB": "name",
        "TEAM": lambda one: one["last"]["team"],
        "GPUS": lambda one: one["last"]["gpus"],
        "FAULTS": "hits",
        "STOPS": "stops",
        "GPU HOURS LOST": lambda one: _hours(one["lost_hours"]),
        "ETTR": lambda one: _share(one["ettr"]),
        "LAST": lambda one: clock(one["last"]["at"]),
    }
    yield listed(answer["items"], columns, screen)


def _records(answer: Answer, screen: Screen) -> Iterator[str]:
    if not answer["records"]:
        yield "no fault hit this job in that time; names are those of `sickbay jobs`"
        return
    columns: dict[str, Cell] = {
        "WHEN": lambda one: clock(one["at"]),
        "NODE": "node",
        "WHAT": lambda one: "stopped" if one["stopped"] else "hit",
        "CODE": "code",
        "GPUS": lambda one: one["lost_gpus"] if one["stopped"] else one["gpus_here"],
        "GPU HOURS LOST": lambda one: _hours(one["lost_hours"]) if one["stopped"] else None,
        "INPUTS": _inputs,
    }
    yield listed(answer["records"], columns, screen)


def _inputs(one: Answer) -> str:
    age = f"checkpoint {one['checkpoint_age']:.0f} s old ({one['checkpoint_source']})"
    return f"{age}, restart {one['restart']:.0f} s ({one['restart_source']})"


def _sums(answer: Answer, screen: Screen) -> Iterator[str]:
    stops, gpus = counted(answer["stops"], "stop"), counted(answer["gpus"], "GPU")
    yield (
        f"{_hours(answer['lost_hours'])} GPU hours lost in {stops} of jobs: "
        f"{_hours(answer['work_hours'])} of work since checkpoints, "
        f"{_hours(answer['restart_hours'])} of restarts"
    )
    yield (
        f"{_hours(answer['out_of_service_hours'])} GPU hours of nodes in quarantine "
        f"({answer['quarantines']} of {answer['nodes']} nodes with {gpus})"
    )
    sources = ", ".join(f"{count} {name}" for name, count in answer["stops_by_source"].items())
    yield (
        f"MTBF of a node {_length(answer['mtbf'])}, MTTR {_length(answer['mttr'])}, goodput "
        f"{_share(answer['goodput'])}; ages of checkpoints: {sources or 'none'}"
    )
    yield ""
    columns: dict[str, Cell] = {
        answer["by"].upper(): "name",
        "FAULTS": "hits",
        "STOPS": "stops",
        "GPU HOURS LOST": lambda one: _hours(one["lost_hours"]),
        "OUT OF SERVICE": lambda one: _hours(one["out_of_service_hours"]),
        "MTTR": lambda one: _length(one["mttr"]),
    }
    yield listed(answer["items"], columns, screen)


def _hours(value: float) -> str:
    return f"{value:.1f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.2f}%"


def _length(value: Any) -> str:
    return "-" if value is None else f"{value / 3600:.1f} h"
