"""The panels of a dashboard, as Grafana's JSON model has them.

Of that model (https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/)
this is the part that one dashboard needs; docs/decisions has the reason against a library.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: The columns of Grafana's grid.
COLUMNS = 24
#: The variable that a person chooses the Prometheus by.
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: Schema of Grafana 11; later versions migrate it as they load it.
SCHEMA = 39
#: The address of the status page by kubectl port-forward. The chart has `alerts.page` instead.
PAGE = "https://localhost:8080"
_CHOSEN = 'cluster=~"$cluster",job=~"$job"'
_SERIES = re.compile(r"\b(sickbay[_:][a-z_:0-9]+|process_[a-z_]+)(\{|)(\}|)")


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression; ``legend`` may have {{label}}."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Threshold:
    """From this value on the panel has this colour."""

    value: float
    colour: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. ``kind``: stat, timeseries or bargauge. ``unit`` is one of Grafana's, such as s.

    ``text`` explains it to a person on call. ``width`` is in columns, ``height`` in rows of 30 px.
    """

    title: str
    kind: str
    queries: Sequence[Query]
    text: str
    unit: str = "short"
    width: int = 8
    height: int = 8
    stacked: bool = False
    thresholds: Sequence[Threshold] = ()


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: Sequence[Panel]


def dashboard(uid: str, title: str, text: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The whole dashboard. Panels follow each other from left to right, row by row."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        panels.append(_row(row.title, len(panels) + 1, top))
        top += 1
        left = height = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left, height = top + height, 0, 0
            panels.append(_panel(panel, len(panels) + 1, left, top))
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return {
        "uid": uid,
        "title": title,
        "description": text,
        "tags": ["sickbay", "gpu"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "links": [
            {
                "title": "Status page",
                "type": "link",
                "icon": "external link",
                "url": "${page}",
                "targetBlank": True,
            }
        ],
        "templating": {
            "list": [
                _source_variable(),
                _label_variable("cluster", "sickbay_build_info"),
                _label_variable("job", 'sickbay_build_info{cluster=~"$cluster"}'),
                _page_variable(),
            ]
        },
        "panels": panels,
    }


def _source_variable() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "hide": 0,
        "refresh": 1,
        "regex": "",
        "multi": False,
        "includeAll": False,
        "options": [],
        "current": {},
    }


def _label_variable(label: str, series: str) -> dict[str, Any]:
    """The values of a label of which a person chooses some; at first all, also where it is absent.

    Of two installations or clusters in one Prometheus each sum is so the chosen one's.
    """
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "definition": f"label_values({series}, {label})",
        "query": {"query": f"label_values({series}, {label})", "refId": f"{label}-values"},
        "hide": 0,
        "refresh": 2,
        "regex": "",
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "options": [],
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _page_variable() -> dict[str, Any]:
    value = {"selected": True, "text": PAGE, "value": PAGE}
    return {
        "name": "page",
        "label": "Address of the page",
        "type": "textbox",
        "query": PAGE,
        "hide": 0,
        "options": [value],
        "current": value,
    }


def scoped(expression: str) -> str:
    """The expression for the chosen clusters and jobs: every selector names both."""

    def selector(found: re.Match[str]) -> str:
        more = "," if found[2] == "{" and found[3] != "}" else ""
        end = found[3] if found[2] == "{" else "}" + found[2]
        return f"{found[1]}{{{_CHOSEN}{more}{end}"

    return _SERIES.sub(selector, expression)


def _row(title: str, number: int, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": place,
        "panels": [],
    }


def _panel(panel: Panel, number: int, left: int, top: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": panel.height},
        "targets": [_target(query, index, panel) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _options(panel),
    }


def _target(query: Query, index: int, panel: Panel) -> dict[str, Any]:
    return {
        "refId": chr(ord("A") + index),
        "datasource": SOURCE,
        "expr": scoped(query.expression),
        "legendFormat": query.legend or "__auto",
        "instant": panel.kind != "timeseries",
        "range": panel.kind == "timeseries",
    }


def _field(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    steps += [{"color": each.colour, "value": each.value} for each in panel.thresholds]
    field: dict[str, Any] = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
    }
    if panel.kind == "timeseries":
        field["min"] = 0
        field["custom"] = {
            "drawStyle": "line",
            "fillOpacity": 20 if panel.stacked else 5,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "showPoints": "never",
        }
    return field


def _options(panel: Panel) -> dict[str, Any]:
    last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if panel.kind == "timeseries":
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind == "bargauge":
        return {"reduceOptions": last, "orientation": "horizontal", "displayMode": "basic"}
    return {"reduceOptions": last, "colorMode": "background", "textMode": "auto"}
