# Variables for sglang 0.5.16's servers on a host without a network:
#   mkdir FOLDER && tar -xf OUT.tar.xz -C FOLDER       # of pack.py --served
#   . benchmarks/offline/served_env.sh FOLDER          # in a checkout
#   python benchmarks/sglang_stand_ins/build_kernels.py
#   python -m benchmarks.served_gpu OUT --args "$SERVER_ARGS"
#
# The registry imports the models of benchmarks/served_models alone, because others import packages
# that OUT.tar.xz does not have.
export PYTHONPATH="$PWD:$PWD/benchmarks/sglang_stand_ins:$PWD/benchmarks:$1/site"
SGLANG_DISABLED_MODEL_ARCHS=$(
    ls "$1/site/sglang/srt/models" | sed -n 's/\.py$//p' |
        grep -v -x -e __init__ -e qwen3 -e qwen3_moe -e deepseek_v2 -e nemotron_h -e qwen3_next -e ernie4 | paste -s -d , -
)
export SGLANG_DISABLED_MODEL_ARCHS
# On Hopper and with one GPU, sglang needs FlashInfer for no attention, GEMM or MoE of its own choice.
export SGLANG_IS_FLASHINFER_AVAILABLE=false
# DeepGEMM compiles a kernel when it is first needed, and not all that might be.
export SGLANG_JIT_DEEPGEMM_PRECOMPILE=0 SGLANG_DG_CACHE_DIR="$1/deep_gemm" DG_JIT_CACHE_DIR="$1/deep_gemm"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TVM_FFI_CACHE_DIR="$1/jit"
SERVER_ARGS="--sampling-backend pytorch --grammar-backend none --cuda-graph-max-bs-decode 64 --sleep-on-idle"
