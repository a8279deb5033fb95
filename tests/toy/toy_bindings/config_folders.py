"""The variable that points its servers at a folder."""

CONFIG_FOLDERS = {"TOY_DIR": "toys"}
