-- A dump of a file of the last version without migrations.
BEGIN TRANSACTION;
CREATE TABLE events (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	job_id VARCHAR(64) NOT NULL, 
	time DATETIME NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	reason TEXT, 
	FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "events" VALUES(1,'job-0','2026-01-02 03:04:05.000000','queued',NULL);
CREATE TABLE jobs (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	id VARCHAR(64) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	project VARCHAR(64) NOT NULL, 
	priority INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	reason TEXT, 
	stop_requested BOOLEAN NOT NULL, 
	on_ray BOOLEAN NOT NULL, 
	has_steps BOOLEAN NOT NULL, 
	submitted_at DATETIME NOT NULL, 
	started_at DATETIME, 
	ended_at DATETIME, 
	attempts INTEGER NOT NULL, 
	dropped_samples INTEGER NOT NULL, 
	token_hash VARCHAR(64), 
	spec TEXT NOT NULL, 
	"plan" TEXT, 
	result TEXT, 
	failure TEXT, 
	UNIQUE (id)
);
INSERT INTO "jobs" VALUES(1,'job-0','old','default',0,'succeeded',NULL,0,0,0,'2026-01-02 03:04:05.000000','2026-01-02 03:04:05.000000','2026-01-02 03:04:05.000000',0,0,NULL,'{"name":"old","model":{"factory":"workers.models:sequence_ranker","params":{},"sharding":{}},"data":{"source":"movielens-100k","order":"time","path":null,"params":{},"columns":null,"max_bad_rows":0},"training":{"batch_size":1024,"epochs":1,"max_steps":null,"schedule":"prioritized","seed":0,"dense_lr":0.01,"sparse_optimizer":{"name":"rowwise_adagrad","lr":0.05},"dedup":false,"max_skipped_steps":0},"workers":{"count":2,"cpus":1.0,"gpus":0.0,"backend":"auto","hang_timeout_s":300.0},"evaluation":{"every_steps":null,"early_stopping":null},"checkpoint":{"every_steps":null,"keep":2,"timeout_s":3600.0},"retries":{"max":3},"queue":{"priority":0,"project":"default","deadline_s":null}}',NULL,NULL,NULL);
CREATE TABLE steps (
	job_id VARCHAR(64) NOT NULL, 
	step INTEGER NOT NULL, 
	rank INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	time DATETIME NOT NULL, 
	samples INTEGER NOT NULL, 
	step_ms FLOAT NOT NULL, 
	compute_ms FLOAT NOT NULL, 
	comm_ms FLOAT NOT NULL, 
	exposed_ms FLOAT NOT NULL, 
	hidden_ms FLOAT NOT NULL, 
	comm_overlap FLOAT, 
	ids INTEGER NOT NULL, 
	overlapped_ids INTEGER, 
	id_overlap FLOAT, 
	loss FLOAT, 
	data_wait_ms FLOAT NOT NULL, 
	collectives BLOB NOT NULL, 
	clock_offset_ms FLOAT, 
	clock_uncertainty_ms FLOAT, 
	PRIMARY KEY (job_id, step, rank), 
	FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
INSERT INTO "steps" VALUES('job-0',3,0,0,'2026-01-02 03:04:05.000000',512,20.0,15.0,8.0,2.0,6.0,0.75,1000,250,0.25,0.5,0.0,X'02016400000000000000C8000000000000000000000000000040000000000000004002026400000000000000C80000000000000000000000000018400000000000000000',NULL,NULL);
CREATE TABLE submissions (
	"key" VARCHAR(255) NOT NULL, 
	fingerprint VARCHAR(64) NOT NULL, 
	job_id VARCHAR(64) NOT NULL, 
	answer TEXT NOT NULL, 
	PRIMARY KEY ("key"), 
	FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE TABLE worker_groups (
	job_id VARCHAR(64) NOT NULL, 
	attempt INTEGER NOT NULL, 
	world_size INTEGER NOT NULL, 
	PRIMARY KEY (job_id, attempt), 
	FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE INDEX jobs_by_project ON jobs (project, number);
CREATE INDEX ix_jobs_state ON jobs (state);
CREATE INDEX ix_submissions_job_id ON submissions (job_id);
CREATE INDEX ix_events_job_id ON events (job_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',1);
INSERT INTO "sqlite_sequence" VALUES('events',1);
COMMIT;
