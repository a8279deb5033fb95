"""How the engine's servers are started."""

from __future__ import annotations

CONFIG_FOLDERS = {"TOY_DIR": "toys"}
