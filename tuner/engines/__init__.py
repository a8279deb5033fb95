"""Read LLM engines on disk, a folder for each engine. Their source is never imported."""
