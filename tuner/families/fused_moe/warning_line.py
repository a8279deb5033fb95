"""Find the problem of a fused-MoE config file that an engine names.

A name, such as the name in a warning line, lacks the hidden size K and top_k. These come from the
presets that divide into the same E and N.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from tuner.engines.config_files import misnamed
from tuner.engines.engine import Release, release_of
from tuner.errors import BadProblem, NoSuchLayer, SeveralModels
from tuner.families.fused_moe.engine import NAME
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.models.model import Model
from tuner.models.serving import Resolved, Serving
from tuner.models.table import named_in, presets
from tuner.problems.dtypes import Dtype, parse_dtype

_COPIES = " (before sglang 0.4.7, which had a copy of the shared experts for each rank)"


@dataclass(frozen=True)
class NamedLayer:
    """The facts in the path of an engine's config file."""

    E: int
    N: int  # elements
    device_name: str
    dtype: Dtype | None  # None: unquantised weights, for which the name has no type
    block_shape: tuple[int, int] | None
    per_channel_quant: bool | None  # None: the engine's names do not say it
    gemm: Gemm
    file_name: str
    before: Release | None = None  # the engine is older than this release, according to the folder


# How many shared experts may be among E, by the model and the ranks that share an expert.
Fusions = Callable[[Model, NamedLayer, int], Collection[int]]


def find_config_name(
    text: str, *, packed: bool, channels: bool = True, before: Release | None = None
) -> NamedLayer | None:
    """Find a config file's name in a line or a path; None if there is none.

    `packed`: see `MoeFileKey`. `channels`: whether the engine's names say that fp8 is quantised
    per channel. Raises BadProblem for an unknown dtype, and for a name that lacks its dtype.
    """
    match = NAME.search(text)
    if not match:
        return None
    if why := misnamed(match[0]):
        raise BadProblem(why)
    dtype = parse_dtype(match["dtype"]) if match["dtype"] else None
    block = (int(match["n"]), int(match["k"])) if match["n"] else None
    # int8_w8a8 without blocks is always per channel; older releases' names do not say so.
    by_channel = bool(match["per_channel"]) or (dtype is Dtype.INT8_W8A8 and not block)
    unsaid = not channels and dtype is Dtype.FP8_W8A8 and not block
    return NamedLayer(
        E=int(match["E"]),
        N=int(match["N"]) * (2 if packed and dtype is Dtype.INT4_W4A16 else 1),
        device_name=match["device"],
        dtype=dtype,
        block_shape=block,
        per_channel_quant=None if unsaid else by_channel,
        gemm=Gemm.DOWN if match["down"] else Gemm.UP,
        file_name=match[0],
        before=before,
    )


@dataclass(frozen=True)
class Match:
    """A preset that can be divided into a file's E and N."""

    model: Model
    tp: int
    ep: int
    fused: int  # shared experts among E

    @property
    def top_k(self) -> int:
        return self.model.top_k + (self.model.n_shared_experts if self.fused else 0)

    @property
    def shared_experts(self) -> int:
        """Return the fused experts that get each token; `moe_problem` tells of copies in old
        releases.
        """
        return self.fused if self.fused == self.model.n_shared_experts else 0


def matches(missing: NamedLayer, fusions: Fusions, serving: Serving) -> tuple[Match, ...]:
    """Return the presets whose experts divide into the file's E and N, and that agree with all
    other facts of the server.

    Matches without expert parallelism exclude others, and so do matches whose tp is a power of two;
    no server divides a model that it does not name by 10 or 14.
    """
    with_experts = [model for model in presets() if model.E]
    named = [model for model in named_in(serving.model) if model.E]
    if serving.model and not named and any(char.isdigit() for char in serving.model):
        return ()  # the server's model is no preset
    # A model that somebody names is served, whatever the age of the folder: builds keep old paths.
    some = named or [model for model in with_experts if _may_serve(model, missing)]
    found = [match for model in some for match in _divisions(model, missing, fusions)]
    if serving.ranks:
        least, most = serving.ranks
        found = [match for match in found if least <= match.tp <= most]
    told = named or {"hidden_size", "top_k"} & serving.options.keys()
    found = found if told else _of_the_type(found, missing)
    found = [match for match in found if match.ep == 1] or found
    even = [match for match in found if match.tp & (match.tp - 1) == 0]
    return tuple(even or [match for match in found if told or match.tp < 10 or match.tp % 3 == 0])


def _of_the_type(found: list[Match], missing: NamedLayer) -> list[Match]:
    """Return the matches whose checkpoints have the file's type. An engine can quantise to fp8
    itself.
    """
    wanted = (missing.dtype or Dtype.BFLOAT16, missing.block_shape)
    channels = missing.per_channel_quant
    same = [
        match
        for match in found
        if (match.model.dtype, match.model.block_shape) == wanted
        and channels in (None, match.model.per_channel_quant)
    ]
    if missing.block_shape or missing.dtype not in (None, Dtype.FP8_W8A8):
        return same
    if missing.dtype is None:
        return same or found  # a checkpoint that was converted to 16 bits
    return same + [match for match in found if match.model.dtype is Dtype.BFLOAT16]


def _may_serve(model: Model, missing: NamedLayer) -> bool:
    """Say whether releases as old as the file's folder know the model."""
    return not missing.before or bool(model.since and release_of(model.since) < missing.before)


def _divisions(model: Model, missing: NamedLayer, fusions: Fusions) -> list[Match]:
    if not missing.N or model.intermediate % missing.N:
        return []
    moe_tp = model.intermediate // missing.N
    found = []
    for fused in sorted({0, *fusions(model, missing, moe_tp)}):
        routed = missing.E - fused
        if routed > 0 and model.E % routed == 0:
            ep = model.E // routed
            found.append(Match(model, moe_tp * ep, ep, fused))
    return found


def choose(missing: NamedLayer, fusions: Fusions, serving: Serving) -> tuple[FusedMoe, str, str]:
    """Return the problem, the origin of its K and top_k, and the presets that they are assumed
    from.

    A given hidden size or top_k excludes other presets. Raises SeveralModels, which has the
    problems of the matching presets, if they disagree, and BadProblem if no preset matches.
    """
    hidden_size, top_k = serving.options.get("hidden_size"), serving.options.get("top_k")
    if hidden_size and top_k:
        problem = _problem(missing, serving, hidden_size, top_k, channels=False)
        return problem, "hidden size and top_k as given", ""
    found: dict[FusedMoe, list[Match]] = {}
    for match in matches(missing, fusions, serving):
        if hidden_size in (None, match.model.hidden) and top_k in (None, match.top_k):
            channels = match.model.per_channel_quant and match.model.dtype is missing.dtype
            problem = _problem(missing, serving, match.model.hidden, match.top_k, channels=channels)
            problem = replace(problem, ep=match.ep, shared_experts=match.shared_experts)
            found.setdefault(problem, []).append(match)
    if len(found) == 1:
        (problem,) = found
        names = _names(found[problem])
        assumed = "" if serving.model or hidden_size or top_k else names
        origin = f"hidden size {problem.K} and top_k {problem.top_k} as in {names}"
        if assumed:
            origin += ", if it is that model; for another model, tune its config.json instead"
        return problem, origin, assumed
    message = f"{missing.file_name} names neither the hidden size nor top_k"
    these = "; ".join(
        f"{match.model.name} ({problem.K}, {problem.top_k})"
        for problem, its in found.items()
        for match in its
    )
    cli = f": add --hidden-size and --top-k ({these or 'no preset matches'})"
    api = f": add hidden_size and top_k ({these or 'no preset matches'})"
    if not found:
        raise NoSuchLayer(message, cli=cli, api=api)
    several = {problem.spec(): _names(its) for problem, its in found.items()}
    raise SeveralModels(message, several, cli=cli, api=api)


def _names(found: Sequence[Match]) -> str:
    names = " or ".join(
        f"{match.model.name} at tp={match.tp}" + (f", ep={match.ep}" if match.ep > 1 else "")
        for match in found
    )
    old = any(match.fused > match.model.n_shared_experts for match in found)
    return names + (_COPIES if old else "")


def _problem(
    missing: NamedLayer, serving: Serving, K: int, top_k: int, *, channels: bool
) -> FusedMoe:
    """Return the problem of a file. `channels`: whether the weights are quantised per channel, if
    the name does not say it.
    """
    block_shape = serving.options.get("block_shape")
    said = missing.per_channel_quant
    return FusedMoe(
        E=missing.E,
        N=missing.N,
        K=K,
        top_k=top_k,
        dtype=missing.dtype or serving.dtype or Dtype.BFLOAT16,
        block_shape=missing.block_shape or block_shape,
        per_channel_quant=bool(channels if said is None else said) and not block_shape,
    )


def resolve_missing(missing: NamedLayer, serving: Serving, fusions: Fusions) -> Resolved:
    """Return the problem that a file is for. Raises BadProblem."""
    dtype = serving.dtype
    if dtype and missing.dtype and dtype is not missing.dtype:
        raise BadProblem(f"{missing.file_name} is of {missing.dtype.value}, not {dtype.value}")
    problem, origin, assumed = choose(missing, fusions, serving)
    notes = [origin]
    if missing.per_channel_quant and "per_channel_quant" not in missing.file_name:
        notes.append("int8_w8a8 without blocks is quantised per channel")
    if note := _age_note(missing, serving.engine_version):
        notes.append(note)
    before = ".".join(map(str, missing.before)) if missing.before else None
    return Resolved((problem,), tuple(notes), missing.device_name or None, before, assumed)


def _age_note(missing: NamedLayer, version: str | None) -> str:
    """Return a note if the engine to tune for looks for another file than the line's; else ""."""
    if not missing.before or not version or release_of(version) < missing.before:
        return ""
    before = ".".join(map(str, missing.before))
    return (
        f"the line is of a release before {before}, and {version} looks for another file: "
        "for the line's server, name its version, as in sglang==VERSION"
    )
