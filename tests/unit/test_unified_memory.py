"""Memory of GPUs that share the host's (GB10): other causes and steps than on other cards."""

import pytest

from tuner.diagnose import Hints, diagnose_text

SPARK = "- Hardware: NVIDIA DGX Spark / GB10, sm_121, 121.7 GiB unified memory\n"
FREE = (
    "ValueError: Free memory on device cuda:0 (55.87/119.56 GiB) on startup is less than desired "
    "GPU memory utilization (0.5, 59.78 GiB). Decrease GPU memory utilization."
)
FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"
NO_CACHE = (
    "ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization` when initializing the engine."
)
STATIC = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
NOTHING = "torch.AcceleratorError: CUDA error: out of memory"
REGISTER = (
    "spark:1:1 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_reg_mr_iova2 failed with error "
    "Cannot allocate memory"
)
DRIVER = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) "
    "returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359"
)
MESSAGES = [FREE, FULL, NO_CACHE, STATIC, NOTHING, DRIVER]


def said(text: str, hints: Hints = Hints()) -> str:
    found = diagnose_text(text, hints)
    assert found.answers
    return "\n".join(line for answer in found.answers for line in answer.lines())


@pytest.mark.parametrize("message", MESSAGES)
def test_a_card_without_memory_of_its_own_is_not_told_of_as_one_that_has_it(message):
    for text, hints in ((SPARK + message, Hints()), (message, Hints(device="GB10"))):
        answer = said(text, hints)
        assert "shares the host's" in answer
        assert "     free -h" in answer
        assert "drop_caches" in answer
        assert "     nvidia-smi\n" not in answer
        assert "(0.9, then 0.95)" not in answer and "(0.95)" not in answer


@pytest.mark.parametrize("message", [FREE, FULL, NO_CACHE, STATIC, NOTHING])
def test_other_cards_are_told_as_before(message):
    for text, hints in ((message, Hints()), (SPARK + message, Hints(device="H100"))):
        answer = said(text, hints)
        assert "host's" not in answer and "drop_caches" not in answer


def test_what_is_free_leaves_the_host_some_of_it():
    assert "     --gpu-memory-utilization 0.40" in said(SPARK + FREE)
    assert "     --gpu-memory-utilization 0.46" in said(FREE)


def test_rdma_on_a_spark_names_the_kernel_that_fails():
    text = f"{SPARK}kernel `7.0.0-1019-nvidia`, driver 580.173.02\n{REGISTER}"
    answer = said(text)
    assert "The kernel is 7.0.0-1019-nvidia." in answer
    assert "kho=off" in answer and "6.17" in answer
    assert "kho=off" not in said(REGISTER)
    assert "The kernel is" not in said(SPARK + REGISTER)


def test_the_drivers_line_alone_is_called_no_cause():
    assert "shows by itself no cause" in said(SPARK + DRIVER)
    assert said(SPARK + DRIVER).startswith("note: ")
