"""Runs of the command line whose outputs must stay the same, byte for byte, and their record.

A case runs commands in an empty folder with an empty store, and keeps what they print and write.
Its record is one text file with a section for each output.

`python tests/cli/unchanged_cases.py --record [CASE ...]` records anew; `--make-store` writes the
store that two cases open.
"""

import contextlib
import gzip
import hashlib
import json
import os
import re
import sqlite3
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from commands import run as run_command

REPOSITORY = Path(__file__).parents[2]
DATA = REPOSITORY / "tests" / "data"
RECORDS = DATA / "unchanged"
CLUSTER = DATA / "cluster"
STORE = RECORDS / "store.db.gz"
ENGINE = "sglang==0.5.16"
TRITON = "3.6.0"  # the release whose compiled figures are recorded

# What differs between two runs, by its name in JSON or its column in the store. A null stays.
VARYING = (
    *("wall_s", "compile_s", "measure_s"),
    *("published_at", "created_at", "updated_at", "finished_at", "available_at", "announced_at"),
    *("at", "tool"),
)
# Two compile processes finish in any order, and rows are numbered as they come.
VARYING_IDS = ("trials",)
# The store's table of schema versions: a migration changes it, whatever else stays.
VERSIONS = "tuner_alembic_version"
# The bundle's files that are made of the tuner's own source, or hold the hash of one that is.
FROM_SOURCE = ("preflight.py", "MANIFEST.json", "SHA256SUMS")

_VARYING = re.compile(rf'"({"|".join(VARYING)})": ("[^"\n]*"|[-+.e\d]+)')
_JOB_ID = re.compile(r"\b01[0-9a-hjkmnp-tv-z]{24}\b")

LAYER = "fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128"
RECORDING = DATA / "recordings" / "h200_E256_N256_K7168_top8_fp8w8a8_b128.csv.gz"
GEMM = "block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128"
INT8_LAYER = "fused_moe:E=256,N=64,K=7168,top_k=8,dtype=int8_w8a8,per_channel_quant"
# Its times are a model's, rounded, and the engine's own constants are the slower ones by far.
ATTENTION_RECORDING = RECORDS / "l40s_attention.csv.gz"
LATENT_DECODE = "decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16,kv_splits=8"
EXTEND = "extend_attention:q_heads=8,kv_heads=8,Lq=64,Lv=64,dtype=bfloat16"
# FlashInfer may run there by default, so servers must be told to read files of attention.
ON_TRITON = ("--server-args", "--attention-backend triton")


class Run:
    """One run of a case: its folder, its store, and what was kept so far.

    Kernels are compiled into `cache`; a run's report says how many it found there.
    """

    def __init__(self, folder: Path, cache: Path | None = None) -> None:
        self.folder = folder
        self.store = folder / "tuner.db"
        self.kept: dict[str, str] = {}
        own = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
        self._env = {
            **own,
            "COLUMNS": "80",  # what is recorded by hand is wrapped as it is in a test
            "TUNER_DATABASE_URL": f"sqlite:///{self.store}",
            "TUNER_CACHE_DIR": str(cache or folder / "cache"),
        }

    def tuner(self, *arguments: object, code: int = 0, keep: bool = True) -> str:
        """Run a command; keep what it prints. Raises AssertionError for another exit status."""
        words = [str(argument) for argument in arguments]
        done = run_command(*words, env=self._env, cwd=self.folder, code=code)
        if keep:
            self.keep("tuner " + " ".join(words), done.stdout)
        return done.stdout

    def keep(self, name: str, text: str) -> None:
        name = self._masked(name)
        assert name not in self.kept, f"{name!r} is kept twice"
        self.kept[name] = self._masked(text)

    def export(self, device: str, out: str, *options: str) -> list[str]:
        """Export the winners; keep what was tuned, and one hash of what the engine ships.

        The paths of the tuned files, relative to the run's folder.
        """
        options = ("--device", device, "--engine", ENGINE, "--out", out, *options)
        rows = json.loads(self.tuner("export", *options, "--json"))["files"]
        tuned = [row["path"] for row in rows]
        ours = {*tuned, *(row["provenance"] for row in rows)}
        assert tuned, f"nothing was exported for {device}"
        others = hashlib.sha256()
        for path in sorted(path for path in (self.folder / out).rglob("*") if path.is_file()):
            name = str(path.relative_to(self.folder))
            if name in ours:
                self.keep(name, path.read_text(encoding="utf-8"))
                ours.remove(name)
            else:
                others.update(f"{name}\n".encode() + path.read_bytes())
        assert not ours, f"{ours} were not written"
        self.keep(f"the engine's own files below {out}", f"sha256 {others.hexdigest()}\n")
        return tuned

    def keep_recording(self, name: str) -> None:
        """Keep a recording unpacked: each release of zlib packs in its own way."""
        data = (self.folder / name).read_bytes()
        assert data[4:8] == bytes(4), f"{name} holds the time when it was packed"
        self.keep(name, gzip.decompress(data).decode("utf-8"))

    def keep_store(self) -> None:
        """Keep the rows of every table, sorted."""
        with contextlib.closing(sqlite3.connect(self.store)) as connection:
            connection.row_factory = sqlite3.Row
            tables = connection.execute("select name from sqlite_master where type = 'table'")
            for (table,) in sorted(map(tuple, tables)):
                if table != VERSIONS and not table.startswith("sqlite_"):
                    rows = connection.execute(f"select * from {table}")  # noqa: S608 - its own name
                    lines = sorted(self._masked(_row_text(table, row)) for row in rows)
                    if lines:
                        self.keep(f"table {table}", "".join(f"{line}\n" for line in lines))

    def _masked(self, text: str) -> str:
        places = ((self.folder, "FOLDER"), (sys.prefix, "PREFIX"), (REPOSITORY, "REPOSITORY"))
        for path, name in places:
            text = text.replace(str(path), name)
        return _JOB_ID.sub("JOB_ID", _VARYING.sub(r'"\1": "VARIES"', text))


def _row_text(table: str, row: sqlite3.Row) -> str:
    """The row as `"column": value, ...`, by name; JSON stands there as the text that is stored."""
    names = sorted(row.keys())
    columns = [name for name in names if not (name == "id" and table in VARYING_IDS)]
    cells = []
    for name in columns:
        value = row[name]
        is_json = isinstance(value, str) and value[:1] in ("{", "[")
        cells.append(f'"{name}": {value if is_json else json.dumps(value)}')
    return ", ".join(cells)


# The cases


def tables_of_names(run: Run) -> None:
    run.tuner("list", "devices", "--json")
    run.tuner("list", "models", "--json")


def moe_replayed(run: Run) -> None:
    run.tuner(*_replay_moe("again.csv.gz"))
    run.keep_recording("again.csv.gz")
    options = ("--device", "H200", "--engine", ENGINE)
    run.tuner("check", *run.export("H200", "out"), *options, "--json")
    run.keep_store()


def attention_replayed(run: Run) -> None:
    for spec, name in ((LATENT_DECODE, "decode.csv.gz"), (EXTEND, "extend.csv.gz")):
        run.tuner(*_replay_attention(spec, name))
        run.keep_recording(name)
    run.export("L40S", "out", *ON_TRITON)
    run.keep_store()


def moe_predicted(run: Run) -> None:
    run.tuner(*_predict(INT8_LAYER), "--batch-sizes", "64")
    files = run.export("L40S", "out", "--allow-predicted")
    run.tuner("check", *files, "--device", "L40S", "--engine", ENGINE, "--json")
    run.keep_store()


def checked(run: Run) -> None:
    """Entries and constants of which some cannot run."""
    big = dict(zip(_CONFIG, (128, 256, 128, 32, 8, 4), strict=True))
    name = "E=256,N=256,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json"
    (run.folder / name).write_text(json.dumps({"64": big}))
    run.tuner("check", name, "--device", "L40S", "--engine", ENGINE, "--json", code=1)
    model = ("check", "deepseek-r1", "--tp", "8", "--device", "L40S", "--json")
    run.tuner(*model, "--engine", "sglang==0.4.4", code=1)


def amd(run: Run) -> None:
    """An AMD card: its sidecars say that the model was never compared with one."""
    for spec, size in ((INT8_LAYER, "64"), (GEMM, "24")):
        run.tuner(*_predict(spec, "MI300X"), "--batch-sizes", size)
    run.export("MI300X", "out", "--allow-predicted", "--server-args", "SGLANG_USE_AITER=0")
    three_stages = dict(zip(_CONFIG, (128, 256, 128, 1, 8, 3), strict=True))
    name = "E=256,N=256,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128, 128].json"
    (run.folder / name).write_text(json.dumps({"64": {**three_stages, "waves_per_eu": 2}}))
    run.tuner("check", name, "--device", "MI300X", "--engine", ENGINE, "--json", code=1)
    run.tuner("check", name, "--device", "MI355X", "--engine", ENGINE, "--json")
    run.keep_store()


def existing_store(run: Run) -> None:
    """A store that an earlier version made is migrated, and gives what it gave."""
    run.store.write_bytes(gzip.decompress(STORE.read_bytes()))
    run.export("H200", "h200")
    run.export("L40S", "l40s", "--allow-predicted", *ON_TRITON)
    run.tuner("jobs", "--json")
    run.tuner("admin", "keys", "list", "--json")
    run.keep_store()


def bundled(run: Run) -> None:
    run.store.write_bytes(gzip.decompress(STORE.read_bytes()))
    cluster = REPOSITORY / "examples" / "cluster-l40s-4x8.toml"
    options = ("--device", "L40S", "--cluster", cluster, "--engine", ENGINE, "--allow-predicted")
    options += ("--allow-missing",)  # the attention in the store is no model's, so it is named
    options += tuple(f"--problem={spec}" for spec in (INT8_LAYER, LATENT_DECODE, EXTEND))
    run.tuner("bundle", *options, "--out", "b.tar.gz", "--json", keep=False)
    with tarfile.open(run.folder / "b.tar.gz") as archive:
        for member in archive:
            stream = archive.extractfile(member)
            assert stream is not None, f"{member.name} is no file"
            text = stream.read().decode("utf-8", "replace")  # preflight.py is an archive
            about = f"{member.name} (mode {member.mode:o}, time {member.mtime})"
            run.keep(about, _without_source(Path(member.name).name, text))


def deployed(run: Run) -> None:
    """What reads clusters, logs and benchmarks."""
    nodes = [f"--node={name}={CLUSTER / name}" for name in ("h20-node01", "h20-node02")]
    cluster = REPOSITORY / "examples" / "cluster-h20-2x8-sglang.toml"
    run.tuner("preflight", *nodes, "--cluster", cluster, "--json")
    run.tuner("preflight", f"--node=l40s-01={CLUSTER / 'l40s-miswired'}", "--json", code=1)
    run.tuner("load-proof", *sorted((CLUSTER / "logs").glob("*.log")), "--json", code=1)
    sides = [CLUSTER / "bench" / f"l40s-32gpu-{side}-bench_serving.txt" for side in _SIDES]
    run.tuner("bench-report", *sides, "--json")


def submitted(run: Run) -> None:
    """Jobs in a local store, and their requests as they are stored."""
    for options in _JOBS:
        run.tuner("jobs", "submit", *options, "--engine", ENGINE, "--json")
    listed = json.loads(run.tuner("jobs", "--json", keep=False))
    # Jobs of one millisecond are listed in any order.
    listed.sort(key=lambda job: json.dumps(job["request"]))
    run.keep("tuner jobs --json", _json_text(listed))
    run.keep_store()


CASES: dict[str, Callable[[Run], None]] = {
    case.__name__: case
    for case in (
        *(tables_of_names, moe_replayed, attention_replayed, moe_predicted, checked, amd),
        *(existing_store, bundled, deployed, submitted),
    )
}

# Their reports say how many kernels were compiled, and how many a cache had.
COUNT_COMPILES = ("moe_predicted", "amd")

_CONFIG = (
    *("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"),
    *("GROUP_SIZE_M", "num_warps", "num_stages"),
)
_SIDES = ("before", "after")
_OF_ATTENTION = ("--family", "attention", "--workload", "offline")
_JOBS = (
    (LAYER, "--device", "H200", "--batch-sizes", "2,16", "--effort", "quick"),
    (INT8_LAYER, "--device", "L40S", "--measure", "predict", "--urgent"),
    (*("deepseek-r1", "--tp", "8", "--device", "H200"), *_OF_ATTENTION),
)


def _replay_moe(record: str) -> tuple[object, ...]:
    options = ("--device", "H200", "--measure", f"replay:{RECORDING}", "--engine", ENGINE)
    sizes = ("--batch-sizes", "2,16", "--effort", "quick")
    return ("tune", LAYER, *options, *sizes, "--record", record, "--json")


def _replay_attention(spec: str, record: str) -> tuple[object, ...]:
    options = ("--device", "L40S", "--measure", f"replay:{ATTENTION_RECORDING}")
    return ("tune", spec, *options, "--engine", ENGINE, "--record", record, "--json")


def _predict(spec: str, device: str = "L40S") -> tuple[object, ...]:
    options = ("--device", device, "--measure", "predict", "--effort", "quick")
    return ("tune", spec, *options, "--engine", ENGINE, "--json")


def _without_source(name: str, text: str) -> str:
    """A bundle's file without what changes whenever the tuner's source does."""
    if name == "preflight.py":
        return "made of the tuner's source\n"
    if name == "MANIFEST.json":
        manifest = json.loads(text)
        for row in manifest["files"]:
            if row["path"] in FROM_SOURCE:
                row |= {"sha256": "VARIES", "size": 0}
        return _json_text(manifest)
    if name == "SHA256SUMS":
        lines = text.splitlines(keepends=True)
        return "".join(line for line in lines if line.split()[1] not in FROM_SOURCE)
    return text


def _json_text(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"


# Records


def outputs(case: str, folder: Path, cache: Path | None = None) -> str:
    """What a case keeps now, as its record holds it."""
    run = Run(folder, None if case in COUNT_COMPILES else cache)
    CASES[case](run)
    assert run.kept, f"{case} keeps nothing"
    return "".join(_section(name, text) for name, text in run.kept.items())


def recorded(case: str) -> str:
    """What was recorded. Raises FileNotFoundError."""
    return gzip.decompress(record_path(case).read_bytes()).decode("utf-8")


def record(case: str, folder: Path) -> None:
    data = outputs(case, folder).encode("utf-8")
    record_path(case).write_bytes(gzip.compress(data, mtime=0))


def record_path(case: str) -> Path:
    return RECORDS / f"{case}.txt.gz"


def _section(name: str, text: str) -> str:
    end = "" if text.endswith("\n") else "\n==== no newline at the end\n"
    return f"==== {name}\n{text}{end}"


def make_store(folder: Path) -> None:
    """Write the store that `existing_store` and `bundled` open."""
    run = Run(folder)
    run.tuner(*_replay_moe("moe.csv.gz"))
    for spec in (LATENT_DECODE, EXTEND):
        run.tuner(*_replay_attention(spec, f"{spec.partition(':')[0]}.csv.gz"))
    run.tuner(*_predict(INT8_LAYER), "--batch-sizes", "1,64")
    for options in _JOBS:
        run.tuner("jobs", "submit", *options, "--engine", ENGINE)
    (folder / "token").write_text("a-key-of-the-tests-0123456789abcdef\n")
    run.tuner("admin", "keys", "create", "tests", "--token-file", "token")
    with contextlib.closing(sqlite3.connect(run.store)) as connection:
        connection.execute("pragma journal_mode = delete")
        connection.execute("vacuum")
    STORE.write_bytes(gzip.compress(run.store.read_bytes(), mtime=0))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        for name in sys.argv[2:] or CASES:
            with tempfile.TemporaryDirectory() as folder:
                record(name, Path(folder).resolve())
    elif sys.argv[1:] == ["--make-store"]:
        with tempfile.TemporaryDirectory() as folder:
            make_store(Path(folder))
    else:
        sys.exit(__doc__)
