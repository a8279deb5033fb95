"""LLM engines on disk, one folder each. Their source is read, never imported."""
