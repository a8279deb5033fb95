"""What every family and every engine promises, the toys of the tests included.

A new family or engine is tested by adding it to EXAMPLES or ENGINES: it has to pass as it is.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cases import new_request
from pydantic import ValidationError, create_model

from api.fields import Strict, body_field
from tuner.devices.table import devices, find_device
from tuner.engines import engine as engines
from tuner.engines.engine import Engine, find_engine, kernel_hash, supports
from tuner.engines.settings import all_config_variables
from tuner.errors import BadInput, BadProblem, UnknownEngine, UnsupportedFamily, UnsupportedKernel
from tuner.export.delivery import Delivery, delivery_of
from tuner.jobs.job import refuse_undoable
from tuner.models.serving import Resolved, Serving
from tuner.models.table import find_model
from tuner.problems import registry
from tuner.problems.options import WholeNumber
from tuner.problems.points import ChartPosition, Part, Point
from tuner.problems.registry import Family, families, family_of, parse_problem
from tuner.problems.results import MeasureKind
from tuner.tuning.request import Request, Source, prepare

HERE = Path(__file__).parent
L40S = find_device("L40S")
MOE = "fused_moe:E=256,N=64,K=7168,top_k=8,dtype=int8_w8a8,per_channel_quant"
HEADS = "q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
# By the name of a family: texts of its problems, and a field of one of them that is misspelt.
EXAMPLES = {
    "fused_moe": ([MOE, "fused_moe:E=8,N=512,K=1024,top_k=2,dtype=bfloat16"], "top_k"),
    "attention": (
        [
            f"extend_attention:{HEADS}",
            f"decode_attention:{HEADS}",
            f"decode_attention:{HEADS},kv_splits=16",
        ],
        "kv_heads",
    ),
    "dense_gemm": (
        [
            "block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128",
            "channel_gemm:N=1536,K=5120,dtype=int8_w8a8,out=float16",
        ],
        "dtype",
    ),
    "chunk_scan": (
        [
            "chunk_scan:heads=16,head_dim=64,groups=2,state_size=128,chunk_size=128,"
            "dtype=bfloat16,state_dtype=float32"
        ],
        "head_dim",
    ),
    "gated_delta": (
        [
            "gated_delta:key_heads=16,value_heads=32,key_dim=128,value_dim=128,dtype=bfloat16,"
            "state_dtype=float32",
            "gated_delta:key_heads=16,value_heads=32,key_dim=128,value_dim=128,dtype=float16,"
            "state_dtype=bfloat16,chain=split",
        ],
        "key_dim",
    ),
    "toy": (["toy_scale:columns=1024"], "columns"),
}
QUANTISED = "deepseek-r1"  # a preset that has problems of most families
# By the name of a family: another model, where the preset has none, and an engine that runs it.
_NANO = str(HERE.parent / "data" / "mamba" / "nemotron-3-nano")
_QWEN = str(HERE.parent / "data" / "models" / "qwen3.5-35b-a3b")
MODELS = {"chunk_scan": (_NANO, "sglang"), "gated_delta": (_QWEN, "sglang")}
# Releases older than an engine's kernels of a family.
TOO_OLD = {
    ("sglang==0.4.4", "chunk_scan"),
    ("sglang==0.4.4", "gated_delta"),
    ("vllm==0.10.2", "gated_delta"),
}
ENGINES = ["sglang==0.5.16", "sglang==0.4.4", "vllm==0.33.0", "vllm==0.10.2", "toyengine==1.2.3"]
PLACED = ["problem", "point"]  # the parameters of what is asked of a point
HEAVY = "torch triton sqlalchemy optuna pydantic numpy"


@pytest.fixture(autouse=True, scope="module")
def toys() -> Iterator[None]:
    """The toys, registered in this process for the length of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        patch.setenv("TUNER_ENGINE_PATH", str(HERE / "disk"))
        patch.setattr(registry, "_PACKAGES", list(registry._PACKAGES))
        patch.setattr(engines, "_PACKAGES", dict(engines._PACKAGES))
        patch.setattr(engines, "_BINDINGS", dict(engines._BINDINGS))
        registry.register("toy_family")
        engines.register("toyengine", "toy_engine", "toy_bindings")
        yield
    registry.forget_what_was_read()


@pytest.fixture(params=EXAMPLES)
def family(request: pytest.FixtureRequest) -> Family:
    return next(one for one in families() if one.name == request.param)


class TestEveryFamily:
    def test_problems_are_read_back_from_their_texts(self, family: Family) -> None:
        texts, _ = EXAMPLES[family.name]
        assert texts
        for text in texts:
            problem = parse_problem(text)
            assert problem.spec() == text
            assert family_of(problem) is family
            assert problem.family in family.problems
            assert hash(problem) == hash(parse_problem(text))
            assert problem.parts
            assert all(isinstance(part, family.parts) for part in problem.parts)

    def test_its_example_has_the_fields_of_a_problem(self, family: Family) -> None:
        name, _, fields = family.example.partition(":")
        assert name in family.problems
        like = next(t for t in EXAMPLES[family.name][0] if t.startswith(f"{name}:"))
        given = [field.partition("=")[0] for field in like.partition(":")[2].split(",")]
        assert {field.partition("=")[0] for field in fields.split(",")} <= set(given)

    def test_a_misspelt_field_or_kind_is_refused_by_name(self, family: Family) -> None:
        (text, *_), field = EXAMPLES[family.name]
        with pytest.raises(BadProblem, match=f"did you mean '{field}'"):
            parse_problem(text.replace(field, f"{field}x"))
        name = family.problems[0]
        with pytest.raises(BadProblem, match="did you mean"):
            parse_problem(text.replace(text.partition(":")[0], f"{name}x"))
        with pytest.raises(BadProblem, match="lacks"):
            parse_problem(f"{name}:")

    def test_names_and_parts_are_the_familys_alone(self, family: Family) -> None:
        others = [one for one in families() if one is not family]
        assert others
        for other in others:
            assert not set(family.problems) & set(other.problems)
            assert not {p.value for p in family.parts} & {p.value for p in other.parts}
            assert family.name != other.name

    def test_parts_say_their_points(self, family: Family) -> None:
        assert issubclass(family.parts, Part)
        for part in family.parts:
            point = Point(4, part, 8, 16)
            assert "4" in point.size
            assert point.as_json()["batch_size"] == 4
            assert part.value in point.as_json().values()
            assert registry.read_part(part.value) is part

    def test_a_selection_names_points_and_is_read_back(self, family: Family) -> None:
        for text in EXAMPLES[family.name][0]:
            problem = parse_problem(text)
            everything = family.read_selection(problem, {})
            assert not everything.given
            points = everything.points(problem)
            assert points
            assert {point.part for point in points} <= set(problem.parts)
            written = everything.as_json()
            assert set(written) == {option.name for option in family.selecting}
            assert family.read_selection(problem, written) == everything

    def test_points_become_the_selection_that_names_them(self, family: Family) -> None:
        for text in EXAMPLES[family.name][0]:
            problem = parse_problem(text)
            points = sorted(family.read_selection(problem, {}).points(problem))
            one = {p for p in points if p.size == points[-1].size and p.part in problem.parts[:1]}
            for some in (points, one):
                named = family.selection_of(problem, some)
                assert named.given
                assert {*some} <= named.points(problem)
                assert {p.size for p in some} == {p.size for p in named.points(problem)}

    def test_options_have_one_flag_and_a_field_in_the_api(self, family: Family) -> None:
        options = [*family.shaping, *family.selecting, *family.searching]
        assert len({option.name for option in options}) == len({*options}) == len(options)
        for option in options:
            assert option.flag.startswith("--")
            assert option.help
            assert option.kind in (str, int, bool)
            sent = create_model("Sent", __base__=Strict, **{option.name: body_field(option)})
            assert sent.model_fields[option.name].description
            assert getattr(sent(), option.name) == body_field(option)[1].default
            with pytest.raises(ValidationError):
                sent(**{option.name: {"no": "value"}})

    def test_a_whole_number_out_of_bounds_is_refused_by_flag_and_field(
        self, family: Family
    ) -> None:
        for option in (one for one in family.options if isinstance(one.takes, WholeNumber)):
            sent = create_model("Sent", __base__=Strict, **{option.name: body_field(option)})
            with pytest.raises(BadInput, match=f"{option.flag} must be from 1 to "):
                option.parse(0)
            with pytest.raises(ValidationError, match=option.name):
                sent(**{option.name: 0})
            assert option.parse(2) == getattr(sent(**{option.name: 2}), option.name) == 2

    @pytest.mark.parametrize(
        ("module", "function", "parameters"),
        [
            ("tuning", "prepare", ["request"]),
            ("models", "reads", ["text", "engine"]),
            ("models", "problems", ["model", "serving"]),
        ],
    )
    def test_modules_have_what_their_users_call(
        self, family: Family, module: str, function: str, parameters: list[str]
    ) -> None:
        found: Callable[..., object] = getattr(family.module(module), function)
        assert list(inspect.signature(found).parameters) == parameters

    def test_the_roofline_grows_with_the_size(self, family: Family) -> None:
        assert list(inspect.signature(family.least_us).parameters) == [*PLACED, "device"]
        for text in EXAMPLES[family.name][0]:
            problem = parse_problem(text)
            for part in problem.parts:
                for card in devices():
                    sizes = [Point(n, part, 1, 256) for n in (1, 2, 64, 4096)]
                    times = [family.least_us(problem, point, card) for point in sizes]
                    assert 0 < times[0] <= times[1] <= times[2] < times[3], (card.name, times)

    def test_a_launch_holds_more_with_the_size_and_the_examples_fit(self, family: Family) -> None:
        assert list(inspect.signature(family.held_bytes).parameters) == PLACED
        for text in EXAMPLES[family.name][0]:
            problem = parse_problem(text)
            for part in problem.parts:
                held = [family.held_bytes(problem, Point(n, part, 1, 256)) for n in (1, 64, 4096)]
                assert 0 < held[0] < held[1] < held[2]
                assert held[0] < min(card.memory_bytes for card in devices())

    def test_every_point_has_a_place_in_the_picture(self, family: Family) -> None:
        """Two launches share a place only if one follows the other at one size."""
        assert list(inspect.signature(family.place).parameters) == PLACED
        for text in EXAMPLES[family.name][0]:
            problem = parse_problem(text)
            points = family.read_selection(problem, {}).points(problem)
            parts: dict[ChartPosition, list[Part]] = {}
            for point in points:
                parts.setdefault(family.place(problem, point), []).append(point.part)
            for found, sharing in parts.items():
                assert isinstance(found, ChartPosition)
                assert found.chart
                assert found.x > 0
                assert found.x_label
                assert len(sharing) == len(set(sharing))
            sizes = {found.chart: found.x_label for found in parts}
            assert all(found.x_label == sizes[found.chart] for found in parts)

    def test_times_are_predicted_or_refused_before_any_work(self, family: Family) -> None:
        usual = "toyengine" if family.name == "toy" else "sglang"
        engine = find_engine(MODELS.get(family.name, ("", usual))[1])
        problem = parse_problem(EXAMPLES[family.name][0][0])
        asked = Request(problem, L40S, engine, Source(MeasureKind.PREDICT))
        job = new_request(problem, "L40S", measure="predict")
        if family.predicts:
            assert prepare(asked).predictor is not None
            refuse_undoable(job)
            return
        for refuse in (lambda: prepare(asked), lambda: refuse_undoable(job)):
            with pytest.raises(BadInput, match="are not predicted: measure them on a GPU") as no:
                refuse()
            assert no.value.field == "measure"
        refuse_undoable(new_request(problem, "L40S"))

    def test_the_gpu_module_opens_sessions(self, family: Family) -> None:
        packages = [one for one in (family.package, family.shared) if one]
        found = (importlib.util.find_spec(f"{package}.gpu") for package in packages)
        spec = next(one for one in found if one is not None)
        assert spec.origin is not None
        opens = r"\ndef open_session\(problem: |\nopen_session = \w+\n"
        assert re.search(opens, Path(spec.origin).read_text())

    def test_checks_take_files_or_problems(self, family: Family) -> None:
        module = family.optional("check")
        if module is None:
            return  # `tuner check` has nothing of such a family
        assert hasattr(module, "check_files") or hasattr(module, "check_problems")
        if hasattr(module, "check_files"):
            assert isinstance(module.FILE_OPTIONS, tuple)
            engines = [one for one in ENGINES if supports(one.partition("==")[0], family.name)]
            assert any(module.claims(module.EXAMPLE_NAME, find_engine(one)) for one in engines)

    def test_nothing_heavy_is_loaded_to_read_a_problem(self, family: Family) -> None:
        code = (
            f"import sys, {family.package}.family as f;"
            f"f.FAMILY.parse(sys.argv[1]); print(sorted(set({HEAVY!r}.split()) & set(sys.modules)))"
        )
        run = subprocess.run(
            [sys.executable, "-c", code, EXAMPLES[family.name][0][0]],
            capture_output=True,
            text=True,
            check=True,
            cwd=HERE,  # where the toys lie
        )
        assert run.stdout.strip() == "[]"

    def test_a_model_becomes_problems_of_the_family(self, family: Family) -> None:
        module = family.module("models")
        model, engine = MODELS.get(family.name, (QUANTISED, "sglang"))
        resolved: Resolved = module.problems(
            find_model(model), Serving(engine=engine, device=L40S, tp=2)
        )
        assert resolved.problems
        assert all(family_of(problem) is family for problem in resolved.problems)
        assert not module.reads(model)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return find_engine(request.param)


def _supported(engine: Engine, *, with_kernels: bool = False) -> list[Family]:
    found = [family for family in families() if supports(engine.name, family.name)]
    if with_kernels:
        version = f"{engine.name}=={engine.version}"
        found = [family for family in found if (version, family.name) not in TOO_OLD]
    assert found
    return found


class TestEveryEngine:
    def test_it_is_found_by_its_name_and_version(self, engine: Engine) -> None:
        same = find_engine(f"{engine.name}=={engine.version}")
        assert (same.name, same.version, same.root) == (engine.name, engine.version, engine.root)
        assert (engine.root / "__init__.py").is_file()
        with pytest.raises(UnknownEngine, match=r"no .*==99\.99 here, only"):
            find_engine(f"{engine.name}==99.99")

    def test_kernels_are_read_and_have_an_identity(self, engine: Engine) -> None:
        for family in _supported(engine, with_kernels=True):
            found = kernel_hash(engine, family.name)
            assert len(found) == 64
            assert set(found) <= set(string.hexdigits)
            assert kernel_hash(engine, family.name) == found
        assert engine.root.name not in sys.modules  # it is never imported
        for version, name in TOO_OLD:
            if version == f"{engine.name}=={engine.version}":
                with pytest.raises(UnsupportedKernel, match="has no kernels"):
                    kernel_hash(engine, name)

    def test_families_that_it_lacks_are_refused_with_engines_that_have_them(
        self, engine: Engine
    ) -> None:
        lacking = [one for one in families() if not supports(engine.name, one.name)]
        assert lacking
        for family in lacking:
            with pytest.raises(UnsupportedFamily, match=f"{family.name} is not tuned for"):
                kernel_hash(engine, family.name)

    def test_deliveries_say_where_files_go(self, engine: Engine, tmp_path: Path) -> None:
        for family in _supported(engine):
            delivery: Delivery = delivery_of(engine, family.name)
            assert delivery.engine_root is None or delivery.engine_root.is_dir()
            assert delivery.engine_root is not None or delivery.obstacle(into_engine=True)
            assert list(delivery.files([], L40S, tmp_path)) == []
            delivery.verify([], L40S, tmp_path)
            assert list(delivery.advice([])) == []
            for relative, path in delivery.packaged():
                assert not relative.is_absolute()
                assert path.is_file()
            assert not list(tmp_path.iterdir())

    def test_the_variable_of_each_delivery_is_listed(self, engine: Engine) -> None:
        named = {delivery_of(engine, family.name).variable for family in _supported(engine)}
        assert named - {None} <= {*all_config_variables(engine.name)}


def test_all_families_and_engines_are_under_contract() -> None:
    assert {family.name for family in families()} == set(EXAMPLES)
    assert {spec.partition("==")[0] for spec in ENGINES} == set(engines.engine_names())
