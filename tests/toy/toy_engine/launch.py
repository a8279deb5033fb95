"""The variable that points the toy engine's servers at a folder, and what it must hold."""

CONFIG_FOLDERS = {"TOY_DIR": "toys"}
