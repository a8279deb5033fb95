"""What engines' own launchers launch: followed without a GPU, or refused by name."""

import pytest
from real_sglang import RELEASES

from tuner.bindings.sglang.attention.binding import CHOICES, lift_attention
from tuner.devices.table import find_device
from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.errors import UnsupportedKernel
from tuner.families.attention.problem import AttentionPart, AttentionPhase, parse_attention
from tuner.families.attention.space import attention_space
from tuner.kernels.binding import Constant
from tuner.kernels.launcher import Launcher, TensorSpec
from tuner.kernels.stand_ins import TritonType
from tuner.problems.points import Candidate, Config, Point

GQA = "q_heads=32,kv_heads=8,Lq=128,Lv=128,dtype=bfloat16"
MLA = "q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
PROBLEMS = (
    f"extend_attention:{GQA}",
    f"extend_attention:{MLA}",
    "extend_attention:q_heads=16,kv_heads=16,Lq=192,Lv=128,dtype=float16",
    f"prefill_attention:{GQA}",
    f"decode_attention:{GQA},kv_splits=16",
    f"decode_attention:{MLA}",
    "decode_attention:q_heads=16,kv_heads=16,Lq=128,Lv=128,dtype=bfloat16",
)

SM80, SM89, SM90 = cuda_target(8, 0), cuda_target(8, 9), cuda_target(9, 0)
SM100, SM120 = cuda_target(10, 0), cuda_target(12, 0)

MADE_UP = """
import torch
import triton
import triton.language as tl

from made_up.ops.shared import WIDTH
from made_up.server import get_bool_env_var, get_platform, settings

MAJOR, MINOR = torch.cuda.get_device_capability()


@triton.jit
def _kernel(X, n, BLOCK: tl.constexpr, WIDE: tl.constexpr = False):
    pass


def launch(x, n, wide=None):
    {body}
    block = triton.next_power_of_2(n) if MAJOR < 12 else 16
    _kernel[(triton.cdiv(n, block), x.shape[0])](x, n, BLOCK=block, num_warps=WIDTH, num_stages=2)
"""


@pytest.fixture
def made_up(tmp_path):
    """A launcher of an engine whose `launch` begins with `body`."""
    ops = tmp_path / "made_up" / "ops"
    ops.mkdir(parents=True)
    (ops / "shared.py").write_text("import torch\nWIDTH = 4\nSTREAM = torch.cuda.Stream\n")

    def make(body="pass", target=SM89):
        (ops / "launch.py").write_text(MADE_UP.format(body=body))
        return Launcher(ops / "launch.py", tmp_path / "made_up", "made-up 1.0", target)

    return make


X = TensorSpec("x", (7, 64), "bf16")


class TestStandIns:
    def test_a_launch_is_noted_with_its_arguments_grid_and_options(self, made_up):
        (launch,) = made_up().run("launch", {"x": X, "n": 100, "unused": 1})
        assert (launch.kernel, launch.grid) == ("_kernel", (1, 7))
        assert launch.arguments == {"X": X, "n": 100, "BLOCK": 128}
        assert launch.options == {"num_warps": 4, "num_stages": 2}

    def test_the_architecture_is_the_one_asked_for(self, made_up):
        made = [made_up(target=target) for target in (SM90, SM120)]
        launches = [launcher.run("launch", {"x": X, "n": 100}) for launcher in made]
        assert [launch.arguments["BLOCK"] for (launch,) in launches] == [128, 16]

    @pytest.mark.parametrize(
        ("body", "named"),
        [
            (
                "n = min(n, torch.cuda.get_device_properties(0).multi_processor_count)",
                "torch.cuda.get_device_properties(...).multi_processor_count",
            ),
            ("if torch.cuda.memory_allocated() > 9: return", "torch.cuda.memory_allocated"),
            ("n = int(torch.cuda.current_device())", "torch.cuda.current_device"),
            ("n = n if settings.fast else 16", "made_up.server.settings.fast"),
            ("n = settings.extra + n", "made_up.server.settings.extra"),
            ("for _ in settings.layers: pass", "made_up.server.settings.layers"),
            ("n = len(torch.cuda.device_names)", "torch.cuda.device_names"),
            ("wide = settings.mode == 'wide'", "made_up.server.settings.mode"),
        ],
    )
    def test_what_only_a_running_engine_knows_is_refused_by_name(self, made_up, body, named):
        with pytest.raises(UnsupportedKernel) as refusal:
            made_up(body).run("launch", {"x": X, "n": 100})
        assert named in str(refusal.value)
        assert "known only once a server runs" in str(refusal.value)

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            ("n = x.sum().item()", "made-up 1.0: launch .*AttributeError"),  # a tensor's inside
            ("assert n < 10, 'too long'", "made-up 1.0: launch .*AssertionError: too long"),
            (
                "raise NotImplementedError('not on this card')",
                "made-up 1.0: launch .*NotImplementedError",
            ),
            ("x = x.to(torch.float)", "converts a tensor of bf16 to fp32"),
        ],
    )
    def test_what_cannot_be_followed_says_which_version_and_why(self, made_up, body, reason):
        with pytest.raises(UnsupportedKernel, match=reason):
            made_up(body).run("launch", {"x": X, "n": 100})

    @pytest.mark.parametrize("name", ["launch.py", "shared.py"])
    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("{}['layers']", "KeyError: 'layers'"),
            ("raise SystemExit('no GPU')", "SystemExit: no GPU"),
            ("def (", "SyntaxError"),
            ("raise ValueError", "ValueError"),
        ],
    )
    def test_a_file_that_cannot_be_run_says_why_each_time(self, made_up, name, line, reason):
        launcher = made_up()
        with (launcher.source.parent / name).open("a") as file:
            file.write(f"\n{line}\n")
        for _ in range(2):
            for follow in (
                lambda: launcher.parameters("launch"),
                lambda: launcher.run("launch", {"x": X, "n": 100}),
            ):
                with pytest.raises(UnsupportedKernel, match=f"made-up 1.0.*{reason}"):
                    follow()

    def test_what_the_engine_logs_reaches_nobody(self, made_up, caplog, capfd):
        launcher = made_up()
        with (launcher.source.parent / "launch.py").open("a") as file:
            file.write("\nimport logging\nlog = logging.getLogger(__name__)\n")
            file.write("log.warning('noise')\n")
            file.write("log.setLevel(logging.INFO)\nlogging.getLogger().error('noise')\n")
        assert launcher.run("launch", {"x": X, "n": 100})
        assert "noise" not in caplog.text + "".join(capfd.readouterr())

    def test_a_file_that_is_gone_or_not_text_is_refused(self, made_up):
        launcher = made_up()
        launcher.source.write_bytes(b"\xff\xfe")
        with pytest.raises(UnsupportedKernel, match=r"launch\.py .*UnicodeDecodeError"):
            launcher.parameters("launch")
        launcher.source.unlink()
        with pytest.raises(UnsupportedKernel, match=r"launch\.py .*FileNotFoundError"):
            launcher.parameters("launch")

    @pytest.mark.parametrize(
        ("body", "launched"),
        [
            # What is not known may be named and passed on.
            ("stream = [torch.cuda.Stream, settings.streams.first]", {"BLOCK": 4}),
            # Tensors answer for their shape and type.
            ("assert x.numel() == 448 and x.stride() == (64, 1) and x.stride(-2) == 64", {}),
            ("assert x.is_floating_point() and torch.bfloat16.is_floating_point", {}),
            ("assert not torch.int.is_floating_point and x.to(torch.bfloat16) is x", {}),
            ("n = x.shape[-1] + torch._dynamo.is_compiling()", {"n": 64}),
            # Variables of the environment have their defaults, whatever they are here.
            (
                "n = 64 if get_bool_env_var('X', 'true') and not get_bool_env_var('X') else 32",
                {"n": 64},
            ),
            ("return _kernel[(1,)](x, n, BLOCK=tl.float32)", {"BLOCK": TritonType("fp32")}),
            ("return _kernel[(1,)](x, n, BLOCK=tl.int32)", {"BLOCK": TritonType("int32")}),
        ],
    )
    def test_a_body_is_run_as_the_engine_would(self, made_up, body, launched, monkeypatch):
        monkeypatch.setenv("X", "true")
        (launch,) = made_up(body).run("launch", {"x": X, "n": 3})
        assert launched.items() <= launch.arguments.items()

    def test_allocated_tensors_are_told_apart_by_identity(self, made_up):
        body = "x, wide = torch.empty((7, 64), dtype=torch.float), x.new_empty((7, 64))\n"
        body += "    _kernel[(1,)](wide, n, BLOCK=1)"
        followed = made_up(body).follow("launch", {"x": X, "n": 3})
        first, second = (launch.arguments["X"] for launch in followed.launches)
        assert (first, second) == (TensorSpec("", X.shape, "bf16"), TensorSpec("", X.shape, "fp32"))
        assert followed.result is None

    def test_a_grid_may_be_a_function_of_the_constants(self, made_up):
        body = "_kernel[lambda meta: (meta['BLOCK'], meta['n'], meta['num_warps'])]"
        (first, _) = made_up(f"{body}(x, n, BLOCK=5, num_warps=8)").run("launch", {"x": X, "n": 3})
        assert first.grid == (5, 3, 8)

    @pytest.mark.parametrize("target", [SM90, SM100], ids=lambda target: target.name)
    def test_the_platform_is_the_targets(self, made_up, target):
        made = made_up("n = 64 if get_platform().is_sm90 else 32", target)
        (launch,) = made.run("launch", {"x": X, "n": 3})
        assert launch.arguments["n"] == (64 if target is SM90 else 32)
        with pytest.raises(UnsupportedKernel, match="is_blackwell, which is known only once"):
            made_up("if get_platform().is_blackwell: pass", target).run("launch", {"x": X, "n": 3})

    def test_a_variable_of_the_engine_has_its_declared_default(self, made_up):
        """What is computed at start is no default that is known."""
        body = "from made_up.srt.environ import envs; n = 5 if envs.{}.get() else 6"
        for variable, n in (("ON", 5), ("OFF", 6)):
            made = made_up(body.format(variable))
            declared = made.root / "srt" / "environ.py"
            declared.parent.mkdir(exist_ok=True)
            declared.write_text(
                "class Envs:\n    ON = EnvBool(True)\n    OFF = EnvBool(False)\n"
                "    BY_CARD = EnvBool(_on_hip)\n"
            )
            (launch,) = made.run("launch", {"x": X, "n": 3})
            assert launch.arguments["n"] == n
        with pytest.raises(
            UnsupportedKernel, match=r"envs.BY_CARD.get\(...\), which is known only"
        ):
            made_up(body.format("BY_CARD")).run("launch", {"x": X, "n": 3})

    def test_names_are_replaced_for_one_run(self, made_up):
        made = made_up("n = WIDTH")
        assert made.run("launch", {"x": X, "n": 3})[0].arguments["n"] == 4
        replaced = made.follow("launch", {"x": X, "n": 3}, {"WIDTH": 8})
        assert replaced.launches[0].arguments["n"] == 8
        assert made.run("launch", {"x": X, "n": 3})[0].arguments["n"] == 4
        with pytest.raises(UnsupportedKernel, match=r"has no LOADER in launch.py"):
            made.follow("launch", {"x": X, "n": 3}, {"LOADER": 8})
        assert made.has("WIDTH")
        assert not made.has("LOADER")

    def test_a_cached_function_is_asked_anew(self, made_up):
        made = made_up()
        with made.source.open("a") as file:
            file.write("\nimport functools\n@functools.lru_cache\n")
            file.write("def width(n):\n    return WIDTH\n")
        assert made.follow("width", {"n": 1}).result == 4
        assert made.follow("width", {"n": 1}, {"WIDTH": 8}).result == 8
        assert made.follow("width", {"n": 1}).result == 4

    def test_a_missing_function_or_argument_is_named(self, made_up):
        with pytest.raises(UnsupportedKernel, match=r"made-up 1.0: launch needs 'n'"):
            made_up().run("launch", {"x": X})
        with pytest.raises(UnsupportedKernel, match=r"made-up 1.0 has no launched in launch.py"):
            made_up().parameters("launched")
        assert made_up().parameters("launch") == ("x", "n", "wide")


def point(problem, part, batch=3, new=200, cached=1000):
    new = 1 if problem.phase is AttentionPhase.DECODE else new
    return Point(batch, part, new, 0 if problem.phase is AttentionPhase.PREFILL else cached)


class TestEngines:
    @pytest.mark.parametrize("text", PROBLEMS)
    @pytest.mark.parametrize("version", RELEASES)
    def test_every_version_says_what_it_launches_for_every_phase(self, version, text):
        kernels = lift_attention(find_engine(f"sglang=={version}"))
        problem = parse_attention(text)
        assert problem.parts
        for target in (SM80, SM89, SM90, SM100, SM120):
            for part in problem.parts:
                at = point(problem, part)
                own = kernels.default_config(problem, at, target)
                assert set(own) <= set(CHOICES[part])
                assert {"num_warps"} <= set(own)
                binding = kernels.bind(problem, at, own, target)
                parameters = kernels.lifted(problem.phase).parameters(binding.function)
                assert [p.name for p in binding.parameters] == [p.name for p in parameters]
                assert binding.variant().options["num_warps"] == own["num_warps"]
                launched = kernels.launch(problem, at, target)
                assert kernels.grid(problem, at, own, target) == launched.grid

    @pytest.mark.parametrize("version", ["0.5.16", "0.5.23"])
    def test_extend_s_launch_is_known_on_amd_too(self, version):
        """0.5.18 and later ask there for variables of theirs, and none is set."""
        kernels = lift_attention(find_engine(f"sglang=={version}"))
        for text in PROBLEMS[:3]:
            problem = parse_attention(text)
            for card in ("MI300X", "MI355X"):
                own = kernels.default_config(
                    problem, point(problem, AttentionPart.EXTEND), find_device(card).target
                )
                assert {"BLOCK_M", "BLOCK_N", "num_warps"} <= set(own)

    @pytest.mark.parametrize("version", RELEASES)
    @pytest.mark.parametrize(
        ("field", "constant", "value"),
        [("sinks", "HAS_SINK", True), ("window=127", "SLIDING_WINDOW_SIZE", 127)],
    )
    def test_what_a_version_lacks_is_refused(self, version, field, constant, value):
        kernels = lift_attention(find_engine(f"sglang=={version}"))
        problem = parse_attention(f"extend_attention:{GQA},{field}")
        at = point(problem, AttentionPart.EXTEND)
        if version == "0.4.4":
            with pytest.raises(UnsupportedKernel, match=f"no {field.partition('=')[0]}"):
                kernels.default_config(problem, at, SM89)
        else:
            variant = kernels.bind(problem, at, Config({}), SM89).variant()
            assert variant.constants[constant] == value

    def test_prefixes_keys_are_cut_as_the_others_where_the_engine_cuts_them_so(self):
        kernels = lift_attention(find_engine("sglang==0.5.23"))
        problem = parse_attention(f"extend_attention:{GQA}")
        bound = kernels.bind(
            problem, point(problem, AttentionPart.EXTEND), Config({"BLOCK_N": 32}), SM90
        )
        assert bound.arguments["BLOCK_N"] == bound.arguments["BLOCK_N_PREFIX"] == Constant(32)

    @pytest.mark.parametrize(
        ("key", "near"), [("BLOCK_MM", "BLOCK_M"), ("num_warp", "num_warps"), ("BLOCK_H", "BLOCK_")]
    )
    def test_an_unknown_constant_is_refused_and_the_nearest_named(self, key, near):
        kernels = lift_attention(find_engine("sglang==0.5.16"))
        problem = parse_attention(f"extend_attention:{GQA}")
        with pytest.raises(UnsupportedKernel, match=rf"_fwd_kernel has no '{key}'.*{near}"):
            kernels.bind(problem, point(problem, AttentionPart.EXTEND), Config({key: 16}), SM90)

    def test_a_part_of_another_phase_is_refused(self):
        kernels = lift_attention(find_engine("sglang==0.5.16"))
        problem = parse_attention(f"extend_attention:{GQA}")
        with pytest.raises(UnsupportedKernel, match="launches nothing"):
            kernels.default_config(problem, Point(1, AttentionPart.REDUCE, 1, 1000), SM90)


@pytest.fixture(scope="module")
def kernels():
    return lift_attention(find_engine("sglang==0.5.16"))


class TestGrid:
    """Blocks cover all rows and heads, as the engine's launcher counts them."""

    @pytest.mark.parametrize("text", PROBLEMS)
    def test_every_configuration_of_a_space_binds_and_has_a_grid(self, kernels, text):
        problem, device = parse_attention(text), find_device("H200")
        assert problem.parts
        for part in problem.parts:
            at = point(problem, part)
            own = kernels.default_config(problem, at, SM90)
            space = attention_space(problem, device, part, own)
            assert space.legal(own)
            variants = set()
            for config in space.configs():
                _, binding = kernels.binder(problem, SM90)(Candidate(at, config))
                variants.add(str(binding.variant().as_json()))
                assert all(n > 0 for n in kernels.grid(problem, at, config, SM90))
            assert len(variants) == len(space) > 0
