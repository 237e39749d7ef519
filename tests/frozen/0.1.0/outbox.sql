PRAGMA application_id=0;
PRAGMA user_version=0;
BEGIN TRANSACTION;
CREATE TABLE alert_dead (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	route TEXT NOT NULL, 
	id TEXT NOT NULL, 
	alerts TEXT NOT NULL, 
	size INTEGER NOT NULL, 
	because TEXT NOT NULL, 
	at DOUBLE NOT NULL
);
INSERT INTO "alert_dead" VALUES(1,'chat','chat-1-595ca8adf5aa','[{"id":"595ca8adf5aaa08fd508824cf823e6d2","kind":"quarantine.cordoned","severity":"warning","at":"2025-06-15T15:06:40.000Z","node":"n1","nodes":["n1"],"summary":"n1: quarantine.cordoned","incident":"inc-n1","details":{},"key":"e7aae05c81447fe91de1e4f16faa4f0b","state":"firing","labels":{},"advice":""}]',1,'HTTP 400',1750000021.0);
CREATE TABLE alert_deliveries (
	route TEXT NOT NULL, 
	id TEXT NOT NULL, 
	grp TEXT NOT NULL, 
	alerts TEXT NOT NULL, 
	size INTEGER NOT NULL, 
	attempts INTEGER NOT NULL, 
	first_at DOUBLE NOT NULL, 
	next_at DOUBLE NOT NULL, 
	claimed_by TEXT NOT NULL, 
	claimed_until DOUBLE NOT NULL, 
	PRIMARY KEY (route)
);
INSERT INTO "alert_deliveries" VALUES('chat','chat-3-3fae8ab2ea73','','[{"id":"3fae8ab2ea73f5fdcb4aa7d7e31bc2f6","kind":"quarantine.cordoned","severity":"warning","at":"2025-06-15T15:06:40.000Z","node":"n2","nodes":["n2"],"summary":"n2: quarantine.cordoned","incident":"inc-n2","details":{},"key":"064791ecee38d024a0f5442a91927ab1","state":"firing","labels":{},"advice":""}]',1,0,1750000200.0,1750000200.0,'',0.0);
CREATE TABLE alert_groups (
	route TEXT NOT NULL, 
	grp TEXT NOT NULL, 
	last_at DOUBLE NOT NULL, 
	PRIMARY KEY (route, grp)
);
INSERT INTO "alert_groups" VALUES('chat','',1750000200.0);
CREATE TABLE alert_lasting (
	route TEXT NOT NULL, 
	firing TEXT NOT NULL, 
	grp TEXT NOT NULL, 
	node TEXT NOT NULL, 
	delivery TEXT NOT NULL, 
	ended INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	alert TEXT NOT NULL, 
	PRIMARY KEY (route, firing)
);
INSERT INTO "alert_lasting" VALUES('chat','595ca8adf5aaa08fd508824cf823e6d2','','n1','chat-1-595ca8adf5aa',0,1750000000.0,'{"id": "595ca8adf5aaa08fd508824cf823e6d2", "kind": "quarantine.cordoned", "severity": "warning", "at": 1750000000.0, "node": "n1", "nodes": ["n1"], "summary": "n1: quarantine.cordoned", "incident": "inc-n1", "details": {}, "key": "e7aae05c81447fe91de1e4f16faa4f0b", "state": "firing", "labels": {}, "ending": null, "advice": ""}');
INSERT INTO "alert_lasting" VALUES('chat','3fae8ab2ea73f5fdcb4aa7d7e31bc2f6','','n2','chat-3-3fae8ab2ea73',0,1750000100.0,'{"id": "3fae8ab2ea73f5fdcb4aa7d7e31bc2f6", "kind": "quarantine.cordoned", "severity": "warning", "at": 1750000000.0, "node": "n2", "nodes": ["n2"], "summary": "n2: quarantine.cordoned", "incident": "inc-n2", "details": {}, "key": "064791ecee38d024a0f5442a91927ab1", "state": "firing", "labels": {}, "ending": null, "advice": ""}');
INSERT INTO "alert_lasting" VALUES('chat','b1ce0f96c2db9f8be26f5432bd1c3ebe','','n3','',0,1750000201.0,'{"id": "b1ce0f96c2db9f8be26f5432bd1c3ebe", "kind": "quarantine.cordoned", "severity": "warning", "at": 1750000000.0, "node": "n3", "nodes": ["n3"], "summary": "n3: quarantine.cordoned", "incident": "inc-n3", "details": {}, "key": "d0888d3dddd2076dd97c56d082396eed", "state": "firing", "labels": {}, "ending": null, "advice": ""}');
CREATE TABLE alert_pending (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	route TEXT NOT NULL, 
	grp TEXT NOT NULL, 
	grouped INTEGER NOT NULL, 
	accepted_at DOUBLE NOT NULL, 
	not_before DOUBLE NOT NULL, 
	held_by TEXT NOT NULL, 
	node TEXT NOT NULL, 
	firing TEXT NOT NULL, 
	alert TEXT NOT NULL
);
INSERT INTO "alert_pending" VALUES(2,'machine','',0,1750000000.0,0.0,'','n1','595ca8adf5aaa08fd508824cf823e6d2','{"id": "595ca8adf5aaa08fd508824cf823e6d2", "kind": "quarantine.cordoned", "severity": "warning", "at": 1750000000.0, "node": "n1", "nodes": ["n1"], "summary": "n1: quarantine.cordoned", "incident": "inc-n1", "details": {}, "key": "e7aae05c81447fe91de1e4f16faa4f0b", "state": "firing", "labels": {}, "ending": null, "advice": ""}');
INSERT INTO "alert_pending" VALUES(4,'machine','',0,1750000100.0,0.0,'','n2','3fae8ab2ea73f5fdcb4aa7d7e31bc2f6','{"id": "3fae8ab2ea73f5fdcb4aa7d7e31bc2f6", "kind": "quarantine.cordoned", "severity": "warning", "at": 1750000000.0, "node": "n2", "nodes": ["n2"], "summary": "n2: quarantine.cordoned", "incident": "inc-n2", "details": {}, "key": "064791ecee38d024a0f5442a91927ab1", "state": "firing", "labels": {}, "ending": null, "advice": ""}');
INSERT INTO "alert_pending" VALUES(5,'chat','',0,1750000201.0,0.0,'','n3','b1ce0f96c2db9f8be26f5432bd1c3ebe','{"id": "b1ce0f96c2db9f8be26f5432bd1c3ebe", "kind": "quarantine.cordoned", "severity": "warning", "at": 1750000000.0, "node": "n3", "nodes": ["n3"], "summary": "n3: quarantine.cordoned", "incident": "inc-n3", "details": {}, "key": "d0888d3dddd2076dd97c56d082396eed", "state": "firing", "labels": {}, "ending": null, "advice": ""}');
INSERT INTO "alert_pending" VALUES(6,'machine','',0,1750000201.0,0.0,'','n3','b1ce0f96c2db9f8be26f5432bd1c3ebe','{"id": "b1ce0f96c2db9f8be26f5432bd1c3ebe", "kind": "quarantine.cordoned", "severity": "warning", "at": 1750000000.0, "node": "n3", "nodes": ["n3"], "summary": "n3: quarantine.cordoned", "incident": "inc-n3", "details": {}, "key": "d0888d3dddd2076dd97c56d082396eed", "state": "firing", "labels": {}, "ending": null, "advice": ""}');
CREATE TABLE alert_reported (
	topic TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	node TEXT NOT NULL, 
	incident TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	PRIMARY KEY (topic)
);
INSERT INTO "alert_reported" VALUES('e7aae05c81447fe91de1e4f16faa4f0b','quarantine.cordoned','n1','inc-n1',1750000000.0);
INSERT INTO "alert_reported" VALUES('064791ecee38d024a0f5442a91927ab1','quarantine.cordoned','n2','inc-n2',1750000100.0);
INSERT INTO "alert_reported" VALUES('d0888d3dddd2076dd97c56d082396eed','quarantine.cordoned','n3','inc-n3',1750000201.0);
CREATE TABLE sickbay_outbox_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT sickbay_outbox_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "sickbay_outbox_version" VALUES('1.0');
CREATE INDEX alert_pending_route ON alert_pending (route, grp, seq);
CREATE INDEX alert_pending_node ON alert_pending (route, node, seq);
CREATE INDEX alert_reported_node ON alert_reported (node);
CREATE INDEX alert_reported_at ON alert_reported (at);
CREATE INDEX alert_lasting_node ON alert_lasting (node);
CREATE INDEX alert_lasting_delivery ON alert_lasting (route, delivery);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('alert_pending',6);
INSERT INTO "sqlite_sequence" VALUES('alert_dead',1);
COMMIT;
