PRAGMA application_id=0;
PRAGMA user_version=0;
BEGIN TRANSACTION;
CREATE TABLE evidence (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	node VARCHAR(253) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	body JSON NOT NULL, 
	replica VARCHAR(253) DEFAULT '' NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "evidence" VALUES(1,1800000000.0,'n1','base','{}','');
CREATE TABLE sickbay_history_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT sickbay_history_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "sickbay_history_version" VALUES('1.0');
CREATE TABLE transitions (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	kind VARCHAR(40) NOT NULL, 
	node VARCHAR(253) NOT NULL, 
	incident VARCHAR(64) NOT NULL, 
	summary TEXT NOT NULL, 
	details JSON NOT NULL, 
	replica VARCHAR(253) DEFAULT '' NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "transitions" VALUES(1,1800000001.0,'incident.opened','n1','inc-1','n1: incident.opened at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(2,1800000002.0,'incident.changed','n1','inc-1','n1: incident.changed at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(3,1800000003.0,'incident.closed','n1','inc-1','n1: incident.closed at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(4,1800000004.0,'quarantine.held','n1','inc-1','n1: quarantine.held at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(5,1800000005.0,'quarantine.suppressed','n1','inc-1','n1: quarantine.suppressed at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(6,1800000006.0,'quarantine.admitted','n1','inc-1','n1: quarantine.admitted at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(7,1800000007.0,'quarantine.cordoned','n1','inc-1','n1: quarantine.cordoned at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(8,1800000008.0,'quarantine.marks_missing','n1','inc-1','n1: quarantine.marks_missing at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(9,1800000009.0,'quarantine.marks_restored','n1','inc-1','n1: quarantine.marks_restored at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(10,1800000010.0,'quarantine.draining','n1','inc-1','n1: quarantine.draining at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(11,1800000011.0,'work.moved','n1','inc-1','n1: work.moved at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(12,1800000012.0,'work.blocked','n1','inc-1','n1: work.blocked at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(13,1800000013.0,'work.forced','n1','inc-1','n1: work.forced at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(14,1800000014.0,'job.hit','n1','inc-1','n1: job.hit at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(15,1800000015.0,'job.stopped','n1','inc-1','n1: job.stopped at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(16,1800000016.0,'quarantine.overdue','n1','inc-1','n1: quarantine.overdue at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(17,1800000017.0,'quarantine.hook','n1','inc-1','n1: quarantine.hook at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(18,1800000018.0,'quarantine.hook_failed','n1','inc-1','n1: quarantine.hook_failed at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(19,1800000019.0,'quarantine.drained','n1','inc-1','n1: quarantine.drained at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(20,1800000020.0,'quarantine.adopted','n1','inc-1','n1: quarantine.adopted at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(21,1800000021.0,'quarantine.node_absent','n1','inc-1','n1: quarantine.node_absent at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(22,1800000022.0,'quarantine.node_back','n1','inc-1','n1: quarantine.node_back at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(23,1800000023.0,'quarantine.releasing','n1','inc-1','n1: quarantine.releasing at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(24,1800000024.0,'quarantine.released','n1','inc-1','n1: quarantine.released at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(25,1800000025.0,'quarantine.overruled','n1','inc-1','n1: quarantine.overruled at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(26,1800000026.0,'quarantine.release_held','n1','inc-1','n1: quarantine.release_held at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(27,1800000027.0,'quarantine.uncordoned','n1','inc-1','n1: quarantine.uncordoned at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(28,1800000028.0,'quarantine.overridden','n1','inc-1','n1: quarantine.overridden at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(29,1800000029.0,'repair.suppressed','n1','inc-1','n1: repair.suppressed at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(30,1800000030.0,'repair.ordered','n1','inc-1','n1: repair.ordered at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(31,1800000031.0,'repair.ended','n1','inc-1','n1: repair.ended at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(32,1800000032.0,'repair.exhausted','n1','inc-1','n1: repair.exhausted at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(33,1800000033.0,'node.test_exhausted','n1','inc-1','n1: node.test_exhausted at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(34,1800000034.0,'node.requested','n1','inc-1','n1: node.requested at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(35,1800000035.0,'node.lemon','n1','inc-1','n1: node.lemon at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(36,1800000036.0,'agent.silent','n1','inc-1','n1: agent.silent at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(37,1800000037.0,'agent.silent_failing','n1','inc-1','n1: agent.silent_failing at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(38,1800000038.0,'agent.back','n1','inc-1','n1: agent.back at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(39,1800000039.0,'agent.conflict','n1','inc-1','n1: agent.conflict at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(40,1800000040.0,'evidence.lost','n1','inc-1','n1: evidence.lost at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(41,1800000041.0,'history.lost','n1','inc-1','n1: history.lost at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(42,1800000042.0,'fleet.stopped','n1','inc-1','n1: fleet.stopped at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(43,1800000043.0,'fleet.resumed','n1','inc-1','n1: fleet.resumed at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(44,1800000044.0,'fleet.common_cause','n1','inc-1','n1: fleet.common_cause at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(45,1800000045.0,'fleet.common_cause_over','n1','inc-1','n1: fleet.common_cause_over at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(46,1800000046.0,'fleet.cooldown','n1','inc-1','n1: fleet.cooldown at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(47,1800000047.0,'fleet.cooldown_over','n1','inc-1','n1: fleet.cooldown_over at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(48,1800000048.0,'fleet.record_lost','n1','inc-1','n1: fleet.record_lost at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(49,1800000049.0,'fleet.record_whole','n1','inc-1','n1: fleet.record_whole at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(50,1800000050.0,'network.blamed','n1','inc-1','n1: network.blamed at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(51,1800000051.0,'network.cleared','n1','inc-1','n1: network.cleared at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(52,1800000052.0,'network.node_lost','n1','inc-1','n1: network.node_lost at 1.8e+09','{"limit": "5%"}','replica-0');
INSERT INTO "transitions" VALUES(53,1800000053.0,'network.node_found','n1','inc-1','n1: network.node_found at 1.8e+09','{"limit": "5%"}','replica-0');
CREATE INDEX transitions_incident_at ON transitions (incident, at);
CREATE INDEX transitions_node_at ON transitions (node, at, id);
CREATE INDEX transitions_at ON transitions (at, id);
CREATE INDEX transitions_kind_at ON transitions (kind, at, node);
CREATE INDEX evidence_at ON evidence (at, id);
CREATE INDEX evidence_node_at ON evidence (node, at, id);
COMMIT;
