"""Kimi delta attention (KDA): the scan of its layers over prompts."""
