"""The tuning run: that of any chunked scan."""

from tuner.families.scans.tuning import prepare

__all__ = ["prepare"]
