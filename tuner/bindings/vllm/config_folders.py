"""Name the variables that point vLLM's servers at folders, and the required content of each."""

from tuner.bindings.vllm.fused_moe.loader_rules import CONFIG_DIR_VARIABLE
from tuner.families.scans.files import CONFIG_DIR_VARIABLE as SCAN_VARIABLE
from tuner.families.scans.files import FOLDER as SCAN_FOLDER

CONFIG_FOLDERS = {CONFIG_DIR_VARIABLE: "*.json", SCAN_VARIABLE: SCAN_FOLDER}
