"""vLLM's Mamba-2 state update: what is launched, which files are read, and what is exported."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from cases import H200, L40S, deliver, tuned
from interpret_state_update import CASES
from interpreter import interpreted
from real_vllm import functions, package
from tiers import only

from tuner.devices.table import find_device
from tuner.engines.config_files import read_config_file
from tuner.engines.engine import find_engine
from tuner.engines.vllm.state_update import READS_CONFIG, open_delivery
from tuner.engines.vllm.state_update.delivery import StateDelivery
from tuner.errors import ExportRefused, MalformedConfigFile, UnsupportedKernel
from tuner.families.state_update.check import check_files, check_problems, claims
from tuner.families.state_update.engine import StateEngine, state_engine
from tuner.families.state_update.family import StateSelection
from tuner.families.state_update.problem import BATCH_SIZES, Update, parse_state_update
from tuner.problems.points import Config, Point
from tuner.problems.results import Compiled, Entry, Environment, Status, Winner
from tuner.store.results import ResultStore
from tuner.tuning.request import Request, parse_source

READING = ("0.24.0", "0.33.0")
OLDER = ("0.10.2", "0.15.1")
SOURCE = "model_executor/layers/mamba/ops/mamba_ssm.py"
WIDE = parse_state_update(
    "state_update:heads=16,head_dim=64,state_size=128,groups=1,cache_dtype=float32"
)
HALF = replace(WIDE, cache_dtype="bfloat16")
CONFIG = Config({"BLOCK_SIZE_M": 8, "num_warps": 2})
B200 = find_device("B200")
BLACKWELL = ("NVIDIA_B200", "NVIDIA_GB200")  # not the RTX 5090: is_device_capability_family(100)
ENTRY = ("BLOCK_SIZE_M", "num_warps")


@pytest.fixture(scope="module", params=only(READING[-1:], READING))
def version(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def engine(version) -> StateEngine:
    return state_engine(find_engine(f"vllm=={version}"))


# Kernels


@pytest.mark.parametrize("version", only(READING[-1:], READING))
def test_the_kernel_updates_states_as_the_reference_does(version, tmp_path):
    errors = interpreted("interpret_state_update.py", version, tmp_path)
    assert errors.keys() == CASES.keys()
    for case, found in errors.items():
        # The interpreter cuts bfloat16, and rounds float16.
        exact = 2e-3 if case.startswith("float16") else 1e-2
        assert found["out"] < exact, case
        assert found["state"] < (1e-5 if "float32" in case else 1e-2), case
        assert found["others_stay"], case


def test_the_launcher_sets_what_follows_from_its_arguments(engine):
    kernels = engine.lift()
    launch = kernels.launch(WIDE, 5, CONFIG, H200.target)
    assert launch.grid == (8, 5, 16)  # 64 / 8 blocks of rows, sequences, heads
    variant = launch.binding.variant()
    assert variant.options == {"num_warps": 2, "num_stages": 3}
    wanted = {"BLOCK_SIZE_M": 8, "BLOCK_SIZE_DSTATE": 128, "TIE_HDIM": True, "DT_SOFTPLUS": True}
    wanted |= {"HAS_D": True, "HAS_DT_BIAS": True, "HAS_Z": False, "IS_VARLEN": False}
    wanted |= {"HAS_STATE_BATCH_INDICES": True, "IS_SPEC_DECODING": False}
    assert {name: variant.constants[name] for name in wanted} == wanted
    assert variant.signature["state_ptr"] == "*fp32"
    assert variant == kernels.launch(WIDE, 1024, CONFIG, H200.target).binding.variant()


def test_configurations_that_the_launcher_does_not_take_are_refused(engine):
    kernels = engine.lift()
    with pytest.raises(UnsupportedKernel, match="takes no config key 'num_stages'"):
        kernels.launch(WIDE, 1, Config({**CONFIG, "num_stages": 2}), H200.target)
    with pytest.raises(UnsupportedKernel, match="needs num_warps"):
        kernels.launch(WIDE, 1, Config({"BLOCK_SIZE_M": 8}), H200.target)


@pytest.mark.parametrize("older", OLDER)
def test_releases_without_files_are_refused_by_name(older):
    engine = find_engine(f"vllm=={older}")
    states, delivery = state_engine(engine), open_delivery(engine)
    wanted = rf"vllm {older} reads no files for the Mamba state update; vllm 0\.24\.0 and"
    for refused in (
        lambda: states.file_name(WIDE, L40S),
        lambda: states.incumbents(WIDE, L40S, 1),
        lambda: delivery.asked(WIDE, L40S),
        lambda: check_problems([WIDE], L40S, engine),
    ):
        with pytest.raises(UnsupportedKernel, match=wanted):
            refused()
    assert "reads no files" in delivery.obstacle(into_engine=False)
    assert delivery.engine_root is None
    assert delivery.variable is None
    with pytest.raises(UnsupportedKernel, match="takes no configuration for its state update"):
        states.lift().launch(WIDE, 1, CONFIG, H200.target)


# Files, held against the functions of the wheels


class RealLoader:
    """The release's own loader, on a pretended GPU."""

    def __init__(self, version: str) -> None:
        self.envs = SimpleNamespace(VLLM_TUNED_CONFIG_FOLDER=None)
        self.device = ""
        platform = SimpleNamespace(get_device_name=lambda *index: self.device.replace("_", " "))
        folder = package(version) / SOURCE
        names = {
            "envs": self.envs,
            "logger": MagicMock(),
            "current_platform": platform,
            "get_device_name_as_file_name": lambda: self.device,
            "_CONFIGS_DIR": str(folder.parent / "configs" / "selective_state_update"),
            "_ssm_config_override": None,
        }
        wanted = {
            *("get_ssm_config_file_name", "get_ssm_device_name", "_canonical_cache_dtype"),
            *("get_ssm_configs", "_get_default_ssm_launch_config"),
            *("_try_get_optimal_ssm_config_cached", "try_get_optimal_ssm_config"),
        }
        self._names = functions(version, SOURCE, wanted, names)

    def default(self, problem, device) -> Config:
        """What runs without a file."""
        default = self._names["_get_default_ssm_launch_config"]
        found = default(problem.state_size, device.name in BLACKWELL)
        return Config(dict(zip(ENTRY, found, strict=True)))

    def launches(self, problem, device, batch_size: int, folder: Path | None = None) -> Config:
        """What the launcher asks for, as it asks."""
        self.device = device.name
        self.envs.VLLM_TUNED_CONFIG_FOLDER = None if folder is None else str(folder)
        for function in self._names.values():
            getattr(function, "cache_clear", lambda: None)()
        found = self._names["try_get_optimal_ssm_config"](
            problem.head_dim,
            problem.state_size,
            batch_size,
            problem.heads,
            problem.cache_dtype,
            device.name in BLACKWELL,
        )
        return Config(dict(zip(ENTRY, found, strict=True)))


@pytest.fixture(scope="module")
def real(version) -> RealLoader:
    return RealLoader(version)


def runs(engine: StateEngine, problem, device, size: int, folder: Path | None = None) -> Config:
    found = engine.incumbents(problem, device, size, folder)
    return found.get("shipped", found["default"])


@pytest.mark.parametrize("device", [L40S, H200, B200], ids=lambda device: device.name)
def test_what_runs_is_what_the_loader_picks(engine, real, device):
    for problem in (WIDE, HALF, replace(HALF, cache_dtype="float16")):
        for heads in (1, 16, 128):
            wanted = replace(problem, heads=heads)
            for size in (*BATCH_SIZES, 3, 24, 700):
                assert runs(engine, wanted, device, size) == real.launches(wanted, device, size)


@pytest.mark.parametrize("states", [8, 16, 32, 48, 64, 96, 128, 256])
def test_the_heuristic_is_the_releases(engine, real, states):
    problem = replace(WIDE, state_size=states)
    for device in (L40S, B200, find_device("A100"), find_device("RTX 5090")):
        assert engine.incumbents(problem, device, 4)["default"] == real.default(problem, device)


def test_a_folder_goes_before_the_package(engine, real, tmp_path):
    name = engine.file_name(WIDE, H200)
    entry = {"BLOCK_SIZE_M": 32, "num_warps": 8}
    content = {"triton_version": "3.8.0", "16": entry, "64": {**entry, "num_warps": 4}}
    (tmp_path / name).write_text(json.dumps(content))
    for size in (1, 2, 3, 4, 900):
        ours = runs(engine, WIDE, H200, size, tmp_path)
        assert ours == real.launches(WIDE, H200, size, tmp_path)
        assert ours["BLOCK_SIZE_M"] == 32
    # A folder without the file leads to the package's.
    assert engine.find_file(tmp_path, HALF, H200).parent == engine.configs
    assert runs(engine, HALF, H200, 8, tmp_path) == real.launches(HALF, H200, 8, tmp_path)
    assert engine.find_file(tmp_path, HALF, L40S) is None


def test_every_shipped_name_is_one_that_the_engine_asks_for(engine):
    files = list(engine.shipped(vendor=""))
    assert len(files) == len(list(engine.configs.glob("*.json")))
    for file in files:
        assert not file.oddities
        assert file.entries
        device = replace(H200, name=file.key.device)
        problem = replace(
            WIDE,
            head_dim=file.key.head_dim,
            state_size=file.key.state_size,
            cache_dtype=file.key.cache_dtype,
        )
        assert engine.file_name(problem, device) == file.path.name
        assert read_config_file(file.path, engine.fields).entries == file.entries
    with pytest.raises(MalformedConfigFile, match="not the name of a state update's"):
        engine.read_file_name("headdim=064,dstate=128,device_name=X,cache_dtype=float32.json")


def test_the_models_whose_states_are_float32_are_the_releases(version):
    """The keys of the release's own map, and the default of the class that they name."""
    text = (package(version) / "model_executor/models/config.py").read_text()
    assert re.search(r'DEFAULT_MAMBA_SSM_CACHE_DTYPE(: "MambaDType")? = "float32"', text)
    for name in READS_CONFIG:
        assert f'"{name}": NemotronH' in text


# Runs, exports and checks


def request_of(version: str, **changes) -> Request:
    return Request(
        **{
            "problem": WIDE,
            "device": L40S,
            "engine": find_engine(f"vllm=={version}"),
            "source": parse_source("predict"),
            "selection": StateSelection((1, 64)),
            **changes,
        }
    )


def test_a_prediction_tries_everything_and_says_what_it_is(tmp_path):
    with ResultStore.open(f"sqlite:///{tmp_path}/tuner.db") as store:
        report = tuned(request_of("0.33.0", problem=replace(WIDE, state_size=16)), store)
    assert [entry.point.batch_size for entry in report.entries] == [1, 64]
    assert {entry.status for entry in report.entries} == {Status.PREDICTED}
    assert all("default" in entry.incumbents for entry in report.entries)
    assert "headdim=64,dstate=16,device_name=NVIDIA_L40S" in report.file_names[Update.STATE]
    assert report.totals.configs_compiled <= 24
    assert "sequences" in report.as_text()


def winner(problem=WIDE, size=1, config=CONFIG, status=Status.OK) -> Winner:
    environment = Environment("NVIDIA_L40S", "vllm", "0.33.0", "3.8.0", "kernels", driver="550")
    compiled = Compiled(Status.OK, 512, 40, 0)
    entry = Entry(Point(size, Update.STATE), config, status, 5.0, compiled, {}, "1.5x as fast")
    return Winner(problem, environment, entry, 1, datetime(2026, 11, 1, tzinfo=timezone.utc))


@pytest.fixture
def delivery(version) -> StateDelivery:
    return open_delivery(find_engine(f"vllm=={version}"))


def test_the_loader_runs_what_was_exported(delivery, engine, real, tmp_path):
    wide = CONFIG.replace(BLOCK_SIZE_M=32)
    deliver(delivery, [winner(size=4), winner(size=256, config=wide)], tmp_path, L40S)
    path = tmp_path / delivery.asked(WIDE, L40S)[0]
    assert list(json.loads(path.read_text())) == ["64", "4096"]  # sequences times 16 heads
    assert real.launches(WIDE, L40S, 4, tmp_path) == CONFIG
    assert real.launches(WIDE, L40S, 256, tmp_path) == wide
    assert (tmp_path / "provenance" / path.name).is_file()
    assert claims(path.name, find_engine("vllm==0.33.0"))


def test_a_file_that_another_hand_changed_is_refused(delivery, tmp_path):
    (file,) = deliver(delivery, [winner(size=4)], tmp_path, L40S)
    file.path.write_text(json.dumps({"64": {"BLOCK_SIZE_M": 64, "num_warps": 1}}))
    with pytest.raises(ExportRefused, match="vLLM picks"):
        delivery.verify([file], L40S, tmp_path)
    file.path.unlink()
    with pytest.raises(ExportRefused, match="rules find None"):
        delivery.verify([file], L40S, tmp_path)


def test_checks_compile_files_and_what_runs_without_one(tmp_path):
    engine = find_engine("vllm==0.33.0")
    path = tmp_path / state_engine(engine).file_name(WIDE, L40S)
    path.write_text(json.dumps({"8": dict(CONFIG), "64": {**CONFIG, "num_warps": 4, "note": 1}}))
    found = check_files([path], L40S, engine, {})
    assert found.fits
    assert [(entry.size, entry.config["num_warps"]) for entry in found.entries] == [(8, 2), (64, 4)]
    assert "2 entries on NVIDIA_L40S: all can run" in found.as_text()
    assert all(row["fits"] for row in found.as_json()["entries"])
    path.write_text(json.dumps({"8": {"BLOCK_SIZE_M": 8}}))
    with pytest.raises(MalformedConfigFile, match="lacks field 'num_warps'"):
        check_files([path], L40S, engine, {})
    default = check_problems([WIDE], L40S, engine)
    assert default.fits
    assert "the default of vllm 0.33.0" in default.as_text()
