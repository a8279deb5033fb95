"""Read the toy engine's flags."""

from tuner.engines.settings import ServingFlags


def read_flags(flags):
    return ServingFlags()
