"""Puts the stand-ins into every Python that has this folder in PYTHONPATH."""

import sys

from stand_in_finder import StandInFinder

sys.meta_path.append(StandInFinder())
