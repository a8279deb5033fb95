"""What the toy engine's flags say, and the variable that points its servers at a folder."""

from tuner.engines.launch import ServingFlags

CONFIG_FOLDERS = {"TOY_DIR": "toys"}


def read_flags(flags):
    return ServingFlags()
