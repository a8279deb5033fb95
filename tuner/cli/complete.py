"""What a shell completes: names of models, GPUs and engines, and values that options take.

`tuner --install-completion` sets the shell up. Each function gets what was typed so far.
"""

from __future__ import annotations

from collections.abc import Iterable


def models(incomplete: str) -> list[str]:
    """The models that `tuner list models` lists, with their other names."""
    from tuner.models.table import presets

    return _beginning((name for one in presets() for name in (one.name, *one.aliases)), incomplete)


def devices(incomplete: str) -> list[str]:
    """The GPUs that `tuner list devices` lists, with their other names."""
    from tuner.devices.table import devices as known

    return _beginning((name for one in known() for name in (one.name, *one.aliases)), incomplete)


def engines(incomplete: str) -> list[str]:
    """The engines, and the releases of them that are on this machine."""
    from tuner.engines.engine import engine_names
    from tuner.engines.inventory import releases

    here = [f"{one.name}=={one.version}" for one in releases() if one.name in engine_names()]
    return _beginning([*engine_names(), *here], incomplete)


def measures(incomplete: str) -> list[str]:
    """Where times can come from."""
    return _beginning(("gpu", "predict", "replay:"), incomplete)


def efforts(incomplete: str) -> list[str]:
    """How many configurations a search can try."""
    from tuner.tuning.request import Effort

    return _beginning((one.value for one in Effort), incomplete)


def states(incomplete: str) -> list[str]:
    """The states of jobs."""
    from tuner.jobs.job import JobState

    return _beginning((one.value for one in JobState), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [one for one in dict.fromkeys(names) if one.startswith(incomplete)]
