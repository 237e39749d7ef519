PRAGMA application_id=1936417379;
PRAGMA user_version=1;
BEGIN TRANSACTION;
CREATE TABLE drains (
  node TEXT PRIMARY KEY, text TEXT NOT NULL
) STRICT;
CREATE TABLE nodes (
  name TEXT PRIMARY KEY, uid TEXT NOT NULL, version INTEGER NOT NULL,
  unschedulable INTEGER NOT NULL, taints TEXT NOT NULL, labels TEXT NOT NULL,
  annotations TEXT NOT NULL, drained_for TEXT NOT NULL DEFAULT ''
) STRICT;
INSERT INTO "nodes" VALUES('n1','2f83890e-6f79-45f2-8afc-ee6d60d1eaf0',2,1,'[{"key": "sickbay.dev/quarantine", "value": "NoSchedule", "effect": "gpu", "time_added": ""}]','{"sickbay.dev/quarantined": "gpu"}','{"sickbay.dev/codes": "xid:79"}','2d6282e6-a991-40fb-b072-c5c7bb613c6f');
CREATE TABLE operations (
  name TEXT PRIMARY KEY, uid TEXT NOT NULL, version INTEGER NOT NULL, node TEXT NOT NULL,
  spec TEXT NOT NULL, status TEXT NOT NULL, created_at REAL NOT NULL,
  deleting INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE quarantines (
  node TEXT PRIMARY KEY, uid TEXT NOT NULL, version INTEGER NOT NULL, spec TEXT NOT NULL,
  status TEXT NOT NULL, created_at REAL NOT NULL, deleting INTEGER NOT NULL,
  finalizer INTEGER NOT NULL
) STRICT;
INSERT INTO "quarantines" VALUES('n1','2d6282e6-a991-40fb-b072-c5c7bb613c6f',2,'{"action": "drain", "kind": "kind", "reason": "reason", "requester": "requester", "incident": "incident", "boot_id": "boot_id", "policy_hash": "policy_hash", "evidence": [{"code": "code", "component": "component", "boot_id": "boot_id", "cleared_by": "cleared_by", "rule": "rule", "incident": "incident", "message": "message", "cleared": "cleared"}], "intent_action": "drain", "record_generation": 3, "installation": "installation", "node_uid": "node_uid"}','{"phase": "Invalid", "message": "message", "node_uid": "node_uid", "admitted_at": 1800000000.0, "cordoned_at": 1800000000.0, "drain_started_at": 1800000000.0, "drained_at": 1800000000.0, "deadline_at": 1800000000.0, "overdue_at": 1800000000.0, "pre_evict": {"state": "GivenUp", "started_at": 1800000000.0, "ended_at": 1800000000.0, "message": "message"}, "notices": [{"workload": "workload", "ident": "ident", "state": "Over", "sent_at": 1800000000.0, "deadline_at": 1800000000.0, "message": "message", "eviction_request": true}], "evicted_workloads": [{"workload": "workload", "at": 1800000000.0}], "gpu_scope": {"gpus": ["gpus"], "evicted": ["evicted"], "spared": ["spared"], "read_at": 1800000000.0}, "released_because": "released_because", "overruled": true, "release_held": "release_held", "override": "override", "node_absent_since": 1800000000.0, "uncordoned": "uncordoned", "uncordoned_at": 1800000000.0, "recordons": 3, "evictions_held_until": 1800000000.0, "pods_remaining": 3, "pods_read_at": 1800000000.0, "blockers": [{"pod": "pod", "reason": "reason", "since": 1800000000.0}], "applied": {"cordoned": true, "value": "value", "off_balancers": true, "taint": "taint", "label": "label", "codes": "codes", "own_taint": "own_taint"}, "marks": {"missing": ["missing"], "since": 1800000000.0, "restored": 3, "restored_at": 1800000000.0}, "repair": {"held": "held", "exhausted": "exhausted", "exhausted_at": 1800000000.0, "test_waits_since": 1800000000.0, "evidence_at": 1800000000.0, "began_at": 1800000000.0}, "observed_generation": 3, "conditions": [{"type": "type", "status": "status", "reason": "reason", "message": "message", "observed_generation": 3, "last_transition_time": 1800000000.0}]}',1800000000.0,0,1);
CREATE TABLE record (
  id INTEGER PRIMARY KEY CHECK (id = 1), text TEXT NOT NULL, version INTEGER NOT NULL
) STRICT;
INSERT INTO "record" VALUES(1,'{}',3);
CREATE TABLE stop (
  id INTEGER PRIMARY KEY CHECK (id = 1), reason TEXT, version INTEGER NOT NULL
) STRICT;
INSERT INTO "stop" VALUES(1,'an outage',2);
COMMIT;
