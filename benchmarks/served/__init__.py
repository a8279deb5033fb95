"""Before and after in a live engine: its servers under load without and with the exported files.

`compare.py` does it all; `result.py` has what it finds. Nothing here imports torch or an engine.
"""
