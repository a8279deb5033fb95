"""The plugin's parts without an engine: what is registered, what is refused, what is launched."""

import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest
from plugin_cases import attention_file, here, put

import tuner.bindings.sglang.plugin
from tuner.bindings.sglang.plugin import backend
from tuner.bindings.sglang.plugin.file_checks import check_file, title
from tuner.bindings.sglang.plugin.files import AttentionEntry
from tuner.bindings.sglang.plugin.kernels import EXTEND, GROUPED, REDUCE
from tuner.bindings.sglang.plugin.launches import TunedLaunches, note_launcher, noted, stand_in
from tuner.errors import UnsupportedKernel
from tuner.export.file_checks import log_items
from tuner.families.attention.problem import AttentionPart
from tuner.problems.points import Config
from tuner.problems.registry import parse_problem
from tuner.problems.results import Status

BLOCKS = {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
SPEC = "extend_attention:q_heads=8,kv_heads=2,Lq=64,Lv=64,dtype=bfloat16"
REDUCED = "decode_attention:q_heads=8,kv_heads=2,Lq=64,Lv=64,dtype=bfloat16,kv_splits=8"
REDUCE_ROWS = [("reduce", 1, 1, {"num_warps": 2})]


def made(spec=SPEC, rows=(("extend", 2, 64, BLOCKS),), status=Status.OK, **changes):
    entries = (
        AttentionEntry(AttentionPart(part), batch, new, Config(config), status)
        for part, batch, new, config in rows
    )
    return attention_file(parse_problem(spec), entries, **changes)


# Registering


@pytest.fixture
def registry(monkeypatch):
    """sglang's hook registry, as a module that notes what is registered."""
    noted = []
    hooks = ModuleType("sglang.srt.plugins.hook_registry")
    hooks.HookSource = lambda *names: names
    hooks.HookType = SimpleNamespace(AROUND="around")
    hooks.HookRegistry = SimpleNamespace(
        register=lambda target, hook, kind, source: noted.append((target, kind, source))
    )
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, hooks.__name__, hooks)
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.scheduler", ModuleType("scheduler"))
    monkeypatch.delenv("TUNER_ATTENTION_CONFIG_DIR", raising=False)
    monkeypatch.delenv("SGLANG_MOE_CONFIG_DIR", raising=False)
    return noted


@pytest.mark.parametrize(
    ("family", "modules"),
    [("chunk_scan", 8), ("gated_delta", 12)],
)
def test_files_of_scans_wait_for_the_modules_of_kernels(
    registry, monkeypatch, tmp_path, family, modules
):
    before = list(sys.meta_path)
    monkeypatch.setattr(sys, "meta_path", list(before))
    monkeypatch.setenv("TUNER_SCAN_CONFIG_DIR", str(tmp_path))
    tuner.bindings.sglang.plugin.register()
    assert sys.meta_path == before
    (tmp_path / "chunk_scan" / "triton_3_6_0").mkdir(parents=True)
    (tmp_path / "chunk_scan" / "triton_3_6_0" / f"{family},file.json").touch()
    tuner.bindings.sglang.plugin.register()
    assert (
        len(sys.meta_path) == len(before) + modules
    )  # a file is in either of two packages, or in one
    assert registry == []


@pytest.mark.parametrize("variable", ["TUNER_ATTENTION_CONFIG_DIR", "SGLANG_MOE_CONFIG_DIR"])
def test_files_of_either_variable_hook_the_backend(registry, variable, monkeypatch, tmp_path):
    put(tmp_path, made())
    monkeypatch.setenv(variable, str(tmp_path))
    tuner.bindings.sglang.plugin.register()
    target = "sglang.srt.layers.attention.triton_backend.TritonAttnBackend.__init__"
    assert registry == [(target, "around", ("tuner_attention", "engine-tuner"))]


@pytest.mark.parametrize("root", [None, "", "missing", "empty", "files, and no scheduler"])
def test_without_files_or_a_scheduler_nothing_is_registered_or_said(
    registry, root, monkeypatch, tmp_path, caplog
):
    (tmp_path / "empty" / "attention").mkdir(parents=True)
    (tmp_path / "empty" / "configs").mkdir()
    if root == "files, and no scheduler":
        put(tmp_path / root, made())
        monkeypatch.delitem(sys.modules, "sglang.srt.managers.scheduler")
    if root is not None:
        monkeypatch.setenv("TUNER_ATTENTION_CONFIG_DIR", root and str(tmp_path / root))
    with caplog.at_level(logging.INFO):
        tuner.bindings.sglang.plugin.register()
    assert registry == []
    assert caplog.records == []


def test_a_server_does_not_say_that_it_uses_what_it_could_not_hook(monkeypatch, tmp_path):
    path = put(tmp_path, made())
    monkeypatch.setattr(backend, "_runtime_facts", here)
    hooked = TunedLaunches(EXTEND, Kernel())
    monkeypatch.setattr(backend, "_state", backend._State(True, [hooked]))
    assert backend._use(tmp_path) == (f"tuner attention: extend 8/2 64/64 bfloat16 from {path}")
    assert launch(hooked) == TUNED
    monkeypatch.setattr(backend, "_state", backend._State(True, [], ["sglang has no _fwd_kernel"]))
    assert backend._use(tmp_path) == (
        f"tuner attention: no file applies; refused {path}: sglang's _fwd_kernel cannot be hooked; "
        "sglang has no _fwd_kernel"
    )


@pytest.mark.parametrize("hooked", [[], [GROUPED], [REDUCE], [GROUPED, REDUCE]])
def test_splits_are_chosen_only_if_both_of_decodes_kernels_are_hooked(
    hooked, monkeypatch, tmp_path
):
    put(tmp_path, made(REDUCED, REDUCE_ROWS))
    monkeypatch.setattr(backend, "_runtime_facts", here)
    launches = [TunedLaunches(kernel, Kernel()) for kernel in hooked]
    monkeypatch.setattr(backend, "_state", backend._State(True, launches))
    line = backend._use(tmp_path)
    lacking = " and ".join(k.name for k in (GROUPED, REDUCE) if k not in hooked)
    assert bool(backend._state.files) == (not lacking)
    assert (f"sglang's {lacking} cannot be hooked" in line) == bool(lacking)


def test_decode_of_a_server_with_windows_is_left_alone_without_a_table(monkeypatch, tmp_path):
    put(tmp_path, made(REDUCED, REDUCE_ROWS))
    monkeypatch.setattr(backend, "_runtime_facts", here)
    launches = [TunedLaunches(kernel, Kernel()) for kernel in (GROUPED, REDUCE)]
    monkeypatch.setattr(backend, "_state", backend._State(True, launches, windowed=True))
    assert "layers with a sliding window" in backend._use(tmp_path)
    assert not backend._state.files


def test_a_hundred_files_are_compared_with_one_lift_and_told_in_one_line(
    monkeypatch, tmp_path, caplog
):
    lifts = []
    facts = here(engine_version="0.5.24", kernel_hashes=lambda: lifts.append(1) or ("others",))
    for heads in range(2, 202, 2):
        put(tmp_path, made(SPEC.replace("q_heads=8", f"q_heads={heads}")))
    (tmp_path / "attention" / "triton_3_6_0" / "broken.json").write_text("{")
    monkeypatch.setattr(backend, "_runtime_facts", lambda: facts)
    monkeypatch.setattr(backend, "_state", backend._State(True, [TunedLaunches(EXTEND, Kernel())]))
    line = backend._use(tmp_path)
    assert lifts == [1]
    assert line.startswith("tuner attention: no file applies; refused ")
    assert line.endswith("; refused 92 more files")
    assert len(line) < 4000
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    backend._use(tmp_path)  # another backend in this process
    assert lifts == [1]


def test_what_is_for_this_gpu_is_named_before_what_is_not(tmp_path):
    cards = [made(SPEC.replace("q_heads=8", f"q_heads={2 * n}"), device="A") for n in range(2, 20)]
    mine = made(kernel_hash="older")
    checks = [check_file(put(tmp_path, file), here()) for file in (*cards, mine)]
    first, *others = log_items("attention", checks)
    assert "whose kernels are not those of 0.5.16" in first
    assert others[-1] == "refused 11 more files"


# Verdicts


def unreadable():
    raise UnsupportedKernel("sglang 0.5.17 has no kernel _fwd_kernel")


@pytest.mark.parametrize(
    ("file", "place", "reason"),
    [
        (made(), here(), ""),
        (made(device="NVIDIA_L40S"), here(), "made for NVIDIA_L40S, this is NVIDIA_H200"),
        (made(triton="3.5.1"), here(), "made for triton 3.5.1, this is 3.6.0"),
        (made(engine="vllm"), here(), "made for vllm, this is sglang"),
        (made(), here(engine_version="0.5.17"), ""),  # the same kernels
        (  # a fork, or a patched image, of the same version
            made(),
            here(kernel_hashes=lambda: ("others",)),
            "made for sglang 0.5.16, whose kernels are not those of 0.5.16",
        ),
        (
            made(),
            here(engine_version="0.5.17", kernel_hashes=lambda: ("others",)),
            "made for sglang 0.5.16, whose kernels are not those of 0.5.17",
        ),
        (
            made(),
            here(engine_version="0.5.17", kernel_hashes=unreadable),
            "made for sglang 0.5.16, and the kernels of 0.5.17 cannot be compared: "
            "sglang 0.5.17 has no kernel _fwd_kernel",
        ),
        (
            made(REDUCED, REDUCE_ROWS),
            here(kv_splits=lambda problem: frozenset({256, 16})),
            "made for 8 KV splits, this server launches 16 or 256",
        ),
        (made(REDUCED, REDUCE_ROWS), here(kv_splits=lambda problem: frozenset({256, 8})), ""),
    ],
)
def test_a_file_is_used_only_where_it_was_made_for(file, place, reason, tmp_path):
    verdict = check_file(put(tmp_path, file), place)
    assert verdict.reason == reason
    assert verdict.used == (not reason)


def test_what_is_not_known_is_not_compared(tmp_path):
    assert check_file(put(tmp_path, made()), here(device=None, triton=None)).used


def test_how_verdicts_read(tmp_path):
    path = put(tmp_path, made(status=Status.PREDICTED))
    assert str(check_file(path, here())) == f"extend 8/2 64/64 bfloat16 from {path} (predicted)"
    path.write_text("{}")
    assert str(check_file(path, here())) == (
        f"refused {path}: its format is None; this version of the tuner reads 1 and 2"
    )
    spec = f"{REDUCED},page_size=64,window=127,sinks,logit_cap=30.5"
    assert title(parse_problem(spec)) == (
        "decode 8/2 64/64 bfloat16 pages of 64 8 splits window 127 sinks logit cap 30.5"
    )


# Launches


class Kernel:
    """A jitted kernel with extend's parameters, as of sglang 0.5.23; notes what it is given."""

    def __init__(self, definition=None):
        def fn(
            Q_Extend, K_Extend, V_Extend, O_Extend, K_Buffer, V_Buffer, sm_scale, kv_group_num,
            SLIDING_WINDOW_SIZE, logit_cap, Lq, Lv, BLOCK_M, BLOCK_N, BLOCK_N_PREFIX, HAS_SINK,
            USE_CUSTOM_MASK, IS_CAUSAL, PAGE_SIZE=1, SCORE_MOD=None,
        ):  # fmt: skip
            raise AssertionError("never called")

        self.fn = definition or fn
        self.arg_names = list(self.fn.__code__.co_varnames[: self.fn.__code__.co_argcount])
        self.launched = []

    def run(self, *args, grid, warmup, **kwargs):
        given = dict(zip(self.arg_names, args, strict=False)) | kwargs
        self.launched.append((grid, warmup, given))
        return "launched"


def tensors(dtype="torch.bfloat16"):
    tensor = SimpleNamespace(dtype=dtype)
    return (tensor,) * 6


PLAIN = {
    "SLIDING_WINDOW_SIZE": -1,
    "logit_cap": 0.0,
    "Lq": 64,
    "Lv": 64,
    "BLOCK_M": 128,
    "BLOCK_N": 64,
    "BLOCK_N_PREFIX": 64,
    "HAS_SINK": False,
    "USE_CUSTOM_MASK": False,
    "IS_CAUSAL": True,
    "num_warps": 8,
    "num_stages": 1,
}
GRID = (2, 8, 1)


def by_rule(meta):
    return GRID


def extend_launches(*files):
    launches = TunedLaunches(EXTEND, Kernel())
    launches.use(files)
    return launches


def launch(launches, tokens=100, grid=GRID, args=None, **changes):
    """One launch through the stand-in: the grid and the constants that reach the kernel."""
    kernel = launches.jitted
    noted.about = (tokens,)
    args = args or (*tensors(), 0.125, 4)
    try:
        answer = stand_in(launches)[grid](*args, **{**PLAIN, **changes})
    finally:
        noted.about = ()
    assert answer == "launched"
    grid, warmup, given = kernel.launched[-1]
    return grid, {name: given[name] for name in (*BLOCKS, "BLOCK_N_PREFIX")}


TUNED = ((2, 8, 4), {**BLOCKS, "BLOCK_N_PREFIX": 32})
OWN = (GRID, {name: PLAIN[name] for name in (*BLOCKS, "BLOCK_N_PREFIX")})


def test_a_plain_launch_is_tuned_with_its_grid():
    launches = extend_launches(made())
    assert launch(launches) == TUNED
    assert launch(launches) == TUNED  # remembered
    assert launch(launches, tokens=33) == ((2, 8, 2), TUNED[1])  # the same grid of the engine's
    assert launch(launches, tokens=128) == ((2, 8, 4), TUNED[1])


@pytest.mark.parametrize(
    "changes",
    [
        {"USE_CUSTOM_MASK": True},
        {"IS_CAUSAL": False},
        {"SCORE_MOD": print},
        {"HAS_SINK": True},
        {"SLIDING_WINDOW_SIZE": 127},
        {"logit_cap": 30.0},
        {"PAGE_SIZE": 64},
        {"Lq": 128},
        {"BLOCK_N_PREFIX": 128},
        {"grid": (2, 4, 1)},  # other heads
        {"grid": (2, 8, 2)},  # not the engine's rule
        {"grid": (2, 8)},
        {"grid": [2, 8, 1]},
        {"grid": by_rule},
        {"tokens": 0},  # not through the launcher
        {"tokens": "100"},
        {"args": (*tensors("torch.float16"), 0.125, 4)},
        {"args": (*tensors()[:4], *tensors("torch.float8_e4m3fn")[4:], 0.125, 4)},
        {"args": (*tensors(), 0.125, 2)},  # other groups
        {"args": (*tensors(), 0.125, [4])},  # what cannot be remembered
        {"args": (*tensors()[:5], None, 0.125, 4)},
        {"waves_per_eu": 1},
    ],
    ids=lambda changes: repr(changes).partition(" at 0x")[0],
)
def test_any_other_launch_is_the_engines(changes):
    launches = extend_launches(made())
    given = {"grid": GRID, **changes}
    for _ in range(2):
        grid, constants = launch(launches, **given)
        assert grid == given["grid"]
        assert constants == {**OWN[1], **{k: v for k, v in changes.items() if k in OWN[1]}}
    assert launch(launches) == TUNED  # nothing of it sticks


def test_a_constant_given_by_position_is_left_alone():
    launches = extend_launches(made())
    given = dict(PLAIN)
    args = (*tensors(), 0.125, 4, *(given.pop(n) for n in launches.jitted.arg_names[8:13]))
    noted.about = (100,)
    launches.at(GRID)(*args, **given)
    grid, _, constants = launches.jitted.launched[-1]
    assert (grid, constants["BLOCK_M"], constants["num_warps"]) == (GRID, 128, 8)
    noted.about = ()


def test_until_files_are_used_and_where_the_engines_own_won_nothing_changes():
    assert launch(TunedLaunches(EXTEND, Kernel())) == OWN
    launches = extend_launches(made(status=Status.INCUMBENT))
    assert launch(launches) == OWN
    launches.use([made()])
    assert launch(launches) == TUNED


def test_a_stand_in_is_its_kernel_in_all_else():
    launches = extend_launches(made())
    stood = stand_in(launches)
    assert stood.__name__ == "_fwd_kernel"
    assert stood.fn is launches.jitted.fn
    assert stood.arg_names == launches.jitted.arg_names
    assert stood.run(grid=GRID, warmup=True) == "launched"
    with pytest.raises(AttributeError, match="no attribute 'device_caches'"):
        _ = stood.device_caches


def test_the_first_launch_compiles_what_others_of_the_problem_need():
    other = {**BLOCKS, "BLOCK_M": 64}
    rows = [("extend", 1, 64, BLOCKS), ("extend", 1, 4096, other), ("extend", 8, 64, BLOCKS)]
    launches = extend_launches(made(rows=rows))
    launch(launches, grid=(1, 8, 1))
    launch(launches, tokens=8000, grid=(1, 8, 63))
    blocks = [(warmup, given["BLOCK_M"]) for _, warmup, given in launches.jitted.launched]
    assert blocks == [(True, 32), (True, 64), (False, 32), (False, 64)]


@pytest.mark.parametrize(("tokens", "grid"), [(31, GRID), (300, (2, 8, 3)), (100, (1, 8, 1))])
def test_sizes_that_are_not_near_a_tuned_one_are_launched_as_the_engine_does(tokens, grid):
    launches = extend_launches(made(rows=[("extend", 4, 64, BLOCKS)]))
    assert launch(launches, tokens=64) == ((2, 8, 2), TUNED[1])
    assert launch(launches, tokens=tokens, grid=grid) == (grid, OWN[1])


def test_an_error_of_tritons_gives_way_and_any_other_does_not():
    triton_errors = pytest.importorskip("triton.errors")
    launches = extend_launches(made())
    kernel = launches.jitted
    error = triton_errors.TritonError("out of resource")

    def refusing(*args, grid, warmup, **kwargs):
        if kwargs["BLOCK_M"] == 32:
            raise error
        return Kernel.run(kernel, *args, grid=grid, warmup=warmup, **kwargs)

    kernel.run = refusing
    assert launch(launches) == OWN
    error = RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
    assert launch(launches) == OWN  # it is not tried again
    launches.use([made()])
    with pytest.raises(RuntimeError, match="illegal memory"):
        launch(launches, tokens=99)


def test_a_configuration_that_triton_refuses_is_tried_and_told_once(caplog):
    triton_errors = pytest.importorskip("triton.errors")
    launches = extend_launches(made(rows=[("extend", 1, n, BLOCKS) for n in (16, 64, 256, 1024)]))
    kernel, tried = launches.jitted, []

    def refusing(*args, grid, warmup, **kwargs):
        if kwargs["BLOCK_M"] == 32 and not warmup:
            tried.append(grid)
            raise triton_errors.TritonError("out of resource")
        return Kernel.run(kernel, *args, grid=grid, warmup=warmup, **kwargs)

    kernel.run = refusing
    for tokens in range(8, 2000):
        grid = (1, 8, -(-tokens // 128))
        assert launch(launches, tokens=tokens, grid=grid) == (grid, OWN[1])
    assert len(tried) == len(caplog.records) == 1
    launches.use([made()])  # another file may have the same constants
    assert launches._refused == set()


def test_memory_does_not_grow_without_end():
    launches = extend_launches(made())
    for tokens in range(1, 10_000):
        launch(launches, tokens=tokens, grid=(1, 8, -(-tokens // 128)))
    assert len(launches._decided) <= 4096


def test_blocks_of_heads_change_the_grid_of_grouped_decode():
    def fn(
        Q, K_Buffer, V_Buffer, kv_group_num, q_head_num, logit_cap, Lk, Lv, BLOCK_N, BLOCK_H,
        HAS_MLA, ROTATE_BATCH=False,
    ):  # fmt: skip
        raise AssertionError("never called")

    spec = "decode_attention:q_heads=128,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16,kv_splits=8"
    decode = {"BLOCK_N": 32, "BLOCK_H": 64, "num_warps": 4, "num_stages": 2}
    launches = TunedLaunches(GROUPED, Kernel(fn))
    launches.use([made(spec, [("decode", 1, 1, decode)])])
    given = {"kv_group_num": 128, "q_head_num": 128, "logit_cap": 0.0, "Lk": 576, "Lv": 512}
    given |= {"BLOCK_N": 32, "BLOCK_H": 16, "HAS_MLA": True, "num_warps": 4, "num_stages": 2}

    def grid(splits=8, **changes):
        engines = (1, 8, splits)
        noted.about = (1, 128, 576), (9, 1, 576), (9, 1, 512), 0.0, None, 1
        launches.at(engines)(*tensors()[:3], **{**given, **changes})
        noted.about = ()
        return launches.jitted.launched[-1][0]

    assert grid() == (1, 2, 8)
    assert grid(HAS_MLA=False) == (1, 8, 8)
    assert grid(splits=16) == (1, 8, 16)
    assert grid(BLOCK_H=32) == (1, 8, 8)  # not the grid that the engine's rule would give
    assert grid(ROTATE_BATCH=True) == (1, 2, 8)  # AMD's order of blocks


ABOUT = ((1, 8, 64), (9, 2, 64), (9, 2, 64), 0.0, None, 1)


@pytest.mark.parametrize(
    ("about", "tuned"),
    [
        (ABOUT, True),
        (((1, 8, 64), (9, 8, 64), (9, 8, 64), 0.0, None, 1), False),  # other key heads
        (((1, 8, 96), (9, 2, 96), (9, 2, 64), 0.0, None, 1), False),  # longer keys
        ((*ABOUT[:3], 30.0, None, 1), False),
        ((*ABOUT[:3], 0.0, (8,), 1), False),  # sinks, of which the launch knows nothing
        ((*ABOUT[:3], 0.0, None, 64), False),
        ((), False),  # not through the launcher
    ],
)
@pytest.mark.parametrize("window", [0, 127])
def test_stage_two_is_of_the_whole_shape(about, tuned, window):
    """It is told neither of key heads nor of keys, a cap or pages: its launcher is."""

    def fn(O, v_scale, MAX_KV_SPLITS, Lv, HAS_SINK):  # noqa: E741
        raise AssertionError("never called")

    launches = TunedLaunches(REDUCE, Kernel(fn))
    spec = f"{REDUCED},window={window}" if window else REDUCED
    launches.use([made(spec, REDUCE_ROWS)])
    given = {"MAX_KV_SPLITS": 8, "Lv": 64, "HAS_SINK": False, "num_warps": 4, "num_stages": 2}
    noted.about = about
    launches.at((1, 8))(tensors()[0], 1.0, **given)
    noted.about = ()
    grid, _, given = launches.jitted.launched[-1]
    warps = 2 if tuned and not window else 4
    assert (grid, given["num_warps"], given["num_stages"]) == ((1, 8), warps, 2)


def test_what_a_launcher_is_given_is_noted_while_it_runs():
    seen = []

    def launcher(q, is_causal, max_len_extend, sm_scale=None):
        seen.append(noted.about)
        if sm_scale:
            raise ValueError

    around = note_launcher(launcher, ("max_len_extend",))
    around(launcher, 1, True, 77)
    around(launcher, 1, True, max_len_extend=78)
    with pytest.raises(ValueError):
        around(launcher, 1, True, 79, sm_scale=1.0)
    assert seen == [(77,), (78,), (79,)]
    assert noted.about == ()
    around = note_launcher(launcher, ("q", "page_size", "sm_scale"))
    around(launcher, SimpleNamespace(shape=(2, 3)), True, 80)
    assert seen[-1] == ((2, 3), None, None)


def test_kernels_with_parameters_of_an_unknown_meaning_do_not_fit():
    names = Kernel().arg_names
    assert EXTEND.unfit(names) == ""
    assert EXTEND.unfit([*names, "USE_FP4"]) == (
        "_fwd_kernel takes USE_FP4, which this version does not know"
    )
    assert EXTEND.unfit([n for n in names if n != "HAS_SINK"]) == (
        "_fwd_kernel does not take HAS_SINK"
    )
