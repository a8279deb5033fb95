"""Does what an engine would launch compile and fit on a device? Of its files, or of its own."""

from tuner.check.attention import AttentionCheck, check_attention
from tuner.check.files import CheckReport, check_files

__all__ = ["AttentionCheck", "CheckReport", "check_attention", "check_files"]
