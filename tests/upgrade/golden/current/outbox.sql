BEGIN TRANSACTION;
CREATE TABLE penstock_inbox (
	consumer VARCHAR(128) NOT NULL, 
	"key" VARCHAR(128) NOT NULL, 
	seen_ms BIGINT NOT NULL, 
	PRIMARY KEY (consumer, "key")
);
INSERT INTO "penstock_inbox" VALUES('billing','order 1',1795031602486);
CREATE TABLE penstock_outbox (
	id INTEGER NOT NULL, 
	"key" VARCHAR(32) NOT NULL, 
	queue VARCHAR(128) NOT NULL, 
	body BLOB NOT NULL, 
	attributes BLOB, 
	message_group VARCHAR(128), 
	dedup_id VARCHAR(128), 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	due_ms BIGINT, 
	created_ms BIGINT NOT NULL, 
	state SMALLINT DEFAULT '0' NOT NULL, 
	claim VARCHAR(32), 
	claimed_until_ms BIGINT DEFAULT '0' NOT NULL, 
	tries INTEGER DEFAULT '0' NOT NULL, 
	done_ms BIGINT, 
	error TEXT, 
	PRIMARY KEY (id)
);
INSERT INTO "penstock_outbox" VALUES(1,'4bd2cbbece3643a0abe899143d04be36','orders',X'74776F2074656173',X'81A57461626C6507',NULL,NULL,3,NULL,1795031602485,0,NULL,0,0,NULL,NULL);
INSERT INTO "penstock_outbox" VALUES(2,'f2d9fa0ca157485484ce2bb1fd3698cc','ledger.fifo',X'656E747279',NULL,'anna','1',0,NULL,1795031602485,0,NULL,0,0,NULL,NULL);
CREATE INDEX penstock_outbox_done ON penstock_outbox (done_ms) WHERE state != 0;
CREATE INDEX penstock_outbox_pending ON penstock_outbox (id) WHERE state = 0;
CREATE INDEX penstock_outbox_order ON penstock_outbox (queue, message_group, id) WHERE state = 0 AND message_group IS NOT NULL;
CREATE INDEX penstock_inbox_seen ON penstock_inbox (seen_ms);
COMMIT;
