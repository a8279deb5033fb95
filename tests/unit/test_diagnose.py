"""What `tuner diagnose` says of messages: reported, wrapped, repeated and made-up ones."""

# ruff: noqa: E501 (lines of logs are long)

import io
import random
import string
from importlib.resources import files
from pathlib import Path

import pytest
from diagnose_cases import CASES, MOE, OUT, SGLANG_MOE, UNKNOWN, Case, ranks, sglang

from tuner.diagnose import Hints, diagnose, diagnose_text, read_log
from tuner.diagnose.answers import ANSWERS
from tuner.diagnose.context import Context
from tuner.diagnose.missing import missing_files
from tuner.diagnose.scan import scan
from tuner.diagnose.table import Kind, _form, known_messages, split_form
from tuner.errors import BadInput, UnreadableLog
from tuner.files import parse_toml
from tuner.models.serving import Serving

TABLE = known_messages()
WARNING = MOE.format(
    " kernel", f"{SGLANG_MOE}/triton_3_5_1/E=128,N=192,device_name=NVIDIA_H200.json"
)
NUMEL = "ValueError: numel (2097152) exceeds triton maximum tensor numel (1048576)"


def missing_of(log):
    findings = read_log(log)
    return missing_files(findings, Context(Hints(), findings.facts), Serving())


def names(text: str, hints: Hints = Hints()) -> list[str]:
    return [answer.finding.message.name for answer in diagnose_text(text, hints).answers]


def words(case: Case, hints: Hints = Hints()) -> str:
    """The answer with its lines joined, as a reader reads it."""
    lines = [line for a in diagnose_text(case.log, hints).answers for line in a.lines()]
    return " ".join(" ".join(lines).replace(" \\ ", " ").split())


def test_reported_messages_get_their_answer_and_no_other(subtests):
    for case in CASES:
        with subtests.test(case.thread):
            assert sorted(names(case.log)) == sorted(case.found)
            text = words(case)
            compact = "".join(text.split())
            for phrase in case.says:
                assert "".join(phrase.split()) in compact, text
            for phrase in case.never:
                assert phrase not in text, text


def test_what_is_not_known_is_said_in_one_sentence(subtests):
    for case in UNKNOWN:
        with subtests.test(case.thread):
            found = diagnose_text(case.log)
            assert not found.answers
            assert not found.known
            unknown = found.as_json()["unknown"]
            assert unknown["text"] in " ".join(case.log.split())
            assert found.as_text() == (
                f"not known: {unknown['where']}: {unknown['text']}; `tuner diagnose` knows kernels, "
                "their config files and the network between nodes"
            )


@pytest.mark.parametrize(
    "text",
    [
        "all is well",
        "I rename the config file of my app because I reuse the json",
        "can I rename the H100 config for my H200?",
        "Does SGLang have a tool like benchmark_moe?",
        "vllm on a T4 is slow, and it hangs with --nnodes 2",
        "Qwen/Qwen3-30B-A3B on our H200 with vllm, tp=2: is 90 tokens/s slow?",
    ],
)
def test_prose_gets_no_answer(text):
    found = diagnose_text(text)
    assert not found.known
    assert found.as_text().startswith("nothing known in 1 lines; ")


def test_an_exception_beside_a_note_is_told_too():
    text = "Using MoE kernel config from /a/E=8,N=64,device_name=NVIDIA_H200.json\nOddError: no"
    found = diagnose_text(text)
    assert found.known
    assert "not known: input:2: OddError: no" in found.as_text()
    stops = diagnose_text(f"{NUMEL}\nOddError: no")
    assert "OddError" not in stops.as_text()


def test_a_line_that_only_follows_is_no_answer():
    found = diagnose_text("remote process exited or there was a network error")
    assert [a.finding.message.kind for a in found.answers] == [Kind.FOLLOWS]
    assert not found.known
    assert found.as_text().startswith("1. follows: ")


def test_what_says_no_reason_is_left_out_beside_a_reason():
    silent = "unhandled system error (run with NCCL_DEBUG=INFO for details)"
    assert names(silent) == ["nccl_system"]
    assert diagnose_text(silent).answers[0].finding.message.kind is Kind.UNCLEAR
    assert names(f"{silent}\nBootstrap : no socket interface found") == ["nccl_interface"]


def test_an_engine_is_read_from_words_only_if_they_name_no_other():
    for text, engine in (
        ("Sglang exits here", "sglang"),
        ("slower with sglang than with vLLM", ""),
        ("sglang0.4.6 is slower than vllm,please check", ""),
        ("see github.com/vllm-project/vllm/issues and my-vllm-image", ""),
    ):
        assert diagnose_text(text).findings.facts.engine == engine


def test_a_form_without_text_of_its_own_is_refused():
    with pytest.raises(ValueError, match="no text of its own"):
        _form({"text": "{a:int} {b:word}"})


def test_there_are_enough_cases():
    assert len(CASES) + len(UNKNOWN) >= 70
    assert {name for case in CASES for name in case.found} >= {
        "moe_config_missing",
        "block_gemm_config_missing",
        "shared_memory",
        "ptxas_architecture",
        "fp8_unsupported",
        "cutlass_tile",
        "nccl_interface",
        "gloo_mesh",
        "gid_table",
    }


# The table.


def test_the_table_is_bounded_and_each_row_has_its_source():
    text = files("tuner.diagnose").joinpath("messages.toml").read_text("utf-8")
    assert text.count("\n") <= 1_600
    assert len(text.encode()) <= 140_000
    assert 70 <= len(TABLE) <= 90
    seen = [message.name for message in TABLE]
    assert len(seen) == len(set(seen))
    for message in TABLE:
        assert message.forms and message.cause, message.name
        assert message.fix or message.answer or message.kind in (Kind.NOTE, Kind.FOLLOWS)
        assert message.answer in {"", *ANSWERS}
        assert set(message.unless) <= set(seen)
        for form in message.forms:
            assert form.origins and all(origin.source for origin in form.origins), form.text
    assert {message.answer for message in TABLE} == {"", *ANSWERS}


def test_forms_are_told_apart_by_their_anchors(subtests):
    for message in TABLE:
        with subtests.test(message.name):
            for form in message.forms:
                assert len(form.anchor) >= len("NCCLWARN"), form.text
                assert form.pattern.groupindex.keys() >= set(message.per) or len(message.forms) > 1


def test_rows_name_only_holes_that_some_form_has():
    known = {"unified", "not_unified"}
    for message in TABLE:
        holes = {name for form in message.forms for name in form.pattern.groupindex}
        for sentence in (*message.cause, *message.fix):
            fields = {name for _, name, _, _ in string.Formatter().parse(sentence) if name}
            assert fields <= holes | known, (message.name, sentence)


def test_every_message_is_found_by_its_own_form():
    """A hole is filled by what it takes; nothing else may be found beside."""
    samples = {"int": "128", "num": "0.9", "word": "word", "path": "/a/b/E=1.json"}
    samples |= {"sizes": "/a/b/E=8,N=64", "card": "NVIDIA_L40S.json"}
    for message in TABLE:
        if message.name in ("script_stopped", "shared_memory_cut"):  # by the lines around them
            continue
        for form in message.forms:
            text = "".join(
                part
                if isinstance(part, str)
                else (
                    part["kind"].split("|")[0]
                    if "|" in part["kind"]
                    else samples.get(part["kind"] if part["name"] is not None else "", "some")
                )
                for part in split_form(form.text)
            )
            found = names(f"[2025-01-01 00:00:00 TP0] {text}")
            assert found == [message.name], (text, found)


MESSAGES = Path(__file__).parents[1] / "data" / "network_messages.toml"


@pytest.mark.parametrize(
    ("cause", "lines"), parse_toml(MESSAGES.read_bytes(), MESSAGES.name, BadInput).items()
)
def test_lines_of_programs_get_their_cause_and_no_other(cause, lines):
    assert {line: names(line) for line in lines} == {line: [cause] for line in lines}


# Logs as they are.


@pytest.mark.parametrize("escape", ["\x1b", "ESC", "^[", r"\x1b", r"\u001b", "#033"])
def test_colours_are_taken_out_however_they_are_spelled(escape):
    line = f"{escape}[1;36m(Worker_TP0 pid=1){escape}[0;0m NET/IB : {escape}[31mNo device found"
    (answer,) = diagnose_text(line).answers
    assert answer.finding.text == "(Worker_TP0 pid=1) NET/IB : No device found"


def test_colours_wraps_and_prefixes_do_not_matter():
    plain = sglang(WARNING)
    coloured = plain.replace("Performance", "\x1b[33mPerformance\x1b[0m")
    for width in (40, 61, 80, 100):
        wrapped = "\n".join(plain[i : i + width] for i in range(0, len(plain), width))
        assert names(wrapped) == ["moe_config_missing"], width
        (answer,) = diagnose_text(wrapped).answers
        assert answer.details["file"] == "E=128,N=192,device_name=NVIDIA_H200.json", width
    assert names(coloured) == ["moe_config_missing"]
    assert names(plain.replace("\n", "\r\n") + "\r\n") == ["moe_config_missing"]
    assert names(f"2025-07-25T07:53:08.217+08:00 stdout F {plain}") == ["moe_config_missing"]


def test_ranks_and_repeats_are_one_finding():
    log = "\n".join(sglang(WARNING, rank) for rank in range(32) for _ in range(3))
    (answer,) = diagnose_text(log).answers
    assert (answer.finding.count, len(answer.finding.ranks)) == (96, 32)
    assert answer.finding.where == "input:1"
    assert "96 times, on TP0, TP1" in words(Case("", log, ()))
    assert names(ranks(OUT.format(9, 8), 8)) == ["shared_memory"]


def test_messages_across_the_blocks_of_a_large_log_are_found_once():
    filler = sglang("Decode batch. #running-req: 128, #token: 86816, token usage: 0.44") + "\n"
    many = filler * (2 * (1 << 20) // len(filler))
    log = many + sglang(WARNING, 1) + "\n" + many + sglang(NUMEL, 2) + "\n" + many
    found = diagnose_text(log)
    counts = [(a.finding.message.name, a.finding.count) for a in found.answers]
    assert counts == [("triton_numel", 1), ("moe_config_missing", 1)]
    line = many.count("\n") + 1
    assert found.answers[1].finding.where == f"input:{line}"
    assert found.findings.lines == log.count("\n")


@pytest.mark.parametrize("shift", range(0, 400, 37))
def test_a_message_at_any_place_of_a_blocks_end_counts_once(shift):
    block = 1 << 20
    line = b"x" * 99 + b"\n"
    head = line * (block // 100 - 3) + b"y" * (shift + 1) + b"\n"
    log = head + f"{sglang(WARNING)}\n".encode() + line * 50
    findings = scan([("log", io.BytesIO(log))], TABLE)
    assert [f.count for f in findings.found] == [1]


def test_one_endless_line_is_read():
    log = ("x" * 3_000_000) + NUMEL + ("y" * 3_000_000)
    assert names(log) == ["triton_numel"]


def test_the_int8_answer_knows_card_model_and_release():
    log = "RuntimeError: gemm executioin failed, error: Error Internal"
    hints = Hints("sglang==0.4.4", "L40S", "deepseek-r1", 32)
    (answer,) = diagnose_text(log, hints).answers
    assert answer.details["fails"]
    assert "fails at batch sizes 33 to 128" in " ".join(answer.cause)
    (fixed,) = diagnose_text(log, Hints("sglang==0.4.5", "L40S", "deepseek-r1", 32)).answers
    assert not fixed.details["fails"]
    (none,) = diagnose_text(log, Hints("sglang==0.5.16", "B200", "deepseek-r1", 32)).answers
    assert "int8_scaled_mm is not built for sm_100" in " ".join(none.cause)


def test_the_numbers_of_the_l40s_log_are_reconciled():
    log = OUT.format(102400, 101376)
    text = words(Case("", log, ()), Hints(device="L40S"))
    assert "needs exactly 102,400 bytes with Triton 3.1.0" in text
    assert "106,496 bytes" in text
    assert "Upgrade to sglang 0.5.2 or later" in text
    assert "--enable-flashinfer-mla" in text
    assert "--write-patch" in text
    everywhere = words(Case("", log, ()))
    assert "0.5.2 for sm_86 and sm_89; 0.5.12 for sm_120 and sm_121" in everywhere
    assert "from 0.5.2 on --attention-backend flashinfer" in everywhere
    assert "before 0.5.2 --enable-flashinfer-mla" in everywhere
    of_vllm = words(Case("", log, ()), Hints("vllm", "L40S"))
    assert "patch" not in of_vllm


@pytest.mark.parametrize("engine", ["sglang==0.5.16", "sglang", ""])
@pytest.mark.parametrize("sizes", ["E=512,N=128", "E=257,N=256", "E=3,N=7"])
def test_no_command_tunes_8_bit_floats_where_triton_has_none(engine, sizes):
    folder = "/x/sglang/srt/layers/moe/fused_moe_triton/configs/triton_3_5_1"
    name = f"{sizes},device_name=NVIDIA_A100-SXM4-80GB,dtype=fp8_w8a8,block_shape=[128, 128].json"
    line = "Using default MoE kernel config. Performance might be sub-optimal! Config file not found at"
    for text in (f"{line} {folder}/{name}", f"I look for {name}"):
        said = words(Case("", text, ()), Hints(engine))
        assert "tuner tune" not in said
        assert "no 8-bit floats on sm_80" in said


def test_one_engines_steps_are_left_out_for_the_other():
    log = "Error: No valid attention backend found for cuda with x. Reasons: y"
    mesh = "RuntimeError: Gloo connectFullMesh failed with z"
    assert "SGLANG_HOST_IP" in words(Case("", mesh, ()), Hints("sglang"))
    assert "VLLM_HOST_IP" not in words(Case("", mesh, ()), Hints("sglang"))
    assert "VLLM_HOST_IP" in words(Case("", mesh, ()))
    assert "vLLM:" not in words(Case("", log, ()))


def test_text_is_safe_to_print_and_wraps_no_names():
    log = "\n".join(case.log for case in CASES) + "\n\x07\x1b]0;title\x07RuntimeError: \x1b[31mred"
    found = diagnose_text(log)
    text = found.as_text()
    assert all(c.isprintable() or c == "\n" for c in text)
    for answer in found.answers:
        for sentence in (*answer.cause, answer.finding.text):
            assert sentence in text or not sentence.isprintable()


def test_hints_that_name_nothing_are_refused():
    for hints in (Hints(device="L41S"), Hints(engine="sgl"), Hints(tp=-1)):
        with pytest.raises(BadInput):
            diagnose_text("x", hints)


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(UnreadableLog, match="nothing.log cannot be read"):
        diagnose([tmp_path / "nothing.log"])
    with pytest.raises(UnreadableLog):
        diagnose([tmp_path])


def test_missing_files_of_a_log(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("\n".join(sglang(WARNING, rank) for rank in range(8)) + f"\n{NUMEL}\n")
    (missing,) = missing_of(log)
    assert missing.name == "E=128,N=192,device_name=NVIDIA_H200.json"
    assert missing.engine == "sglang"
    assert diagnose([log]).answers[0].finding.where == "server.log:9"  # the worst first


# Made-up logs.


def _mutated(random_: random.Random, log: str) -> bytes:
    data = bytearray(log.encode())
    for _ in range(random_.randint(1, 30)):
        at = random_.randrange(len(data) + 1)
        match random_.randrange(5):
            case 0:
                data[at:at] = bytes(random_.randrange(256) for _ in range(random_.randint(1, 9)))
            case 1:
                del data[at : at + random_.randint(1, 20)]
            case 2:
                data[at:at] = data[: random_.randint(1, 60)]
            case 3:
                noise = (b"\n", b"\0", b"\x1b[", b"9" * 400, b"{}", b"E=", b"%")
                data[at:at] = random_.choice(noise)
            case 4:
                data[at:at] = random_.choice(CASES).log.encode()[:200]
    return bytes(data)


def test_made_up_logs_never_end_in_a_traceback(subtests, tmp_path):
    log = tmp_path / "log"
    for seed in range(200):
        with subtests.test(seed=seed):
            random_ = random.Random(seed)  # noqa: S311
            case = random_.choice((*CASES, *UNKNOWN))
            log.write_bytes(_mutated(random_, case.log))
            hints = random_.choice(
                (Hints(), Hints("sglang==0.4.4", "L40S", "deepseek-r1", 32), Hints("vllm"))
            )
            found = diagnose([log], hints)
            assert found.as_text()
            assert found.as_json()["lines"] >= 0
            missing_of(log)


DOWN_MISSING = (
    "[2026-02-21 10:48:17 TP3] Using MoE kernel config with down_moe=False. Performance might be "
    "sub-optimal! Config file not found at /w/python/sglang/srt/layers/moe/fused_moe_triton/"
    "configs/triton_3_5_1/E=128,N=192,device_name={}_down.json, you can create them"
)


def test_an_unknown_gpu_of_a_known_capability_can_be_checked(subtests):
    for said in (
        "NVIDIA New Card, 12.0",
        "UserWarning: NVIDIA New Card with CUDA capability sm_120 is not compatible",
        "GPU 0: NVIDIA New Card (UUID: GPU-0)\n"
        "  CUDA Capability Major/Minor version number:    12.0",
    ):
        with subtests.test(said):
            (answer,) = diagnose_text(f"{said}\n{DOWN_MISSING.format('NVIDIA_New_Card')}").answers
            steps = " ".join(answer.fix)
            assert "`tuner check` of config files takes --device sm_120" in steps
            assert not [step for step in answer.fix if step.startswith("$ ")]
