"""Which of our marks a Node lacks, or bears changed."""

import json
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.node_names import APPLIED, CODES, LABEL, TAINT
from aggregator.cluster.port import (
    Action,
    Node,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    Taint,
)
from aggregator.quarantine.decide.lost_marks import ALL_MARKS, missing_marks

QUARANTINE = Quarantine(
    "n1",
    "uid-q",
    "1",
    QuarantineSpec(Action.CORDON, "gpu", "why"),
    QuarantineStatus(node_uid="uid"),
)
TEXT = json.dumps({"unschedulable": True, "value": "gpu"})
OURS = Taint(TAINT, "gpu", "NoSchedule")
OTHER = Taint("other", "gpu", "NoSchedule")
MARKED = Node(
    "n1",
    "uid",
    "1",
    unschedulable=True,
    taints=(OTHER, OURS),
    labels={LABEL: "gpu"},
    annotations={APPLIED: TEXT, CODES: "xid:79"},
    condition="True",
)


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({}, ()),
        ({"condition": None}, ()),
        ({"condition": ""}, ("condition",)),
        ({"condition": "False"}, ("condition",)),
        ({"taints": (OTHER,)}, ("taint",)),
        ({"taints": ()}, ("taint",)),
        ({"taints": (replace(OURS, value="disk"),)}, ("taint",)),
        ({"taints": (replace(OURS, effect="NoExecute"),)}, ("taint",)),
        ({"labels": {}}, ("label",)),
        ({"labels": {LABEL: "disk"}}, ("label",)),
        ({"annotations": {APPLIED: TEXT}}, ("codes",)),
        ({"annotations": {APPLIED: TEXT, CODES: ""}}, ()),
        ({"annotations": {CODES: "xid:79"}}, ("applied",)),
        # Without a record of what was set, any value of ours will do.
        (
            {
                "annotations": {CODES: "xid:79"},
                "taints": (replace(OURS, value="disk"),),
                "labels": {LABEL: "disk"},
            },
            ("applied",),
        ),
        ({"annotations": {CODES: "", APPLIED: "{}"}, "labels": {}}, ("label", "applied")),
        ({"annotations": {}, "labels": {}, "taints": (), "condition": ""}, ALL_MARKS),
        ({"uid": "another"}, ALL_MARKS),
    ],
)
def test_a_mark_is_missing_where_it_is_gone_or_changed(
    changes: dict[str, Any], missing: tuple[str, ...]
) -> None:
    assert missing_marks(replace(MARKED, **changes), QUARANTINE) == missing
