"""Read the toy engine's flags."""

from tuner.engines.launch import ServingFlags


def read_flags(flags):
    return ServingFlags()
