"""Workloads: those of each use, and TOML files."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from draws import json_values
from hypothesis import given
from hypothesis import strategies as st

import tuner.families.attention.workloads
from tuner.errors import MalformedWorkload
from tuner.families.attention.problem import Attention, AttentionPhase, parse_attention
from tuner.families.attention.workloads import (
    MAX_BATCH,
    MAX_CACHED,
    MAX_NEW,
    USES,
    Workload,
    WorkPoint,
    default_workload,
    parse_workload,
    read_points,
    read_workload,
    usual_workload,
)
from tuner.problems.dtypes import Dtype

PREFILL_TOKENS = 8192  # sglang's chunked prefill has no larger batch of new tokens on most GPUs


@pytest.fixture
def written(tmp_path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "mine.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize("use", USES)
class TestUses:
    def test_each_phase_has_few_points(self, use):
        for phase in AttentionPhase:
            assert 1 <= len(default_workload(phase, use).points) <= 12

    def test_a_decode_batch_size_is_tried_at_more_than_one_length(self, use):
        lengths: dict[int, set[int]] = {}
        for point in default_workload(AttentionPhase.DECODE, use).points:
            assert point.decodes
            lengths.setdefault(point.batch_size, set()).add(point.cached_tokens)
        assert len(lengths) > 3 and all(2 <= len(found) <= 3 for found in lengths.values())

    def test_an_extend_batch_is_tried_with_and_without_a_prefix(self, use):
        prefixes: dict[tuple[int, int], set[int]] = {}
        for point in default_workload(AttentionPhase.EXTEND, use).points:
            prefixes.setdefault((point.batch_size, point.new_tokens), set()).add(
                point.cached_tokens
            )
        assert prefixes
        for (batch_size, new_tokens), found in prefixes.items():
            assert 0 in found and len(found) == 2
            assert batch_size * new_tokens <= PREFILL_TOKENS

    def test_prefill_has_what_finds_nothing_cached(self, use):
        extend = default_workload(AttentionPhase.EXTEND, use).points
        assert default_workload(AttentionPhase.PREFILL, use).points == tuple(
            point for point in extend if not point.cached_tokens
        )

    def test_its_name_parses(self, use):
        assert parse_workload(use) == use


def test_chat_is_the_usual_one():
    assert usual_workload(AttentionPhase.DECODE) == default_workload(AttentionPhase.DECODE, "chat")


class TestProblems:
    def points(self, spec: str, *points: WorkPoint) -> tuple[WorkPoint, ...]:
        problem = parse_attention(f"{spec},dtype=bfloat16")
        return Workload("mine", points).for_problem(problem).points

    def test_a_problem_has_the_points_of_its_phase(self):
        both = WorkPoint(4, 512, 1024), WorkPoint(64, 1, 4096)
        heads = "q_heads=32,kv_heads=8,Lq=128,Lv=128"
        assert self.points(f"extend_attention:{heads}", *both) == both[:1]
        assert self.points(f"decode_attention:{heads}", *both) == both[1:]

    def test_a_window_is_all_of_the_cache_that_its_kernel_is_given(self):
        found = self.points(
            "extend_attention:q_heads=64,kv_heads=8,Lq=64,Lv=64,window=127",
            WorkPoint(4, 512, 0),
            WorkPoint(4, 512, 100),
            WorkPoint(4, 512, 4096, 2.0),
            WorkPoint(4, 512, 8192, 3.0),
        )
        assert found == (WorkPoint(4, 512, 0), WorkPoint(4, 512, 100), WorkPoint(4, 512, 127, 5.0))

    def test_latent_attention_before_absorption_has_nothing_cached(self):
        both = WorkPoint(4, 512, 0), WorkPoint(4, 512, 4096)
        whole = "extend_attention:q_heads=16,kv_heads=16,Lq=192,Lv=128"
        assert self.points(whole, *both) == both[:1]
        assert self.points(whole, both[1]) == both[1:]  # asked for, so it is measured
        absorbed = "extend_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512"
        assert self.points(absorbed, *both) == both

    def test_a_phase_without_points_says_what_to_write(self):
        with pytest.raises(MalformedWorkload, match="mine has no point of decode: leave new_tok"):
            self.points("decode_attention:q_heads=1,kv_heads=1,Lq=64,Lv=64", WorkPoint(1, 8, 0))

    @given(
        st.lists(
            st.builds(
                WorkPoint,
                st.integers(1, 8),
                st.integers(2, 9),
                st.integers(0, 300),
                st.integers(1, 9).map(float),
            ),
            min_size=1,
        ),
        st.integers(0, 300),
    )
    def test_weights_are_kept_in_sum(self, points, window):
        problem = Attention(AttentionPhase.EXTEND, 8, 8, 64, 64, Dtype.BFLOAT16, window=window)
        found = Workload("mine", tuple(points)).for_problem(problem).points
        assert sum(p.weight for p in found) == sum(p.weight for p in points)
        assert len({p.size for p in found}) == len(found)
        assert all(not window or p.cached_tokens <= window for p in found)


class TestFiles:
    def test_a_file_has_points_of_several_phases(self, written):
        path = written(
            "[[point]]\nbatch_size = 4\nnew_tokens = 512\n"
            "[[point]]\nbatch_size = 64\ncached_tokens = 4096\nweight = 2\n"
        )
        extend, decode = WorkPoint(4, 512, 0), WorkPoint(64, 1, 4096, 2.0)
        assert read_workload(path).points == (extend, decode)
        assert parse_workload(str(path)).of(AttentionPhase.EXTEND).points == (extend,)
        assert parse_workload(str(path)).of(AttentionPhase.DECODE).points == (decode,)
        assert parse_workload(str(path)).name == str(path)

    @pytest.mark.parametrize("use", USES)
    def test_the_files_of_the_uses_are_examples(self, use):
        path = Path(tuner.families.attention.workloads.__file__).with_name(f"{use}.toml")
        assert parse_workload(str(path)).of(AttentionPhase.DECODE).points == (
            default_workload(AttentionPhase.DECODE, use).points
        )

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "point is missing"),
            ("points = []", "point is missing .'points' stands there"),
            ("point = 1", r"write \[\[point\]\]"),
            ("[point]\nbatch_size = 1", r"write \[\[point\]\]"),
            ("point = []", "0 points are not 1 to 256"),
            ("point = [1]", "point 1 must be a table"),
            ("use = 1\n[[point]]\nbatch_size = 1\ncached_tokens = 8", "unknown field use"),
            ("[[point]]\ncached_tokens = 8", "point 1.batch_size is missing"),
            ("[[point]]\nbatch = 1\ncached_tokens = 8", "batch_size is missing .'batch' stands"),
            (
                "[[point]]\nbatch_size = 1\ncached_token = 8",
                "cached_tokens is missing .'cached_token' stands there",
            ),
            (
                "[[point]]\nbatch_size = 1\nnew_token = 8\ncached_tokens = 8",
                "unknown field point 1.new_token; did you mean 'new_tokens'",
            ),
            ("[[point]]\nbatch_size = 1", "cached_tokens is missing"),
            ("[[point]]\nbatch_size = 1\ncached_tokens = 0", "nearest is 1"),
            ("[[point]]\nbatch_size = 0\ncached_tokens = 8", "nearest is 1"),
            ("[[point]]\nbatch_size = 1_000_000\ncached_tokens = 8", f"nearest is {MAX_BATCH}"),
            ("[[point]]\nbatch_size = 1\nnew_tokens = -1", "nearest is 1"),
            ("[[point]]\nbatch_size = 1\nnew_tokens = 1_000_000", f"nearest is {MAX_NEW}"),
            (f"[[point]]\nbatch_size = 1\ncached_tokens = {10**30}", f"nearest is {MAX_CACHED}"),
            ("[[point]]\nbatch_size = 1.5\ncached_tokens = 8", "must be a whole number, not 1.5"),
            ("[[point]]\nbatch_size = true\ncached_tokens = 8", "must be a whole number"),
            ("[[point]]\nbatch_size = nan\ncached_tokens = 8", "must be a whole number, not nan"),
            ("[[point]]\nbatch_size = 1\ncached_tokens = 8\nweight = nan", "not nan"),
            (
                "[[point]]\nbatch_size = 1\ncached_tokens = 8\nweight = inf",
                "at most 1e.06, not inf",
            ),
            ("[[point]]\nbatch_size = 1\ncached_tokens = 8\nweight = -1.0", "more than 0"),
            ("[[point]]\nbatch_size = 1\ncached_tokens = 8\nweight = 0", "more than 0"),
            ('[[point]]\nbatch_size = 1\ncached_tokens = 8\nweight = "1"', "must be a number"),
            ("[[point]]\nbatch_size = 1\ncached_tokens = 8\nweight = true", "must be a number"),
            ("[[point]]\nbatch_size = 1\ncached_tokens = 8\n" * 2, "point 2 is point 1 again"),
            (f'[[point]]\nbatch_size = "{"x" * 9999}"', "must be a whole number"),
            (
                '[[point]]\nbatch_size = 1\ncached_tokens = 8\n"a\\nb" = 1',
                "unknown field point 1.a b",
            ),
            ("[[point]\n", "is not TOML"),
            (b"\xff", "is not TOML"),
            ("point = " + "[" * 20_000, "is not TOML"),
            (b"#" * ((1 << 20) + 1), "larger than 1 MiB"),
        ],
    )
    def test_what_is_wrong_is_named_in_one_line(self, written, text, words):
        path = written(text)
        with pytest.raises(MalformedWorkload, match=words) as caught:
            read_workload(path)
        message = str(caught.value)
        assert message.startswith(str(path)) and "\n" not in message and len(message) < 500

    @pytest.mark.parametrize("name", ["nowhere.toml", "x\0.toml", "d" * 9999 + ".toml", "/"])
    def test_a_file_that_cannot_be_read(self, name):
        with pytest.raises(MalformedWorkload, match="cannot be read") as caught:
            parse_workload(name)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 400

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("chatt", "'chatt'; did you mean 'chat'"),
            ("long", "did you mean 'long-context'"),
            ("", "the uses are chat, long-context, offline"),
            ("?" * 9999, "the uses are"),
        ],
    )
    def test_an_unknown_use_is_refused_with_the_nearest(self, text, words):
        for read in (
            lambda: parse_workload(text),
            lambda: default_workload(AttentionPhase.EXTEND, text),
        ):
            with pytest.raises(MalformedWorkload, match=words) as caught:
                read()
            assert len(str(caught.value)) < 400

    def test_too_many_points_are_refused(self):
        rows = [{"batch_size": i + 1, "cached_tokens": 8} for i in range(257)]
        assert len(read_points(rows[:256])) == 256
        with pytest.raises(MalformedWorkload, match="257 points"):
            read_points(rows)


FIELDS = ("batch_size", "new_tokens", "cached_tokens", "weight", "weights")


class TestAnyInput:
    @given(
        json_values
        | st.lists(
            st.dictionaries(st.sampled_from(FIELDS), st.integers(-2, 99) | json_values), max_size=3
        )
    )
    def test_any_object_is_points_or_refused(self, value):
        try:
            points = read_points(value)
        except MalformedWorkload as error:
            assert "\n" not in str(error)
            return
        assert points
        for point in points:
            assert 1 <= point.batch_size <= MAX_BATCH and 1 <= point.new_tokens <= MAX_NEW
            assert 0 <= point.cached_tokens <= MAX_CACHED and point.weight > 0

    @given(
        st.lists(
            st.builds(
                WorkPoint,
                st.integers(1, MAX_BATCH),
                st.integers(1, MAX_NEW),
                st.integers(1, MAX_CACHED),
                st.floats(1e-3, 1e6),
            ),
            min_size=1,
            max_size=9,
            unique_by=lambda point: point.size,
        )
    )
    def test_points_come_back_from_json(self, points):
        rows = json.loads(json.dumps([asdict(point) for point in points]))
        assert read_points(rows) == tuple(points)
