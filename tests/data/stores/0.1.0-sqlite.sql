BEGIN TRANSACTION;
CREATE TABLE api_keys (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	key_hash VARCHAR(64) NOT NULL, 
	scopes JSON NOT NULL, 
	created_at DATETIME NOT NULL, 
	last_used_at DATETIME, 
	revoked_at DATETIME, 
	expires_at DATETIME, 
	CONSTRAINT pk_api_keys PRIMARY KEY (id), 
	CONSTRAINT uq_api_keys_key_hash UNIQUE (key_hash), 
	CONSTRAINT uq_api_keys_name UNIQUE (name)
);
INSERT INTO "api_keys" VALUES(1,'ci','de2fc86b487db319d1e625fd8bc3ac62484d0c9a99f67cec99b2cce9f7c952b5','["admin"]','2026-11-28 23:20:16.352967','2026-11-28 23:20:16.463442',NULL,NULL);
CREATE TABLE client_turns (
	client TEXT NOT NULL, 
	turn INTEGER NOT NULL, 
	CONSTRAINT pk_client_turns PRIMARY KEY (client)
);
INSERT INTO "client_turns" VALUES('ci',1);
CREATE TABLE environments (
	id INTEGER NOT NULL, 
	fingerprint VARCHAR(64) NOT NULL, 
	device TEXT NOT NULL, 
	engine TEXT NOT NULL, 
	engine_version TEXT NOT NULL, 
	triton TEXT NOT NULL, 
	kernel_hash TEXT NOT NULL, 
	torch TEXT NOT NULL, 
	cuda TEXT NOT NULL, 
	driver TEXT NOT NULL, 
	backends TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_environments PRIMARY KEY (id), 
	CONSTRAINT uq_environments_fingerprint UNIQUE (fingerprint)
);
INSERT INTO "environments" VALUES(1,'c5fa7bf322adf9f20af28df2e12c33405e7c4cc696e3b766e33d4f1caeb57a0e','NVIDIA_L40S','sglang','0.5.16','3.6.0','abababababababababababababababababababababababababababababababab','','','','');
CREATE TABLE idempotency_keys (
	client TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	body_hash VARCHAR(64) NOT NULL, 
	job_id VARCHAR(26) NOT NULL, 
	created_at DATETIME NOT NULL, 
	job_ids JSON, 
	CONSTRAINT pk_idempotency_keys PRIMARY KEY (client, "key"), 
	CONSTRAINT fk_idempotency_keys_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id)
);
INSERT INTO "idempotency_keys" VALUES('ci','build-1','4272ea9871904714abc5d2df9e9b4fb9e319ba42afc1537abc8058e1385eb2e9','01m8j7b6shegxttmf5aypxkp27','2026-11-28 23:20:16.915155',NULL);
CREATE TABLE job_events (
	job_id VARCHAR(26) NOT NULL, 
	seq INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	at DATETIME NOT NULL, 
	data JSON NOT NULL, 
	CONSTRAINT pk_job_events PRIMARY KEY (job_id, seq), 
	CONSTRAINT fk_job_events_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id)
);
INSERT INTO "job_events" VALUES('01m8j7b6shegxttmf5aypxkp27',1,'submitted','2026-11-28 23:20:16.915155','{"client": "ci"}');
INSERT INTO "job_events" VALUES('01m8j7b6shegxttmf5aypxkp27',2,'waiting','2026-11-28 23:20:16.915155','{"reason": "no worker with NVIDIA_L40S and sglang 0.5.16 was ever seen"}');
INSERT INTO "job_events" VALUES('01m8j7b6vs8x9e38nscy72cpv0',1,'submitted','2026-11-28 23:20:17.016595','{"client": "ci"}');
INSERT INTO "job_events" VALUES('01m8j7b6vs8x9e38nscy72cpv0',2,'waiting','2026-11-28 23:20:17.016595','{"reason": "no worker with NVIDIA_L40S and sglang 0.5.16 was ever seen"}');
INSERT INTO "job_events" VALUES('01m8j7b6shegxttmf5aypxkp27',3,'leased','2026-11-28 23:20:17.556904','{"owner": "test", "attempt": 1}');
INSERT INTO "job_events" VALUES('01m8j7b6shegxttmf5aypxkp27',4,'running','2026-11-28 23:20:17.707430','{"run_id": 1, "environment": {"device": "NVIDIA_L40S", "engine": "sglang", "engine_version": "0.5.16", "triton": "3.6.0", "kernel_hash": "abababababababababababababababababababababababababababababababab", "torch": "", "cuda": "", "driver": "", "backends": ""}}');
INSERT INTO "job_events" VALUES('01m8j7b6shegxttmf5aypxkp27',5,'trials','2026-11-28 23:20:17.771420','{"tried": 100, "new": 100, "statuses": {"ok": 100}, "best_us": {"M=1 up": 0.5, "M=1 down": 1.5}, "incumbents_us": {}}');
INSERT INTO "job_events" VALUES('01m8j7b6shegxttmf5aypxkp27',6,'done','2026-11-28 23:20:17.813862','{"run_id": 1, "totals": {"configs_compiled": 0, "measurements": 100, "wall_s": 0.0, "compile_s": 0.0, "measure_s": 0.0, "extra": {}}}');
CREATE TABLE jobs (
	id VARCHAR(26) NOT NULL, 
	request JSON NOT NULL, 
	request_key VARCHAR(64) NOT NULL, 
	device TEXT NOT NULL, 
	model TEXT NOT NULL, 
	needs_gpu BOOLEAN NOT NULL, 
	priority SMALLINT NOT NULL, 
	state TEXT NOT NULL, 
	client TEXT NOT NULL, 
	attempts INTEGER NOT NULL, 
	owner TEXT NOT NULL, 
	fence INTEGER NOT NULL, 
	lease_expires_at DATETIME, 
	cancel_requested BOOLEAN NOT NULL, 
	event_count INTEGER NOT NULL, 
	run_id INTEGER, 
	error TEXT NOT NULL, 
	available_at DATETIME NOT NULL, 
	announced_at DATETIME NOT NULL, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	finished_at DATETIME, 
	engine TEXT DEFAULT '' NOT NULL, 
	clients JSON DEFAULT '[]' NOT NULL, 
	trial_count INTEGER DEFAULT '0' NOT NULL, 
	started_at DATETIME, 
	gpu_s DOUBLE, 
	gpu_idle_s DOUBLE, 
	cpu_s DOUBLE, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT fk_jobs_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id)
);
INSERT INTO "jobs" VALUES('01m8j7b6shegxttmf5aypxkp27','{"problem": "fused_moe:E=257,N=64,K=7168,top_k=9,dtype=int8_w8a8,per_channel_quant,shared_experts=1", "device": "NVIDIA_L40S", "engine": "sglang==0.5.16", "measure": "gpu", "batch_sizes": null, "gemms": ["up", "down"], "effort": "standard", "wide": null, "seed": 0, "model": "deepseek-r1", "architecture": "DeepseekV3ForCausalLM", "checkpoint": "fp8_w8a8 fp8"}','0e11ee9b13e815a540439774fafdc2baca535fe30403a0af9146c05c48843e7a','NVIDIA_L40S','deepseek-r1',1,1,'done','ci',1,'test',1,NULL,0,6,1,'','2026-11-28 23:20:16.915155','2026-11-28 23:20:16.915155','2026-11-28 23:20:16.915155','2026-11-28 23:20:17.813862','2026-11-28 23:20:17.813862','sglang==0.5.16','["ci"]',100,'2026-11-28 23:20:17.556904',0.0,0.0,0.0);
INSERT INTO "jobs" VALUES('01m8j7b6vs8x9e38nscy72cpv0','{"problem": "fused_moe:E=257,N=64,K=7168,top_k=9,dtype=int8_w8a8,per_channel_quant,shared_experts=1", "device": "NVIDIA_L40S", "engine": "sglang==0.5.16", "measure": "gpu", "batch_sizes": null, "gemms": ["up", "down"], "effort": "standard", "wide": null, "seed": 1, "model": "deepseek-r1", "architecture": "DeepseekV3ForCausalLM", "checkpoint": "fp8_w8a8 fp8"}','ad6bdab9e2eb43330697b03b53d18f3f2d3bab5c7c14f0846cfff88e2563d7d7','NVIDIA_L40S','deepseek-r1',1,1,'queued','ci',0,'',0,NULL,0,2,NULL,'','2026-11-28 23:20:17.016595','2026-11-28 23:20:17.016595','2026-11-28 23:20:17.016595','2026-11-28 23:20:17.016595',NULL,'sglang==0.5.16','["ci"]',0,NULL,NULL,NULL,NULL);
CREATE TABLE nightly_runs (
	id INTEGER NOT NULL, 
	schedule TEXT NOT NULL, 
	date DATE NOT NULL, 
	summary JSON, 
	started_at DATETIME NOT NULL, 
	finished_at DATETIME, 
	CONSTRAINT pk_nightly_runs PRIMARY KEY (id), 
	CONSTRAINT uq_nightly_runs_schedule_date UNIQUE (schedule, date)
);
INSERT INTO "nightly_runs" VALUES(1,'nightly','2026-11-28','{"schedule": "nightly", "date": "2026-11-28", "watched": 0, "missing": [], "stale": [], "revalidated": [], "models": [], "errors": [{"what": "deepseek-r1 TP 32 EP 1 on NVIDIA_L40S", "why": "deepseek-r1: tp=32 leaves N=64, which the engine refuses: the output_size of gate''s and up''s weight = 64 is not divisible by weight quantization block_n = 128; the nearest that works with sglang 0.5.16 is tp=16; with sglang''s --ep-size 32 or vLLM''s --enable-expert-parallel a rank holds whole experts: add --ep 32"}], "unmet": [], "submitted": [], "waiting": [], "not_submitted": [], "rounds": [{"began": "2026-11-28T23:20:17.232878Z", "ended": "2026-11-28T23:20:17.295293Z", "watch_list": "", "error": ""}]}','2026-11-28 23:20:17.232878','2026-11-28 23:20:17.295293');
CREATE TABLE problems (
	id INTEGER NOT NULL, 
	spec TEXT NOT NULL, 
	family TEXT NOT NULL, 
	CONSTRAINT pk_problems PRIMARY KEY (id), 
	CONSTRAINT uq_problems_spec UNIQUE (spec)
);
INSERT INTO "problems" VALUES(1,'fused_moe:E=256,N=64,K=7168,top_k=8,dtype=int8_w8a8,per_channel_quant','fused_moe');
CREATE TABLE runs (
	id INTEGER NOT NULL, 
	fingerprint VARCHAR(64) NOT NULL, 
	problem_id INTEGER NOT NULL, 
	environment_id INTEGER NOT NULL, 
	measure TEXT NOT NULL, 
	effort TEXT NOT NULL, 
	seed BIGINT NOT NULL, 
	points JSON NOT NULL, 
	space TEXT NOT NULL, 
	recording TEXT NOT NULL, 
	routing TEXT DEFAULT '' NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	totals JSON, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	CONSTRAINT pk_runs PRIMARY KEY (id), 
	CONSTRAINT fk_runs_environment_id_environments FOREIGN KEY(environment_id) REFERENCES environments (id), 
	CONSTRAINT fk_runs_problem_id_problems FOREIGN KEY(problem_id) REFERENCES problems (id), 
	CONSTRAINT uq_runs_fingerprint UNIQUE (fingerprint)
);
INSERT INTO "runs" VALUES(1,'58350fe33aaa712e1a19415b17f9245b7a317254f03c747be912b2d8d71b87f7',1,1,'replay','quick',0,'[[1, "up"], [1, "down"]]','sglang','cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd','','done','','{"configs_compiled": 0, "measurements": 100, "wall_s": 0.0, "compile_s": 0.0, "measure_s": 0.0, "extra": {}}','2026-11-28 23:20:17.643295','2026-11-28 23:20:17.813221');
CREATE TABLE sessions (
	token_hash VARCHAR(64) NOT NULL, 
	key_id INTEGER NOT NULL, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME NOT NULL, 
	CONSTRAINT pk_sessions PRIMARY KEY (token_hash), 
	CONSTRAINT fk_sessions_key_id_api_keys FOREIGN KEY(key_id) REFERENCES api_keys (id)
);
INSERT INTO "sessions" VALUES('67a97ec0b9490499141115b4765361ce74348513881a7f5ec26440015ddf6a67',1,'2026-11-28 23:20:16.408844','2026-11-29 23:20:16.408844');
CREATE TABLE trials (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	part TEXT NOT NULL, 
	batch_size INTEGER NOT NULL, 
	new_tokens INTEGER DEFAULT '0' NOT NULL, 
	cached_tokens INTEGER DEFAULT '0' NOT NULL, 
	backend TEXT DEFAULT 'triton' NOT NULL, 
	config_key TEXT NOT NULL, 
	config JSON NOT NULL, 
	compile_status TEXT NOT NULL, 
	shared_bytes INTEGER, 
	n_regs INTEGER, 
	n_spills INTEGER, 
	compile_detail TEXT NOT NULL, 
	cached BOOLEAN NOT NULL, 
	status TEXT NOT NULL, 
	median_us DOUBLE, 
	min_us DOUBLE, 
	samples INTEGER NOT NULL, 
	detail TEXT NOT NULL, 
	CONSTRAINT pk_trials PRIMARY KEY (id), 
	CONSTRAINT fk_trials_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id), 
	CONSTRAINT uq_trials_place UNIQUE (run_id, part, batch_size, new_tokens, cached_tokens, config_key, backend)
);
INSERT INTO "trials" VALUES(1,1,'up',1,0,0,'triton','BLOCK_SIZE_M=16,num_stages=0','{"BLOCK_SIZE_M": 16, "num_stages": 0}','ok',0,NULL,NULL,'',0,'ok',0.5,0.0,3,'');
INSERT INTO "trials" VALUES(2,1,'down',1,0,0,'triton','BLOCK_SIZE_M=16,num_stages=1','{"BLOCK_SIZE_M": 16, "num_stages": 1}','ok',1,NULL,NULL,'',0,'ok',1.5,1.0,3,'');
INSERT INTO "trials" VALUES(3,1,'up',1,0,0,'triton','BLOCK_SIZE_M=16,num_stages=2','{"BLOCK_SIZE_M": 16, "num_stages": 2}','ok',2,NULL,NULL,'',0,'ok',2.5,2.0,3,'');
INSERT INTO "trials" VALUES(4,1,'down',1,0,0,'triton','BLOCK_SIZE_M=16,num_stages=3','{"BLOCK_SIZE_M": 16, "num_stages": 3}','ok',3,NULL,NULL,'',0,'ok',3.5,3.0,3,'');
CREATE TABLE tuner_alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT tuner_alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "tuner_alembic_version" VALUES('0018');
CREATE TABLE watches (
	id INTEGER NOT NULL, 
	watch JSON NOT NULL, 
	watch_key VARCHAR(64) NOT NULL, 
	client TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_watches PRIMARY KEY (id), 
	CONSTRAINT uq_watches_watch_key UNIQUE (watch_key)
);
INSERT INTO "watches" VALUES(1,'{"models": ["deepseek-r1"], "devices": ["NVIDIA_L40S"], "tp": [32], "ep": [1], "dtypes": [], "batch_sizes": [], "engine": "sglang", "measure": "gpu", "effort": "standard"}','5d2853d646bf025cea5a5c712dab097ee18ac8e72d82e100ecc16a72948b73dd','ci','2026-11-28 23:20:17.200801');
CREATE TABLE winners (
	id INTEGER NOT NULL, 
	problem_id INTEGER NOT NULL, 
	environment_id INTEGER NOT NULL, 
	status TEXT NOT NULL, 
	part TEXT NOT NULL, 
	batch_size INTEGER NOT NULL, 
	new_tokens INTEGER DEFAULT '0' NOT NULL, 
	cached_tokens INTEGER DEFAULT '0' NOT NULL, 
	run_id INTEGER NOT NULL, 
	config JSON NOT NULL, 
	median_us DOUBLE, 
	compile_status TEXT NOT NULL, 
	shared_bytes INTEGER, 
	n_regs INTEGER, 
	n_spills INTEGER, 
	compile_detail TEXT NOT NULL, 
	cached BOOLEAN NOT NULL, 
	incumbents JSON NOT NULL, 
	without_us TEXT DEFAULT '' NOT NULL, 
	over TEXT DEFAULT '' NOT NULL, 
	over_us DOUBLE, 
	reason TEXT NOT NULL, 
	published_at DATETIME NOT NULL, server JSON DEFAULT '{}' NOT NULL, 
	CONSTRAINT pk_winners PRIMARY KEY (id), 
	CONSTRAINT fk_winners_environment_id_environments FOREIGN KEY(environment_id) REFERENCES environments (id), 
	CONSTRAINT fk_winners_problem_id_problems FOREIGN KEY(problem_id) REFERENCES problems (id), 
	CONSTRAINT fk_winners_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id), 
	CONSTRAINT uq_winners_place UNIQUE (environment_id, problem_id, status, batch_size, new_tokens, cached_tokens, part)
);
INSERT INTO "winners" VALUES(1,1,1,'ok','up',1,0,0,1,'{"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}',10.0,'ok',73728,128,0,'',0,'{"default": {"backend": "triton", "config": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2}, "status": "ok", "median_us": 12.5, "shared_bytes": 49152}}','','default',12.5,'faster than default','2026-11-28 23:20:17.797550','{}');
CREATE TABLE workers (
	id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	host TEXT NOT NULL, 
	gpu TEXT NOT NULL, 
	device TEXT NOT NULL, 
	devices JSON, 
	engines JSON NOT NULL, 
	packages JSON NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	drain BOOLEAN NOT NULL, 
	started_at DATETIME NOT NULL, 
	seen_at DATETIME NOT NULL, 
	CONSTRAINT pk_workers PRIMARY KEY (id)
);
INSERT INTO "workers" VALUES('w1','gpu-0','node-1','0','NVIDIA_L40S',NULL,'["sglang==0.5.16"]','{"tuner": "0.1.0"}','active','',0,'2026-11-28 23:20:17.853952','2026-11-28 23:20:17.853952');
CREATE INDEX ix_environments_device_engine ON environments (device, engine);
CREATE INDEX ix_workers_seen_at ON workers (seen_at);
CREATE INDEX ix_sessions_expires_at ON sessions (expires_at);
CREATE INDEX ix_jobs_announced ON jobs (announced_at) WHERE state = 'queued';
CREATE INDEX ix_jobs_lease ON jobs (state, lease_expires_at);
CREATE INDEX ix_jobs_page ON jobs (created_at, id);
CREATE INDEX ix_jobs_page_client ON jobs (client, created_at, id);
CREATE INDEX ix_jobs_page_device ON jobs (device, created_at, id);
CREATE INDEX ix_jobs_page_model ON jobs (model, created_at, id);
CREATE INDEX ix_jobs_page_state ON jobs (state, created_at, id);
CREATE INDEX ix_jobs_request_key ON jobs (request_key, finished_at);
CREATE INDEX ix_jobs_turn ON jobs (needs_gpu, client, priority, created_at, id) WHERE state = 'queued';
CREATE INDEX ix_jobs_turn_device ON jobs (needs_gpu, device, client, priority, created_at, id) WHERE state = 'queued';
CREATE UNIQUE INDEX uq_jobs_unfinished ON jobs (request_key) WHERE state IN ('queued', 'leased', 'running') AND NOT cancel_requested;
CREATE INDEX ix_winners_environment_id_published_at ON winners (environment_id, published_at);
CREATE INDEX ix_idempotency_keys_created_at ON idempotency_keys (created_at);
COMMIT;
