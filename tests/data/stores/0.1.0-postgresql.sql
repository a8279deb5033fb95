CREATE TABLE public.api_keys (
    id integer NOT NULL,
    name text NOT NULL,
    key_hash character varying(64) NOT NULL,
    scopes json NOT NULL,
    created_at timestamp with time zone NOT NULL,
    last_used_at timestamp with time zone,
    revoked_at timestamp with time zone,
    expires_at timestamp with time zone
);
CREATE SEQUENCE public.api_keys_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.api_keys_id_seq OWNED BY public.api_keys.id;
CREATE TABLE public.client_turns (
    client text NOT NULL,
    turn integer NOT NULL
);
CREATE TABLE public.environments (
    id integer NOT NULL,
    fingerprint character varying(64) NOT NULL,
    device text NOT NULL,
    engine text NOT NULL,
    engine_version text NOT NULL,
    triton text NOT NULL,
    kernel_hash text NOT NULL,
    torch text NOT NULL,
    cuda text NOT NULL,
    driver text NOT NULL,
    backends text DEFAULT ''::text NOT NULL
);
CREATE SEQUENCE public.environments_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.environments_id_seq OWNED BY public.environments.id;
CREATE TABLE public.idempotency_keys (
    client text NOT NULL,
    key text NOT NULL,
    body_hash character varying(64) NOT NULL,
    job_id character varying(26) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    job_ids json
);
CREATE TABLE public.job_events (
    job_id character varying(26) NOT NULL,
    seq integer NOT NULL,
    kind text NOT NULL,
    at timestamp with time zone NOT NULL,
    data json NOT NULL
);
CREATE TABLE public.jobs (
    id character varying(26) NOT NULL,
    request json NOT NULL,
    request_key character varying(64) NOT NULL,
    device text NOT NULL,
    model text NOT NULL,
    needs_gpu boolean NOT NULL,
    priority smallint NOT NULL,
    state text NOT NULL,
    client text NOT NULL,
    attempts integer NOT NULL,
    owner text NOT NULL,
    fence integer NOT NULL,
    lease_expires_at timestamp with time zone,
    cancel_requested boolean NOT NULL,
    event_count integer NOT NULL,
    run_id integer,
    error text NOT NULL,
    available_at timestamp with time zone NOT NULL,
    announced_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone,
    engine text DEFAULT ''::text NOT NULL,
    clients json DEFAULT '[]'::json NOT NULL,
    trial_count integer DEFAULT 0 NOT NULL,
    started_at timestamp with time zone,
    gpu_s double precision,
    gpu_idle_s double precision,
    cpu_s double precision
);
CREATE TABLE public.nightly_runs (
    id integer NOT NULL,
    schedule text NOT NULL,
    date date NOT NULL,
    summary json,
    started_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone
);
CREATE SEQUENCE public.nightly_runs_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.nightly_runs_id_seq OWNED BY public.nightly_runs.id;
CREATE TABLE public.problems (
    id integer NOT NULL,
    spec text NOT NULL,
    family text NOT NULL
);
CREATE SEQUENCE public.problems_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.problems_id_seq OWNED BY public.problems.id;
CREATE TABLE public.runs (
    id integer NOT NULL,
    fingerprint character varying(64) NOT NULL,
    problem_id integer NOT NULL,
    environment_id integer NOT NULL,
    measure text NOT NULL,
    effort text NOT NULL,
    seed bigint NOT NULL,
    points json NOT NULL,
    space text NOT NULL,
    recording text NOT NULL,
    routing text DEFAULT ''::text NOT NULL,
    state text NOT NULL,
    reason text NOT NULL,
    totals json,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL
);
CREATE SEQUENCE public.runs_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.runs_id_seq OWNED BY public.runs.id;
CREATE TABLE public.sessions (
    token_hash character varying(64) NOT NULL,
    key_id integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL
);
CREATE TABLE public.trials (
    id bigint NOT NULL,
    run_id integer NOT NULL,
    part text NOT NULL,
    batch_size integer NOT NULL,
    new_tokens integer DEFAULT 0 NOT NULL,
    cached_tokens integer DEFAULT 0 NOT NULL,
    backend text DEFAULT 'triton'::text NOT NULL,
    config_key text NOT NULL,
    config json NOT NULL,
    compile_status text NOT NULL,
    shared_bytes integer,
    n_regs integer,
    n_spills integer,
    compile_detail text NOT NULL,
    cached boolean NOT NULL,
    status text NOT NULL,
    median_us double precision,
    min_us double precision,
    samples integer NOT NULL,
    detail text NOT NULL
);
CREATE SEQUENCE public.trials_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.trials_id_seq OWNED BY public.trials.id;
CREATE TABLE public.tuner_alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.watches (
    id integer NOT NULL,
    watch json NOT NULL,
    watch_key character varying(64) NOT NULL,
    client text NOT NULL,
    created_at timestamp with time zone NOT NULL
);
CREATE SEQUENCE public.watches_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.watches_id_seq OWNED BY public.watches.id;
CREATE TABLE public.winners (
    id integer NOT NULL,
    problem_id integer NOT NULL,
    environment_id integer NOT NULL,
    status text NOT NULL,
    part text NOT NULL,
    batch_size integer NOT NULL,
    new_tokens integer DEFAULT 0 NOT NULL,
    cached_tokens integer DEFAULT 0 NOT NULL,
    run_id integer NOT NULL,
    config json NOT NULL,
    median_us double precision,
    compile_status text NOT NULL,
    shared_bytes integer,
    n_regs integer,
    n_spills integer,
    compile_detail text NOT NULL,
    cached boolean NOT NULL,
    incumbents json NOT NULL,
    without_us text DEFAULT ''::text NOT NULL,
    over text DEFAULT ''::text NOT NULL,
    over_us double precision,
    reason text NOT NULL,
    published_at timestamp with time zone NOT NULL,
    server json DEFAULT '{}'::json NOT NULL
);
CREATE SEQUENCE public.winners_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.winners_id_seq OWNED BY public.winners.id;
CREATE TABLE public.workers (
    id text NOT NULL,
    name text NOT NULL,
    host text NOT NULL,
    gpu text NOT NULL,
    device text NOT NULL,
    devices json,
    engines json NOT NULL,
    packages json NOT NULL,
    state text NOT NULL,
    reason text NOT NULL,
    drain boolean NOT NULL,
    started_at timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL
);
ALTER TABLE ONLY public.api_keys ALTER COLUMN id SET DEFAULT nextval('public.api_keys_id_seq'::regclass);
ALTER TABLE ONLY public.environments ALTER COLUMN id SET DEFAULT nextval('public.environments_id_seq'::regclass);
ALTER TABLE ONLY public.nightly_runs ALTER COLUMN id SET DEFAULT nextval('public.nightly_runs_id_seq'::regclass);
ALTER TABLE ONLY public.problems ALTER COLUMN id SET DEFAULT nextval('public.problems_id_seq'::regclass);
ALTER TABLE ONLY public.runs ALTER COLUMN id SET DEFAULT nextval('public.runs_id_seq'::regclass);
ALTER TABLE ONLY public.trials ALTER COLUMN id SET DEFAULT nextval('public.trials_id_seq'::regclass);
ALTER TABLE ONLY public.watches ALTER COLUMN id SET DEFAULT nextval('public.watches_id_seq'::regclass);
ALTER TABLE ONLY public.winners ALTER COLUMN id SET DEFAULT nextval('public.winners_id_seq'::regclass);
INSERT INTO public.api_keys VALUES (1, 'ci', 'de2fc86b487db319d1e625fd8bc3ac62484d0c9a99f67cec99b2cce9f7c952b5', '["admin"]', '2026-11-28 23:20:16.352967+00', '2026-11-28 23:20:16.463442+00', NULL, NULL);
INSERT INTO public.client_turns VALUES ('ci', 1);
INSERT INTO public.environments VALUES (1, 'c5fa7bf322adf9f20af28df2e12c33405e7c4cc696e3b766e33d4f1caeb57a0e', 'NVIDIA_L40S', 'sglang', '0.5.16', '3.6.0', 'abababababababababababababababababababababababababababababababab', '', '', '', '');
INSERT INTO public.idempotency_keys VALUES ('ci', 'build-1', '4272ea9871904714abc5d2df9e9b4fb9e319ba42afc1537abc8058e1385eb2e9', '01m8j7b6shegxttmf5aypxkp27', '2026-11-28 23:20:16.915155+00', NULL);
INSERT INTO public.job_events VALUES ('01m8j7b6shegxttmf5aypxkp27', 1, 'submitted', '2026-11-28 23:20:16.915155+00', '{"client": "ci"}');
INSERT INTO public.job_events VALUES ('01m8j7b6shegxttmf5aypxkp27', 2, 'waiting', '2026-11-28 23:20:16.915155+00', '{"reason": "no worker with NVIDIA_L40S and sglang 0.5.16 was ever seen"}');
INSERT INTO public.job_events VALUES ('01m8j7b6vs8x9e38nscy72cpv0', 1, 'submitted', '2026-11-28 23:20:17.016595+00', '{"client": "ci"}');
INSERT INTO public.job_events VALUES ('01m8j7b6vs8x9e38nscy72cpv0', 2, 'waiting', '2026-11-28 23:20:17.016595+00', '{"reason": "no worker with NVIDIA_L40S and sglang 0.5.16 was ever seen"}');
INSERT INTO public.job_events VALUES ('01m8j7b6shegxttmf5aypxkp27', 3, 'leased', '2026-11-28 23:20:17.556904+00', '{"owner": "test", "attempt": 1}');
INSERT INTO public.job_events VALUES ('01m8j7b6shegxttmf5aypxkp27', 4, 'running', '2026-11-28 23:20:17.70743+00', '{"run_id": 1, "environment": {"device": "NVIDIA_L40S", "engine": "sglang", "engine_version": "0.5.16", "triton": "3.6.0", "kernel_hash": "abababababababababababababababababababababababababababababababab", "torch": "", "cuda": "", "driver": "", "backends": ""}}');
INSERT INTO public.job_events VALUES ('01m8j7b6shegxttmf5aypxkp27', 5, 'trials', '2026-11-28 23:20:17.77142+00', '{"tried": 100, "new": 100, "statuses": {"ok": 100}, "best_us": {"M=1 up": 0.5, "M=1 down": 1.5}, "incumbents_us": {}}');
INSERT INTO public.job_events VALUES ('01m8j7b6shegxttmf5aypxkp27', 6, 'done', '2026-11-28 23:20:17.813862+00', '{"run_id": 1, "totals": {"configs_compiled": 0, "measurements": 100, "wall_s": 0.0, "compile_s": 0.0, "measure_s": 0.0, "extra": {}}}');
INSERT INTO public.jobs VALUES ('01m8j7b6shegxttmf5aypxkp27', '{"problem": "fused_moe:E=257,N=64,K=7168,top_k=9,dtype=int8_w8a8,per_channel_quant,shared_experts=1", "device": "NVIDIA_L40S", "engine": "sglang==0.5.16", "measure": "gpu", "batch_sizes": null, "gemms": ["up", "down"], "effort": "standard", "wide": null, "seed": 0, "model": "deepseek-r1", "architecture": "DeepseekV3ForCausalLM", "checkpoint": "fp8_w8a8 fp8"}', '0e11ee9b13e815a540439774fafdc2baca535fe30403a0af9146c05c48843e7a', 'NVIDIA_L40S', 'deepseek-r1', true, 1, 'done', 'ci', 1, 'test', 1, NULL, false, 6, 1, '', '2026-11-28 23:20:16.915155+00', '2026-11-28 23:20:16.915155+00', '2026-11-28 23:20:16.915155+00', '2026-11-28 23:20:17.813862+00', '2026-11-28 23:20:17.813862+00', 'sglang==0.5.16', '["ci"]', 100, '2026-11-28 23:20:17.556904+00', 0, 0, 0);
INSERT INTO public.jobs VALUES ('01m8j7b6vs8x9e38nscy72cpv0', '{"problem": "fused_moe:E=257,N=64,K=7168,top_k=9,dtype=int8_w8a8,per_channel_quant,shared_experts=1", "device": "NVIDIA_L40S", "engine": "sglang==0.5.16", "measure": "gpu", "batch_sizes": null, "gemms": ["up", "down"], "effort": "standard", "wide": null, "seed": 1, "model": "deepseek-r1", "architecture": "DeepseekV3ForCausalLM", "checkpoint": "fp8_w8a8 fp8"}', 'ad6bdab9e2eb43330697b03b53d18f3f2d3bab5c7c14f0846cfff88e2563d7d7', 'NVIDIA_L40S', 'deepseek-r1', true, 1, 'queued', 'ci', 0, '', 0, NULL, false, 2, NULL, '', '2026-11-28 23:20:17.016595+00', '2026-11-28 23:20:17.016595+00', '2026-11-28 23:20:17.016595+00', '2026-11-28 23:20:17.016595+00', NULL, 'sglang==0.5.16', '["ci"]', 0, NULL, NULL, NULL, NULL);
INSERT INTO public.nightly_runs VALUES (1, 'nightly', '2026-11-28', '{"schedule": "nightly", "date": "2026-11-28", "watched": 0, "missing": [], "stale": [], "revalidated": [], "models": [], "errors": [{"what": "deepseek-r1 TP 32 EP 1 on NVIDIA_L40S", "why": "deepseek-r1: tp=32 leaves N=64, which the engine refuses: the output_size of gate''s and up''s weight = 64 is not divisible by weight quantization block_n = 128; the nearest that works with sglang 0.5.16 is tp=16; with sglang''s --ep-size 32 or vLLM''s --enable-expert-parallel a rank holds whole experts: add --ep 32"}], "unmet": [], "submitted": [], "waiting": [], "not_submitted": [], "rounds": [{"began": "2026-11-28T23:20:17.232878Z", "ended": "2026-11-28T23:20:17.295293Z", "watch_list": "", "error": ""}]}', '2026-11-28 23:20:17.232878+00', '2026-11-28 23:20:17.295293+00');
INSERT INTO public.problems VALUES (1, 'fused_moe:E=256,N=64,K=7168,top_k=8,dtype=int8_w8a8,per_channel_quant', 'fused_moe');
INSERT INTO public.runs VALUES (1, '58350fe33aaa712e1a19415b17f9245b7a317254f03c747be912b2d8d71b87f7', 1, 1, 'replay', 'quick', 0, '[[1, "up"], [1, "down"]]', 'sglang', 'cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd', '', 'done', '', '{"configs_compiled": 0, "measurements": 100, "wall_s": 0.0, "compile_s": 0.0, "measure_s": 0.0, "extra": {}}', '2026-11-28 23:20:17.643295+00', '2026-11-28 23:20:17.813221+00');
INSERT INTO public.sessions VALUES ('67a97ec0b9490499141115b4765361ce74348513881a7f5ec26440015ddf6a67', 1, '2026-11-28 23:20:16.408844+00', '2026-11-29 23:20:16.408844+00');
INSERT INTO public.trials VALUES (1, 1, 'up', 1, 0, 0, 'triton', 'BLOCK_SIZE_M=16,num_stages=0', '{"BLOCK_SIZE_M": 16, "num_stages": 0}', 'ok', 0, NULL, NULL, '', false, 'ok', 0.5, 0, 3, '');
INSERT INTO public.trials VALUES (2, 1, 'down', 1, 0, 0, 'triton', 'BLOCK_SIZE_M=16,num_stages=1', '{"BLOCK_SIZE_M": 16, "num_stages": 1}', 'ok', 1, NULL, NULL, '', false, 'ok', 1.5, 1, 3, '');
INSERT INTO public.trials VALUES (3, 1, 'up', 1, 0, 0, 'triton', 'BLOCK_SIZE_M=16,num_stages=2', '{"BLOCK_SIZE_M": 16, "num_stages": 2}', 'ok', 2, NULL, NULL, '', false, 'ok', 2.5, 2, 3, '');
INSERT INTO public.trials VALUES (4, 1, 'down', 1, 0, 0, 'triton', 'BLOCK_SIZE_M=16,num_stages=3', '{"BLOCK_SIZE_M": 16, "num_stages": 3}', 'ok', 3, NULL, NULL, '', false, 'ok', 3.5, 3, 3, '');
INSERT INTO public.tuner_alembic_version VALUES ('0018');
INSERT INTO public.watches VALUES (1, '{"models": ["deepseek-r1"], "devices": ["NVIDIA_L40S"], "tp": [32], "ep": [1], "dtypes": [], "batch_sizes": [], "engine": "sglang", "measure": "gpu", "effort": "standard"}', '5d2853d646bf025cea5a5c712dab097ee18ac8e72d82e100ecc16a72948b73dd', 'ci', '2026-11-28 23:20:17.200801+00');
INSERT INTO public.winners VALUES (1, 1, 1, 'ok', 'up', 1, 0, 0, 1, '{"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}', 10, 'ok', 73728, 128, 0, '', false, '{"default": {"backend": "triton", "config": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2}, "status": "ok", "median_us": 12.5, "shared_bytes": 49152}}', '', 'default', 12.5, 'faster than default', '2026-11-28 23:20:17.79755+00', '{}');
INSERT INTO public.workers VALUES ('w1', 'gpu-0', 'node-1', '0', 'NVIDIA_L40S', NULL, '["sglang==0.5.16"]', '{"tuner": "0.1.0"}', 'active', '', false, '2026-11-28 23:20:17.853952+00', '2026-11-28 23:20:17.853952+00');
SELECT pg_catalog.setval('public.api_keys_id_seq', 1, true);
SELECT pg_catalog.setval('public.environments_id_seq', 1, true);
SELECT pg_catalog.setval('public.nightly_runs_id_seq', 1, true);
SELECT pg_catalog.setval('public.problems_id_seq', 1, true);
SELECT pg_catalog.setval('public.runs_id_seq', 1, true);
SELECT pg_catalog.setval('public.trials_id_seq', 4, true);
SELECT pg_catalog.setval('public.watches_id_seq', 1, true);
SELECT pg_catalog.setval('public.winners_id_seq', 1, true);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT pk_api_keys PRIMARY KEY (id);
ALTER TABLE ONLY public.client_turns
    ADD CONSTRAINT pk_client_turns PRIMARY KEY (client);
ALTER TABLE ONLY public.environments
    ADD CONSTRAINT pk_environments PRIMARY KEY (id);
ALTER TABLE ONLY public.idempotency_keys
    ADD CONSTRAINT pk_idempotency_keys PRIMARY KEY (client, key);
ALTER TABLE ONLY public.job_events
    ADD CONSTRAINT pk_job_events PRIMARY KEY (job_id, seq);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT pk_jobs PRIMARY KEY (id);
ALTER TABLE ONLY public.nightly_runs
    ADD CONSTRAINT pk_nightly_runs PRIMARY KEY (id);
ALTER TABLE ONLY public.problems
    ADD CONSTRAINT pk_problems PRIMARY KEY (id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT pk_runs PRIMARY KEY (id);
ALTER TABLE ONLY public.sessions
    ADD CONSTRAINT pk_sessions PRIMARY KEY (token_hash);
ALTER TABLE ONLY public.trials
    ADD CONSTRAINT pk_trials PRIMARY KEY (id);
ALTER TABLE ONLY public.watches
    ADD CONSTRAINT pk_watches PRIMARY KEY (id);
ALTER TABLE ONLY public.winners
    ADD CONSTRAINT pk_winners PRIMARY KEY (id);
ALTER TABLE ONLY public.workers
    ADD CONSTRAINT pk_workers PRIMARY KEY (id);
ALTER TABLE ONLY public.tuner_alembic_version
    ADD CONSTRAINT tuner_alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT uq_api_keys_key_hash UNIQUE (key_hash);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT uq_api_keys_name UNIQUE (name);
ALTER TABLE ONLY public.environments
    ADD CONSTRAINT uq_environments_fingerprint UNIQUE (fingerprint);
ALTER TABLE ONLY public.nightly_runs
    ADD CONSTRAINT uq_nightly_runs_schedule_date UNIQUE (schedule, date);
ALTER TABLE ONLY public.problems
    ADD CONSTRAINT uq_problems_spec UNIQUE (spec);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT uq_runs_fingerprint UNIQUE (fingerprint);
ALTER TABLE ONLY public.trials
    ADD CONSTRAINT uq_trials_place UNIQUE (run_id, part, batch_size, new_tokens, cached_tokens, config_key, backend);
ALTER TABLE ONLY public.watches
    ADD CONSTRAINT uq_watches_watch_key UNIQUE (watch_key);
ALTER TABLE ONLY public.winners
    ADD CONSTRAINT uq_winners_place UNIQUE (environment_id, problem_id, status, batch_size, new_tokens, cached_tokens, part);
CREATE INDEX ix_environments_device_engine ON public.environments USING btree (device, engine);
CREATE INDEX ix_idempotency_keys_created_at ON public.idempotency_keys USING btree (created_at);
CREATE INDEX ix_jobs_announced ON public.jobs USING btree (announced_at) WHERE (state = 'queued'::text);
CREATE INDEX ix_jobs_lease ON public.jobs USING btree (state, lease_expires_at);
CREATE INDEX ix_jobs_page ON public.jobs USING btree (created_at, id);
CREATE INDEX ix_jobs_page_client ON public.jobs USING btree (client, created_at, id);
CREATE INDEX ix_jobs_page_device ON public.jobs USING btree (device, created_at, id);
CREATE INDEX ix_jobs_page_model ON public.jobs USING btree (model, created_at, id);
CREATE INDEX ix_jobs_page_state ON public.jobs USING btree (state, created_at, id);
CREATE INDEX ix_jobs_request_key ON public.jobs USING btree (request_key, finished_at);
CREATE INDEX ix_jobs_turn ON public.jobs USING btree (needs_gpu, client, priority, created_at, id) WHERE (state = 'queued'::text);
CREATE INDEX ix_jobs_turn_device ON public.jobs USING btree (needs_gpu, device, client, priority, created_at, id) WHERE (state = 'queued'::text);
CREATE INDEX ix_sessions_expires_at ON public.sessions USING btree (expires_at);
CREATE INDEX ix_winners_environment_id_published_at ON public.winners USING btree (environment_id, published_at);
CREATE INDEX ix_workers_seen_at ON public.workers USING btree (seen_at);
CREATE UNIQUE INDEX uq_jobs_unfinished ON public.jobs USING btree (request_key) WHERE ((state = ANY (ARRAY['queued'::text, 'leased'::text, 'running'::text])) AND (NOT cancel_requested));
ALTER TABLE ONLY public.idempotency_keys
    ADD CONSTRAINT fk_idempotency_keys_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id);
ALTER TABLE ONLY public.job_events
    ADD CONSTRAINT fk_job_events_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT fk_jobs_run_id_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT fk_runs_environment_id_environments FOREIGN KEY (environment_id) REFERENCES public.environments(id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT fk_runs_problem_id_problems FOREIGN KEY (problem_id) REFERENCES public.problems(id);
ALTER TABLE ONLY public.sessions
    ADD CONSTRAINT fk_sessions_key_id_api_keys FOREIGN KEY (key_id) REFERENCES public.api_keys(id);
ALTER TABLE ONLY public.trials
    ADD CONSTRAINT fk_trials_run_id_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);
ALTER TABLE ONLY public.winners
    ADD CONSTRAINT fk_winners_environment_id_environments FOREIGN KEY (environment_id) REFERENCES public.environments(id);
ALTER TABLE ONLY public.winners
    ADD CONSTRAINT fk_winners_problem_id_problems FOREIGN KEY (problem_id) REFERENCES public.problems(id);
ALTER TABLE ONLY public.winners
    ADD CONSTRAINT fk_winners_run_id_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);
