"""LLM engines on disk, each in a folder; read, never imported."""
