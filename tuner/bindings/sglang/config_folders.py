"""Name the variables that point sglang's servers at folders, and the required content of each."""

from tuner.bindings.sglang.fused_moe.files import CONFIG_DIR_VARIABLE as MOE_VARIABLE
from tuner.bindings.sglang.plugin.files import CONFIG_DIR_VARIABLE as ATTENTION_VARIABLE
from tuner.bindings.sglang.plugin.files import FOLDER as ATTENTION_FOLDER
from tuner.bindings.sglang.plugin.gemm_files import CONFIG_DIR_VARIABLE as GEMM_VARIABLE
from tuner.bindings.sglang.plugin.gemm_files import FOLDER as GEMM_FOLDER
from tuner.families.scans.files import CONFIG_DIR_VARIABLE as SCAN_VARIABLE
from tuner.families.scans.files import FOLDER as SCAN_FOLDER

CONFIG_FOLDERS = {
    MOE_VARIABLE: "configs",
    ATTENTION_VARIABLE: ATTENTION_FOLDER,
    GEMM_VARIABLE: GEMM_FOLDER,
    SCAN_VARIABLE: SCAN_FOLDER,
}
