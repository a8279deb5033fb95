"""Decodes batches in the Triton attention backend of one sglang version, on the CPU.

Real: all that `attention_scheduler.py` has, and the backend's own metadata: splits, buffers, and
what it does before it captures and before it replays a CUDA graph. Stand-ins: the kernel that
copies the places of the cached tokens, and the graph. A graph keeps the launches of a capture, with
their grids, constants and tensors, and replays them in Triton's interpreter.

This is a separate program, because Triton decides on import whether to interpret:
TRITON_INTERPRET=1 python decode_scheduler.py 0.5.16 OUT_FOLDER '{"device": ..., ...}'

It writes report.json: for each server and batch the written splits, the launches and the worst
error against a float32 reference.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
import triton
from attention_scheduler import Stubs
from triton.runtime.interpreter import InterpretedFunction

BACKEND = "sglang.srt.layers.attention.triton_backend"
CONSTANTS = ("BLOCK_N", "BLOCK_H", "MAX_KV_SPLITS", "num_warps", "num_stages")


@dataclass(frozen=True)
class Shape:
    """One layer, and the most that its batches have."""

    heads: int = 2
    key_heads: int = 1
    Lq: int = 32
    Lv: int = 32
    sequences: int = 16
    context: int = 320  # cached tokens of a sequence
    places: int = 2048  # of the cache; sequences may share some
    layers: int = 1
    dtype: torch.dtype = torch.float16
    device: str = "cpu"
    cores: int = 4
    use_pdl: bool = False

    @property
    def latent(self) -> bool:
        return self.Lq != self.Lv


class Launches:
    """Notes the launches of attention's kernels, and can run them again."""

    def __init__(self) -> None:
        self.taken, self.noted = [], []
        self._run = run = InterpretedFunction.run

        def noting(kernel, *args, grid, warmup, **kwargs):
            name = kernel.fn.__name__
            if name.startswith("_fwd") and not warmup:
                self.taken.append((kernel, args, grid, kwargs))
                constants = {k: kwargs[k] for k in CONSTANTS if k in kwargs}
                self.noted.append({"kernel": name, "grid": list(grid), **constants})
            return run(kernel, *args, grid=grid, warmup=warmup, **kwargs)

        InterpretedFunction.run = noting

    def start(self) -> None:
        self.taken, self.noted = [], []

    def replay(self) -> None:
        for kernel, args, grid, kwargs in self.taken:
            self._run(kernel, *args, grid=grid, warmup=False, **kwargs)


class Server:
    """A model runner, as far as the backend asks for it, with attention's layers."""

    def __init__(self, settings, shape: Shape, beside: Server | None = None) -> None:
        """`beside`: a server whose cache this one shares."""
        torch.manual_seed(3)
        self.shape = shape
        self.module = importlib.import_module(BACKEND)
        if beside is None:
            self._make_cache()
        else:
            self.keys, self.values, self.places = beside.keys, beside.values, beside.places
        cap = settings.get("cap", 0.0)
        self.layers = [
            SimpleNamespace(
                tp_q_head_num=shape.heads, tp_k_head_num=shape.key_heads, qk_head_dim=shape.Lq,
                v_head_dim=shape.Lv, logit_cap=cap, logit_capping_method="tanh",
                sliding_window_size=-1, k_scale=None, v_scale=None, scaling=shape.Lq**-0.5,
                xai_temperature_len=-1, layer_id=layer,
            )
            for layer in range(shape.layers)
        ]  # fmt: skip
        self.pool = MagicMock()
        self.pool.get_key_buffer.side_effect = self.keys.__getitem__
        self.pool.get_value_buffer.side_effect = self.values.__getitem__
        self.pool.get_v_head_dim.return_value = shape.Lv
        self.backend = self.module.TritonAttnBackend(self._runner(settings), **settings["built"])
        self.backend.use_pdl = shape.use_pdl
        self.backend.kv_index_translator = SimpleNamespace(pack_read_stream=self._pack)
        self.module.create_flashinfer_kv_indices_triton = _Copies()

    def _make_cache(self) -> None:
        shape = self.shape
        like = {"dtype": shape.dtype, "device": shape.device}
        slots = shape.places, shape.key_heads
        self.keys = [torch.randn(*slots, shape.Lq, **like) for _ in range(shape.layers)]
        self.values = [
            k[..., : shape.Lv] if shape.latent else torch.randn(*slots, shape.Lv, **like)
            for k in self.keys
        ]
        each = shape.places // shape.sequences
        rows = torch.randperm(shape.places, device=shape.device)[: each * shape.sequences]
        rows = rows.view(shape.sequences, each)
        self.places = rows.repeat(1, -(-shape.context // each))[:, : shape.context].contiguous()

    def _runner(self, settings):
        module, shape, flag = self.module, self.shape, settings["kv_splits"]
        parallel = SimpleNamespace(attn_tp_size=1, attn_dcp_size=settings["dcp"], attn_dcp_rank=0)
        module.get_parallel = lambda: parallel
        module.get_attention_tp_size = lambda: 1
        module.get_device_core_count = lambda *_: shape.cores
        module.next_power_of_2 = triton.next_power_of_2
        module.get_bool_env_var = lambda name, default: settings["static"]
        module.get_int_env_var = lambda name, default: default
        kernel = MagicMock(
            triton_attention_num_kv_splits=flag, triton_attention_split_tile_size=settings["tile"]
        )
        made = MagicMock(kernel=kernel)  # as 0.5.23 has them
        made.deterministic.enable_deterministic_inference = False
        if hasattr(module, "get_exec"):
            module.get_exec = lambda: made
        runner = MagicMock(
            sliding_window_size=settings["window"], device=shape.device, dtype=shape.dtype,
            kv_cache_dtype=shape.dtype, is_draft_worker=settings["draft"], page_size=1,
            token_to_kv_pool=self.pool,
        )  # fmt: skip
        shown = [SimpleNamespace(**vars(layer)) for layer in self.layers]
        for layer in shown:
            layer.logit_cap = settings.get("shown_cap", layer.logit_cap)
        runner.model = SimpleNamespace(modules=lambda: shown, named_parameters={}.items)
        runner.token_to_kv_pool_allocator = SimpleNamespace(translate_kv_loc=None)
        runner.req_to_token_pool.size = shape.sequences
        runner.req_to_token_pool.req_to_token = self.places
        runner.model_config.configure_mock(
            context_len=shape.context, head_dim=shape.Lq, num_attention_heads=shape.heads,
            v_head_dim=shape.Lv, swa_v_head_dim=shape.Lv, is_encoder_decoder=False,
            attention_arch=module.AttentionArch.MLA if shape.latent else "MHA",
        )  # fmt: skip
        runner.model_config.get_max_num_attention_heads.return_value = shape.heads
        # For latent attention, the engine counts the heads before absorption.
        runner.model_config.get_num_kv_heads.return_value = (
            shape.heads if shape.latent else shape.key_heads
        )
        runner.server_args.configure_mock(
            triton_attention_num_kv_splits=flag, triton_attention_split_tile_size=settings["tile"],
            enable_deterministic_inference=False,
        )  # fmt: skip
        return runner

    def _pack(self, plan, *, req_pool_indices, seq_lens, indptr, out):
        _copy(self.places, req_pool_indices, seq_lens, indptr, out)

    def batch(self, lengths):
        mode = MagicMock()
        mode.is_decode_or_idle.return_value = True
        device = self.shape.device
        return SimpleNamespace(
            batch_size=len(lengths), req_pool_indices=torch.arange(len(lengths), device=device),
            seq_lens=torch.tensor(lengths, device=device), seq_lens_sum=sum(lengths),
            forward_mode=mode, spec_info=None, encoder_lens=None, out_cache_loc=None,
            kv_loc_plan=None, seq_lens_cpu=torch.tensor(lengths), token_to_kv_pool=self.pool,
        )  # fmt: skip

    def queries(self, batch):
        shape = self.shape
        size = batch.batch_size, shape.heads, shape.Lq
        return torch.randn(size, dtype=shape.dtype, device=shape.device)

    def decode(self, batch, q, layer=0):
        return self.backend.forward_decode(
            q, None, None, self.layers[layer], batch, save_kv_cache=False
        ).view(-1, self.shape.heads, self.shape.Lv)

    def prepare(self, batch, *, capture: bool) -> None:
        """What the engine's runner calls before it captures or replays a graph."""
        backend = self.backend
        if hasattr(backend, "init_forward_metadata_out_graph"):
            backend.init_forward_metadata_out_graph(batch, in_capture=capture)
        elif capture:
            places, lengths = batch.req_pool_indices, batch.seq_lens
            backend.init_forward_metadata_capture_cuda_graph(
                batch.batch_size, batch.batch_size, places, lengths, None, batch.forward_mode, None
            )
        else:
            backend.init_forward_metadata_replay_cuda_graph(
                batch.batch_size, batch.req_pool_indices, batch.seq_lens, batch.seq_lens_sum,
                None, batch.forward_mode, None, batch.seq_lens_cpu,
            )  # fmt: skip

    def error(self, lengths, q, found) -> float:
        """The largest difference from a float32 reference."""
        group = self.shape.heads // self.shape.key_heads
        worst = 0.0
        for i, length in enumerate(lengths):
            places = self.places[i, :length]
            for head in range(self.shape.heads):
                k, v = (t[0][places, head // group].float() for t in (self.keys, self.values))
                weights = torch.softmax(k @ q[i, head].float() * self.shape.Lq**-0.5, dim=0)
                worst = max(worst, float((weights @ v - found[i, head].float()).abs().max()))
        return worst


class _Copies:
    """Stands for the kernel that copies the places of the cached tokens."""

    def __getitem__(self, grid):
        return lambda places, pool, lengths, indptr, start, out, stride: _copy(
            places, pool, lengths, indptr, out
        )


def _copy(places, pool, lengths, indptr, out) -> None:
    """Writes the places of all sequences one after the other. `indptr`: where each begins."""
    total = int(lengths.sum())
    row = torch.repeat_interleave(torch.arange(len(lengths), device=out.device), lengths)
    column = torch.arange(total, device=out.device) - indptr[row]
    out[:total] = places[pool[row], column]


def run(server: Server, launches: Launches, settings) -> dict:
    found = {}
    if settings["graph"]:
        server.backend.init_cuda_graph_state(server.shape.sequences, server.shape.sequences)
    graphs = {}
    for name, lengths in settings["batches"].items():
        batch = server.batch(lengths)
        q = server.queries(batch)
        if settings["graph"]:
            if len(lengths) not in graphs:  # captured with short sequences
                launches.start()
                filled = server.batch([1] * len(lengths))
                server.prepare(filled, capture=True)
                asked = torch.zeros_like(q)
                output = server.decode(filled, asked)
                kept = launches.taken, launches.noted
                graphs[len(lengths)] = (*kept, asked, output, server.backend.forward_metadata)
            launches.taken, launches.noted, asked, output, metadata = graphs[len(lengths)]
            server.prepare(batch, capture=False)
            asked.copy_(q)
            output.fill_(float("nan"))
            for buffer in (metadata.attn_logits, metadata.attn_lse):
                buffer.fill_(float("nan"))
            launches.replay()
        else:
            launches.start()
            server.backend.init_forward_metadata(batch)
            metadata = server.backend.forward_metadata
            output = server.decode(batch, q)
        found[name] = {
            "splits": metadata.num_kv_splits[: len(lengths)].tolist(),
            "launches": list(launches.noted),
            "error": server.error(lengths, q, output),
        }
    return found


DEFAULTS = {
    "kv_splits": 8, "dcp": 1, "static": False, "tile": None, "window": None, "draft": False,
    "built": {}, "graph": True,
}  # fmt: skip


def main() -> None:
    version, out = sys.argv[1], Path(sys.argv[2])
    settings = json.loads(sys.argv[3])
    package = Path(sys.prefix, "share", "tuner", "engines", f"sglang-{version}", "sglang")
    sys.meta_path.insert(0, Stubs(package, version))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    importlib.import_module("sglang.srt.managers.scheduler")
    triton.__version__ = "3.6.0"
    torch.cuda.get_device_name = lambda *_: settings["device"].replace("_", " ")
    importlib.import_module("sglang.srt.plugins").load_plugins()
    launches = Launches()
    report = {}
    for name, one in settings["servers"].items():
        given = {**DEFAULTS, "batches": settings["batches"], **one}
        report[name] = run(Server(given, Shape()), launches, given)
    (out / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
