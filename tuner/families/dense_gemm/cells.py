"""How tables show a dense GEMM's configuration."""

from __future__ import annotations

from tuner.problems.points import Config


def config_cells(config: Config) -> tuple[object, ...]:
    """Blocks, group, warps, stages and further keys, as tables show them; blank for null."""
    if not config:
        return ("null", None, None, None, "")
    tiles = [config.get(f"BLOCK_SIZE_{axis}", "?") for axis in "MNK"]
    shown = {f"BLOCK_SIZE_{axis}" for axis in "MNK"} | {"GROUP_SIZE_M", "num_warps", "num_stages"}
    further = " ".join(f"{name}={value}" for name, value in config.items() if name not in shown)
    named = (config.get(name) for name in ("GROUP_SIZE_M", "num_warps", "num_stages"))
    return ("x".join(map(str, tiles)), *named, further)
