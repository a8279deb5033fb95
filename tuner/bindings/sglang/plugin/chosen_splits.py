"""Give a Triton attention backend of sglang the KV splits of a decode file's table.

Two of the backend's methods are replaced. `get_num_kv_splits` runs before each step, outside the
CUDA graph of the model: it writes the splits of each sequence. `decode_attention_fwd` launches the
two kernels, and a graph keeps the arguments of its capture. So the room of a launch depends only on
the number of sequences, and no number that is written for as many sequences exceeds it.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from tuner.bindings.sglang.plugin.files import AttentionFile
from tuner.bindings.sglang.plugin.kernels import LAUNCHERS
from tuner.bindings.sglang.plugin.launch_keys import decode_shape
from tuner.bindings.sglang.plugin.launches import decode_room, reader
from tuner.bindings.sglang.plugin.splits import SplitsTable
from tuner.families.attention.problem import ENGINE_KV_SPLITS, Attention
from tuner.families.attention.splits import ROOM_BYTES, room_limit

log = logging.getLogger("tuner.plugin")

MIB = 1 << 20
# The arguments of the engine's launcher that a change of the splits needs.
ARGUMENTS = ("q", "kv_indptr", "attn_logits", "attn_lse", "max_kv_splits")


class TritonAttnBackend(Protocol):
    """The attributes of the engine's TritonAttnBackend that are used here."""

    max_kv_splits: int
    enable_deterministic: bool
    skip_prefill: bool
    sliding_window_size: int | None
    static_kv_splits: bool
    split_tile_size: int | None
    device_core_count: int
    use_mla: bool
    num_head: int
    num_kv_head: int
    v_head_dim: int
    device: Any
    get_num_kv_splits: Callable[..., None]
    decode_attention_fwd: Callable[..., None]


class ModelRunner(Protocol):
    """The attributes of the engine's ModelRunner that are used here."""

    dtype: object
    kv_cache_dtype: object
    is_draft_worker: bool
    model: Any  # a torch module


def choose_splits(
    backend: TritonAttnBackend, runner: ModelRunner, files: Sequence[AttentionFile], flag: int
) -> str:
    """Use the table for a backend that was just built. Return the text to log; empty: nothing.

    `flag`: the server's number of splits. A number that is not the default is the most that is
    used.
    """
    fitting = [file for file in files if file.splits and _is_for(file.problem, backend, runner)]
    if not fitting:
        return ""
    file = fitting[0]
    if why := _engines_stay(backend, runner):
        return f"{file.title}: sglang's own KV splits stay, because of {why}"
    assert file.splits is not None  # `fitting` has only such files
    if not file.splits.most:
        return f"{file.title}: sglang's own KV splits were the fastest"
    most = file.splits.most if flag == ENGINE_KV_SPLITS else min(flag, file.splits.most)
    ChosenSplits(backend, file.problem, file.splits, most).install()
    return (
        f"{file.title}: up to {most} KV splits, sglang's own {backend.max_kv_splits}; a launch's "
        f"results take {ROOM_BYTES // MIB} MiB at most, or as much as sglang's own"
    )


def _is_for(problem: Attention, backend: TritonAttnBackend, runner: ModelRunner) -> bool:
    """Say whether the backend's layers decode this problem and no other."""
    dtypes = {str(runner.dtype), str(runner.kv_cache_dtype)}
    key_heads = 1 if backend.use_mla else backend.num_kv_head
    return (
        (problem.q_heads, problem.kv_heads) == (backend.num_head, key_heads)
        and (problem.Lv, problem.shares_kv) == (backend.v_head_dim, bool(backend.use_mla))
        and problem.page_size == getattr(backend, "page_size", problem.page_size)
        and dtypes == {f"torch.{problem.dtype.value}"}
        and _decoded(runner.model, problem) == {(problem.Lq, problem.logit_cap, problem.window)}
        and problem.sinks == any("sink" in name for name, _ in runner.model.named_parameters())
    )


def _decoded(model: Any, problem: Attention) -> set[tuple[object, ...]]:  # noqa: ANN401
    """Return (Lq, cap, window) of a model's layers with the problem's heads; sglang's
    RadixAttention.
    """
    layers = [layer for layer in model.modules() if hasattr(layer, "tp_q_head_num")]
    heads = problem.q_heads, problem.kv_heads, problem.Lv
    return {
        (layer.qk_head_dim, layer.logit_cap, max(0, layer.sliding_window_size))
        for layer in layers
        if (layer.tp_q_head_num, layer.tp_k_head_num, layer.v_head_dim) == heads
    }


def _engines_stay(backend: TritonAttnBackend, runner: ModelRunner) -> str:
    """Return why the engine's own numbers of splits stay; empty if a table may be used."""
    reasons = {
        "deterministic inference": backend.enable_deterministic is not False,
        "a draft model": backend.skip_prefill or runner.is_draft_worker is not False,
        "a sliding window": (backend.sliding_window_size or 0) > 0,
        "decode context parallelism": getattr(backend, "dcp_size", 1) != 1,
        "SGLANG_TRITON_DECODE_ATTN_STATIC_KV_SPLITS": bool(backend.static_kv_splits),
        "--triton-attention-split-tile-size": backend.split_tile_size is not None,
        "an unknown number of processors": backend.device_core_count <= 0,
        "an unknown decode_attention_fwd": _unknown_launcher(backend.decode_attention_fwd),
    }
    return next((why for why, applies in reasons.items() if applies), "")


def _unknown_launcher(launcher: Callable[..., None]) -> bool:
    return not set(ARGUMENTS) <= inspect.signature(launcher).parameters.keys()


class ChosenSplits:
    """The splits of a backend."""

    def __init__(
        self, backend: TritonAttnBackend, problem: Attention, table: SplitsTable, most: int
    ) -> None:
        """Take the backend and its table.

        `most`: no launch has room for more splits, except with the engine's own rule.
        """
        self._backend, self._problem, self._table, self._most = backend, problem, table, most
        self._engines = int(backend.max_kv_splits)
        self._write, self._launch = backend.get_num_kv_splits, backend.decode_attention_fwd
        self._names = tuple(inspect.signature(self._launch).parameters)
        self._about = reader(self._launch, LAUNCHERS["decode_attention"][1])
        p = problem
        self._shape = p.q_heads, p.kv_heads, p.Lq, p.Lv, p.logit_cap, p.window, p.sinks
        self._rows: dict[int, tuple[int, bool]] = {}  # by the number of sequences
        self._failed = self._flags_uneven = False

    def install(self) -> None:
        """Replace the backend's methods."""
        import torch  # noqa: PLC0415  # this process belongs to sglang

        # AMD's kernels ask for a flag, which the engine's method writes too.
        self._flags_uneven = bool(torch.version.hip)
        # The table is on the device, and the kernel is compiled, before a graph is captured.
        # The engine's lengths have 64 bits, and its splits 32.
        lengths = torch.ones(1, dtype=torch.int64, device=self._backend.device)
        self._choose(lengths.int(), lengths, 1)
        self._backend.get_num_kv_splits = self.write
        self._backend.decode_attention_fwd = torch.compiler.disable(self.launch)

    def room(self, sequences: int) -> int:
        """Return the most splits of a sequence that a launch has room for."""
        return self._row(sequences)[0]

    def _row(self, sequences: int) -> tuple[int, bool]:
        """Return (`room`, whether the table chooses the splits of so many sequences)."""
        if sequences not in self._rows:
            row = self._table.row(max(1, sequences))
            limit = room_limit(self._problem, max(1, sequences), self._engines)
            engines = row.engines or self._failed
            room = self._engines if engines else min(row.room, limit, self._most)
            self._rows[sequences] = room, not engines
        return self._rows[sequences]

    def write(self, num_kv_splits: Any, seq_lens: Any, *more: Any, **named: Any) -> None:  # noqa: ANN401
        """Write the splits of each sequence. Both arguments are tensors on the device, with a value
        for each sequence.

        A CUDA graph may capture this, so it waits for nothing and makes no tensor of a Python
        value. A server's step waits for it, so it is a single launch, as in the engine.
        """
        sequences = num_kv_splits.shape[0]
        room, chosen = self._row(sequences)
        chosen = chosen and not self._failed and seq_lens.shape == num_kv_splits.shape
        if not chosen or self._flags_uneven:  # the engine's method flags batches of uneven lengths
            self._write(num_kv_splits, seq_lens, *more, **named)
        if chosen:
            try:
                self._choose(num_kv_splits, seq_lens, room)
                return
            except Exception:
                self._failed = True
                log.exception("tuner attention: sglang's own KV splits stay")
                self._write(num_kv_splits, seq_lens, *more, **named)
        if room < self._engines:
            num_kv_splits.clamp_(max=room)

    def launch(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Call the engine's launcher, with room for as many splits as `write` may write."""
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        if not self._failed and decode_shape(self._about(args, kwargs)) != self._shape:
            self._failed = (
                True  # an unknown layer; the splits that were written still need their room
            )
            log.warning("tuner attention: sglang's own KV splits stay: a layer is of another shape")
        room = self.room(given["kv_indptr"].shape[0] - 1)
        if room != given["max_kv_splits"]:
            given |= self._buffers(given, room)
        with decode_room(0 if self._failed else room):
            self._launch(**given)

    def _choose(self, num_kv_splits: Any, seq_lens: Any, room: int) -> None:  # noqa: ANN401
        from tuner.bindings.sglang.plugin.splits_kernel import LEAST_BLOCK, write_splits  # noqa: PLC0415

        sequences = len(seq_lens)
        rows, lengths, numbers = self._grid
        write_splits[(1,)](
            *(num_kv_splits, seq_lens, rows, lengths, numbers, sequences, room),
            ROWS=len(rows),
            LENGTHS=len(lengths),
            BLOCK=max(LEAST_BLOCK, 1 << (sequences - 1).bit_length()),
        )

    @cached_property
    def _grid(self) -> tuple[Any, Any, Any]:
        """Return tensors on the device: thresholds of sequences and of lengths, numbers by both."""
        import torch  # noqa: PLC0415

        grid, device = self._table.grid(), self._backend.device
        # Half a sequence less: the ratio of lengths is rounded.
        rows = torch.tensor([n - 0.5 for n in grid.rows], dtype=torch.float32, device=device)
        lengths = torch.tensor(grid.lengths, dtype=torch.int64, device=device)
        return rows, lengths, torch.tensor(grid.numbers, dtype=torch.int32, device=device)

    def _buffers(self, given: Mapping[str, Any], room: int) -> dict[str, Any]:
        """Return the launcher's buffers for the splits' results, with another room.

        The buffers lie in the engine's own, which CUDA graphs share, if these are large enough.
        """
        logits, lse, q = given["attn_logits"], given["attn_lse"], given["q"]
        sequences, heads, columns = q.shape[0], q.shape[1], logits.shape[-1]
        places = sequences * heads * room
        own = logits.is_contiguous() and lse.is_contiguous()
        if own and places * columns <= logits.numel() and places <= lse.numel():
            logits, lse = logits.view(-1)[: places * columns], lse.view(-1)[:places]
        else:
            logits, lse = logits.new_empty(places * columns), lse.new_empty(places)
        return {
            "attn_logits": logits.view(sequences, heads, room, columns),
            "attn_lse": lse.view(sequences, heads, room),
            "max_kv_splits": room,
        }
