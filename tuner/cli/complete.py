"""Complete words in a shell: names of models, GPUs and engines, and values of options.

`tuner --install-completion` sets the shell up. Each function gets the text that was typed so far.
"""

from __future__ import annotations

from collections.abc import Iterable


def models(incomplete: str) -> list[str]:
    """Return the models that `tuner list models` lists, with their other names."""
    from tuner.models.table import presets

    return _beginning((name for one in presets() for name in (one.name, *one.aliases)), incomplete)


def devices(incomplete: str) -> list[str]:
    """Return the GPUs that `tuner list devices` lists, with their other names."""
    from tuner.devices.table import devices as known

    return _beginning((name for one in known() for name in (one.name, *one.aliases)), incomplete)


def engines(incomplete: str) -> list[str]:
    """Return the engines, and the releases of them that are on this machine."""
    from tuner.engines.engine import engine_names
    from tuner.engines.inventory import releases

    here = [f"{one.name}=={one.version}" for one in releases() if one.name in engine_names()]
    return _beginning([*engine_names(), *here], incomplete)


def families(incomplete: str) -> list[str]:
    """Return the families of kernels; behind a comma, for the last of several names."""
    from tuner.problems.registry import families as known

    before, comma, name = incomplete.rpartition(",")
    return [f"{before}{comma}{one}" for one in _beginning((f.name for f in known()), name)]


def measures(incomplete: str) -> list[str]:
    """Return the sources of times."""
    return _beginning(("gpu", "predict", "replay:"), incomplete)


def efforts(incomplete: str) -> list[str]:
    """Return the names of efforts."""
    from tuner.tuning.request import Effort

    return _beginning((one.value for one in Effort), incomplete)


def states(incomplete: str) -> list[str]:
    """Return the states of jobs."""
    from tuner.jobs.job import JobState

    return _beginning((one.value for one in JobState), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [one for one in dict.fromkeys(names) if one.startswith(incomplete)]
