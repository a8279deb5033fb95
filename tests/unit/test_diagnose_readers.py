"""What `tuner diagnose` says of many lines together: a start, lines of load, stacks."""

# ruff: noqa: E501 (lines of logs are long)

from __future__ import annotations

from dataclasses import dataclass

from diagnose_cases import sglang, vllm

from tuner.diagnose import diagnose_text
from tuner.files import shipped_toml


@dataclass(frozen=True)
class Shown:
    """A text, the readings of it, and words that the answer has or must not have."""

    what: str
    text: str
    names: tuple[str, ...]
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


def steps(*texts: str, rank: int = 0) -> str:
    return "\n".join(sglang(text, rank) for text in texts)


def load(running: int, waiting: int, used: float) -> str:
    return vllm(
        f"Engine 000: Avg prompt throughput: 900.0 tokens/s, Avg generation throughput: 2000.5 tokens/s, Running: {running} reqs, "
        f"Waiting: {waiting} reqs, GPU KV cache usage: {used}%, Prefix cache hit rate: 0.0%"
    )


def quiet(speed: float, running: int = 3, used: float = 6.0, prompt: float = 0.0) -> str:
    return load(running, 0, used).replace("2000.5", str(speed)).replace("900.0", str(prompt))


def decode(running: int, graph: bool, speed: float = 12.5, waiting: int = 0) -> str:
    return sglang(
        f"Decode batch. #running-req: {running}, #token: 2113, token usage: 0.01, cuda graph: {graph}, "
        f"gen throughput (token/s): {speed}, #queue-req: {waiting}, "
    )


def links(gpu: int, active: int) -> str:
    shown = "".join(
        f"\t Link {i}: {'26.562 GB/s' if i < active else '<inactive>'}\n" for i in range(3)
    )
    return f"GPU {gpu}: NVIDIA H100 NVL (UUID: GPU-5895e02{gpu})\n{shown}"


def counted(**values: int) -> str:
    path = "/sys/class/infiniband/mlx5_0/ports/1/hw_counters"
    return "".join(f"{path}/{name}:{value}\n" for name, value in values.items())


def prios(*sent: int) -> str:
    return "".join(f"     tx_prio{i}_bytes: {value}\n" for i, value in enumerate(sent))


BEGIN, NCCL = "Init torch distributed begin.", "sglang is using nccl==2.21.5"
WEIGHTS, READY = "Load weight begin. avail mem=93.1 GB", "The server is fired up and ready to roll!"
HANGS = "It hangs, what can I do?"
SHARDS = "Loading safetensors checkpoint shards:  {}% Completed | {}/163 [31:48<00:40, 10.19s/it]"
WAITS = """Thread 4711 (active): "MainThread"
    {}
    profile_run (vllm/v1/worker/gpu_model_runner.py:2012)
    determine_available_memory (vllm/v1/worker/gpu_worker.py:185)
Thread 4800 (idle): "Thread-1"
    wait (threading.py:331)
"""
DEVICES = "# Using devices\n{}#  Rank  0 Group  0 Pid  {} on gpu-{} device  0 [0x00] NVIDIA A100-PCIE-40GB\n"
NCCL_LINE = "gpu-1:88:157 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
HEADING = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"


MADE = "gpu-1:88:157 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE"
NET = "\n{}:22:93 [0] NCCL INFO Channel 00 : 0[7000] -> 8[7000] [{}] via NET/{}"
net = NET.format
VIA = "gpu-1:88:157 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {}\ngpu-1:88:157 [0] NCCL INFO Connected all rings"
OFF = "gpu-1:88:157 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1"
BAR = "Processed prompts:   {}%|          | {}/16 [00:00<?, ?it/s, est. speed input: 0.00 toks/s]"


def row(size: int, busbw: float = 4.5, kind: str = "float") -> str:
    return f"   {size}  {size // 4}  {kind}  sum  -1  29440  {busbw}  {busbw}  0  29568  {busbw}  {busbw}  0\n"


def table(*sizes: int, pid: int = 1, copies: int = 1) -> str:
    """A table of nccl-tests, each line of it as often as there are processes that print it."""
    lines = (
        DEVICES.format("", pid, pid),
        HEADING,
        *map(row, sizes),
        "# Avg bus bandwidth    : 1.7535\n",
    )
    return "".join(line * copies for line in lines)


def bench(ttft: float, requests: int = 1000, failed: int = 0) -> str:
    lines = {
        "Successful requests": requests,
        "Failed requests": failed,
        "Benchmark duration (s)": 117.68,
    }
    lines |= {
        "Output token throughput (tok/s)": 1519.34,
        "Mean TTFT (ms)": ttft,
        "Mean TPOT (ms)": 131.61,
    }
    shown = "".join(f"{name + ':':<40} {value}      \n" for name, value in lines.items())
    return f"============ Serving Benchmark Result ============\n{shown}"


def smi(*rows: tuple[int, int, int], ecc: str = "0") -> str:
    """nvidia-smi's table of GPUs: of each one W, % of use and MiB in use."""
    shown = "".join(
        f"|   {i}  NVIDIA H100 80GB HBM3          On  |   00000000:{i + 1}8:00.0 Off |                    {ecc} |\n"
        f"| N/A   33C    P0            {power}W /  700W |   {used}MiB /  81559MiB |    {use}%      Default |\n"
        for i, (power, use, used) in enumerate(rows)
    )
    return f"| Fan  Temp   Perf  Pwr:Usage/Cap |  Memory-Usage | GPU-Util  Compute M. |\n{shown}"


def p2p(*fast: float, host: float = 11.3) -> str:
    """Two matrices of CUDA's test between three GPUs; `fast`: of 0-1, 0-2 and 1-2."""
    found = "Device=0 CAN Access Peer Device=1\n"
    for mode, values in (("Disabled", [host] * 3), ("Enabled", [*fast])):
        a, b, c = values
        found += (
            f"Unidirectional P2P={mode} Bandwidth Matrix (GB/s)\n   D\\D     0      1      2\n"
            f"     0 831.56  {a:.2f}  {b:.2f}\n     1  {a:.2f} 832.44  {c:.2f} \n     2  {b:.2f}  {c:.2f} 835.10\n"
        )
    return (
        found
        + "P2P=Enabled Latency (P2P Writes) Matrix (us)\n   GPU     0      1\n     0   1.55  11.38\n"
    )


DMON = "# gpu   pwr gtemp    sm   mem  pclk pviol tviol\n# Idx     W     C     %     %   MHz     %  bool\n"
LANES = """GPU 00000000:18:00.0
    PCI
        GPU Link Info
            PCIe Generation
                Max                               : 5
                Current                           : {}
            Link Width
                Max                               : 16x
                Current                           : {}
"""
QUERY = """index, pstate, clocks.sm, clocks.max.sm, temperature.gpu, power.draw
0, P0, 1980 MHz, 1980 MHz, 45, 300.00 W
1, {1}, {0} MHz, 1980 MHz, 92, 160.00 W
"""
FREE = """               total        used        free      shared  buff/cache   available
Mem:             125         121           1           0           2          {:>2}
"""
NVBANDWIDTH = """Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1         2
 0       N/A    20.11    20.12
 1      5.30       N/A    20.12
 2     20.11    20.12       N/A

SUM device_to_device_memcpy_read_ce 200.1
"""
BEGUN = """host:561:561 [0] NCCL INFO Using network IB
host:561:561 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 23000 commId 0xa - Init START
host:561:561 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes {} localRanks 1 localRank 0 MNNVL 0"""
RESTED = sglang(
    "Prefill batch. #new-seq: 1, #new-token: 18, #cached-token: 184, token usage: 0.00, #running-req: 0, #queue-req: 0, "
)
CASES = (
    # Tables of benchmarks.
    Shown("requests that wait", bench(31077.94), ("benchmark",), says=("200 requests ran at once", "31.1 s on average, 26 % of the run", "--max-concurrency"), never=("failed",)),
    Shown("first tokens in time", bench(310.0, failed=3), ("benchmark",), says=("7.6 tokens/s", "3 requests failed"), never=("the wait for a place",)),
    Shown("long prompts, one at a time", bench(31077.94, requests=3), ("benchmark",), never=("the wait for a place",)),
    Shown("two tables", 2 * bench(310.0), ("benchmark",), says=("has 2 tables",)),
    # nvidia-smi's table.
    Shown("all GPUs wait", smi((118, 100, 71234), (117, 100, 71234)), ("smi_waits",), says=("All 2 wait",), never=("the others wait for these",)),
    Shown("GPUs that wait for one", smi((118, 100, 71234), (117, 0, 71234), (118, 100, 71234)), ("smi_waits",), says=("GPU 0, 2 at 100 %", "GPU 1 run none")),
    Shown("GPUs that compute", smi((518, 100, 71234), (517, 100, 71234)), ()),
    Shown("GPUs without a model", smi((60, 0, 4), (61, 0, 4)), ()),
    Shown("a server without requests", smi((80, 0, 71234), (81, 0, 71234)), ("smi_idle",), says=("none of the 2 computes",)),
    Shown("errors of memory", smi((518, 97, 71234), ecc="2"), ("smi_errors",), says=("GPU 0: 2",)),
    Shown("cards without ECC", smi((518, 97, 71234), ecc="N/A"), ()),
    # Transfers between GPUs.
    Shown("direct transfers", p2p(52.7, 52.9, 52.8), ("p2p",), says=("52.7 GB/s (GPU 0 to 1) to 52.9", "without them 11.3", "about as fast"), never=("topo -m",)),
    Shown("pairs of bridges", p2p(52.7, 22.9, 22.8), ("p2p",), says=("between some GPUs much faster", "(GPU 1 to 2)", "CUDA_VISIBLE_DEVICES")),
    Shown("no peer access", p2p(11.4, 11.3, 11.2), ("p2p",), says=("go through the host's memory", "topo -p2p r")),
    Shown("transfers that the processor turns back", p2p(2.1, 11.3, 11.3), ("p2p",), says=("slower than those through the host", "acsctl", "NCCL_P2P_DISABLE=1")),
    Shown("one GPU", "Unidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n   D\\D     0\n     0 144.46\n", ()),
    # A start.
    Shown("people say that it hangs", f"{HANGS}\n{steps(BEGIN, NCCL)}", ("start_waits",),
          says=("waits: the last step of the start that the text shows: NCCL was loaded", "NCCL_P2P_DISABLE=1"), never=("goes no further than this text",)),
    Shown("nobody says so", steps(BEGIN), ("start_waits",),
          says=("note: the last step", "If the log goes no further than this text", "--dist-init-addr")),
    Shown("a rank is behind", f"{HANGS}\n{steps(BEGIN, NCCL, WEIGHTS)}\n{steps(BEGIN, rank=1)}", ("start_waits",),
          says=("its ranks begin to meet", "TP1: the last that is shown. Of other ranks: it loads the weights.")),
    Shown("people say that it stops", f"SGLang stops working after a few requests\n{steps(BEGIN, NCCL)}", ("start_waits",), says=("NCCL was loaded",)),
    Shown("some shards", f"stuck\n{SHARDS.format(98, 159)}", ("start_waits",), says=("159 of 163 shards", "iostat")),
    Shown("all shards", f"stuck\n{SHARDS.format(100, 163)}", ("start_waits",), says=("the weights are loaded", "ptxas")),
    Shown("graphs of vLLM", f"stuck\n{vllm('Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  0%')}", ("start_waits",),
          says=("it captures CUDA graphs", "--enforce-eager"), never=("--disable-cuda-graph",)),
    Shown("what was tried is not asked for", f"stuck\nvllm serve m --enforce-eager\n{vllm('GPU KV cache size: 9,000 tokens')}", ("start_waits",), says=("ps aux",), never=("--enforce-eager: that shows",)),
    Shown("a flag that a program only names", f"stuck\nset 'enforce_eager=True' or use '--enforce-eager' in the CLI\n{vllm('GPU KV cache size: 9,000 tokens')}", ("start_waits",), says=("--enforce-eager: that shows",)),
    Shown("it serves", f"{HANGS}\n{steps(BEGIN, NCCL, WEIGHTS, READY)}", (), never=("last step",)),
    Shown("a compile that has ended", f"{HANGS}\n" + vllm("torch.compile takes 59.90 s in total"), ("start_waits",), says=("torch.compile has ended", "how much memory"), never=("compiles the model",)),
    Shown("the second start in a log", f"{HANGS}\n{steps(BEGIN, READY, 'server_args=ServerArgs(tp_size=2)', NCCL)}", ("start_waits",), says=("NCCL was loaded",)),
    Shown("an exception says more", f"{HANGS}\n{steps(NCCL)}\nRuntimeError: some words", (), says=("unknown:",), never=("last step",)),
    Shown("a message says more", f"{HANGS}\n{steps(WEIGHTS)}\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", (), never=("last step",)),
    Shown("only people's words", "sglang on 2 nodes: --nnodes 2 freezes", ("start_waits",),
          says=("note: somebody says that it hangs", "GLOO_SOCKET_IFNAME"), never=("decode is no faster",)),
    Shown("a long start", "\n".join((vllm("Loading weights took 12.69 seconds"), vllm("torch.compile takes 2222.52 s in total"), vllm("Graph capturing finished in 17 secs, took 0.48 GiB"))),
          ("start_slow",), says=("torch.compile takes most of the time", "loading the weights 13 s, torch.compile 2,223 s, capturing CUDA graphs 17 s", "VLLM_CACHE_ROOT"), never=("last step",)),
    # vllm-project/vllm#25848
    Shown("slow shards", "Loading safetensors checkpoint shards:  77% Completed | 74/96 [05:39<01:45,  4.77s/it]", ("start_slow",), says=("loading the weights 339 s", "74 of 96 shards", "--safetensors-load-strategy prefetch"), never=("the start waits here",)),
    # vllm-project/vllm#44881
    Shown("a long warm-up", "\n".join((vllm("Loading weights took 18.10 seconds"), vllm("torch.compile took 43.20 s in total"), vllm("Graph capturing finished in 9 secs"), vllm("init engine (profile, create kv cache, warmup model) took 262.41 s (compilation: 43.20 s)"))),
          ("start_slow",), says=("measuring memory and warming kernels up takes most", "warming kernels up 210 s", "flashinfer-jit-cache")),
    Shown("a short start", "\n".join((vllm("torch.compile takes 22.52 s in total"), vllm("Graph capturing finished in 17 secs, took 0.48 GiB"))), ("start_waits",)),
    # vllm-project/vllm#9920: NCCL's communicator is made, and nothing comes of it.
    Shown("no prompt is done", "\n".join((vllm("vLLM is using nccl==2.20.5"), MADE, vllm("GPU KV cache size: 9,000 tokens"), BAR.format(0, 0))), ("collective_waits",),
          says=("note: NCCL's communicator is made, and 0 of 16 prompts are done", "If it stays there, the first collective for these prompts seems not to return", "start once with NCCL_P2P_DISABLE=1", "ACS", "--shm-size", "via SHM"),
          never=("last step", "sglang", "tuner preflight")),
    Shown("people say that it hangs there", "\n".join((HANGS, MADE, BAR.format(0, 0))), ("collective_waits",), says=("waits: NCCL's communicator",)),
    Shown("prompts over shared memory", "\n".join((OFF, MADE, VIA.format("SHM/direct/direct"), BAR.format(0, 0))), ("collective_waits",), says=("df -h /dev/shm",), never=("start once with",)),
    Shown("prompts between nodes", "\n".join((MADE, "Custom allreduce is disabled because this process group spans across nodes.", BAR.format(0, 0))), ("collective_waits",), says=("The group spans nodes", "tuner preflight"), never=("ACS", "--shm-size")),
    Shown("prompts over P2P", "\n".join((MADE, VIA.format("P2P/IPC"), BAR.format(0, 0))), ("collective_waits",), says=("start once with",), never=("--shm-size",)),
    Shown("a prompt is done", "\n".join((MADE, BAR.format(0, 0), BAR.format(6, 1))), ()),
    Shown("the second set of prompts", "\n".join((MADE, BAR.format(100, 16), BAR.format(0, 0))), ()),
    Shown("without lines of NCCL", BAR.format(0, 0), ()),
    Shown("prompts, and an exception", "\n".join((MADE, BAR.format(0, 0), "RuntimeError: some words")), (), says=("unknown:",)),
    Shown("the start stays at the communicator", f"{steps(BEGIN, NCCL)}\n{MADE}", ("start_waits",),
          says=("shows: NCCL's communicator is made", "If the log goes no further than this text", "first collective over it, which seems not to return if it stays so", "NCCL_P2P_DISABLE=1")),
    Shown("a communicator of torch before NCCL's", f"{MADE}\n{steps(BEGIN, NCCL)}", ("start_waits",), says=("NCCL was loaded",)),
    # deepseek-ai/DeepSeek-Coder-V2#29
    Shown("a communicator, and no line of a step", f"{HANGS}\n{MADE}\nCustom allreduce is disabled because it's not supported on more than two PCIe-only GPUs.", ("start_waits",),
          says=("waits: the last step of the start that the text shows: NCCL's communicator is made", "NCCL_P2P_DISABLE=1"), never=("no line of the server", "--disable-custom-all-reduce")),
    Shown("the start goes on from there", f"{steps(BEGIN, NCCL)}\n{MADE}\n{steps(WEIGHTS)}", ("start_waits",), says=("it loads the weights",), never=("communicator",)),
    # Lines of load.
    Shown("requests are held back", "\n".join((load(64, 187, 41.2), load(64, 190, 40.8))), ("requests_held",),
          says=("64 requests run, up to 190 wait, and at most 41 % of the KV cache", "Raise --max-num-seqs, if it is 64"), never=("--max-running-requests",)),
    Shown("the cache is full", "\n".join((load(64, 187, 97.2), load(63, 190, 96.8))), (), never=("has room",)),
    Shown("one long request fills the cache", "\n".join((load(1, 14, 76.5), load(1, 14, 76.8))), ("requests_large",),
          says=("Up to 14 wait while 1 or fewer run and up to 77 %",), never=("--max-num-seqs",)),
    Shown("no tokens", "\n".join([quiet(0.0, 2, used=5.0)] * 2), ("no_tokens",), says=("2 of 2 lines say 0 tokens/s", "dmesg")),
    # vllm-project/vllm#37307 and #1734: no hang, as prompts are computed.
    Shown("prompts before answers", "\n".join(load(running, 90 - running, 3.0 * running).replace("2000.5", "18.1").replace("900.0", "23998.2") for running in (10, 16, 22)), ("prompts_first",),
          says=("In 3 of 3 lines 23,998 tokens/s of prompts", "at most 1.8 tokens/s, and up to 80 wait"), never=("--enable-chunked-prefill", "sglang")),
    Shown("prompts before answers in V0", "\n".join(load(running, 5, 27.0).replace("2000.5", "0.0").replace("Waiting", "Swapped: 0 reqs, Pending") for running in (20, 22)), ("prompts_first",),
          says=("--enable-chunked-prefill",), never=("dmesg",)),
    # vllm-project/vllm#7913
    Shown("it hangs after one line of many requests", f"{HANGS}\n{quiet(30.9, 21)}", ("tokens_come",), says=("it begins after them", "py-spy"), never=("max_tokens",)),
    # vllm-project/vllm#8378
    Shown("none runs", f"{HANGS}\n{quiet(0.4, 2)}\n" + "\n".join(load(0, waiting, 0.0).replace("2000.5", "0.0") for waiting in (12, 22)), ("none_runs",), says=("up to 22 wait", "py-spy"), never=("tokens until the last one",)),
    # vllm-project/vllm#26328
    Shown("a worker that failed is no wait", f"{vllm('vLLM is using nccl==2.27.3')}\nERROR [multiproc_executor.py:597] WorkerProc failed to start.", (), says=("follows: a process of the server ended",)),
    # sgl-project/sglang#1270
    Shown("speed is not the question", "it stops returning valid answers\n" + "\n".join([decode(1, graph=True, speed=50.0)] * 3), ()),
    # sgl-project/sglang#6081
    Shown("steps with drafts", "\n".join([decode(8, graph=True, speed=125.0).replace("cuda graph", "accept len: 3.64, cuda graph")] * 3), ()),
    # sgl-project/sglang#3892
    Shown("lines of load beside a crash", "\n".join((load(64, 187, 41.2), load(64, 190, 40.8), "CUDA error: an illegal memory access")), (), says=("stops: a kernel read",), never=("--max-num-seqs",)),
    Shown("a queue that comes and goes", "\n".join((load(12, 3, 41.2), load(64, 0, 40.8), load(30, 0, 20.1))), ()),
    Shown("one line shows little", load(64, 187, 41.2), ()),
    Shown("no graphs", "\n".join([decode(1, graph=False)] * 2), ("decode_without_graphs",),
          says=("2 of 2 lines", "--disable-cuda-graph"), never=("--cuda-graph-max-bs",)),
    Shown("batches above the graphs", "\n".join([decode(200, graph=False)] * 2), ("decode_without_graphs",), says=("--cuda-graph-max-bs 200",)),
    Shown("one request", "\n".join(decode(1, graph=True, speed=speed) for speed in (49.0, 51.0, 50.0)), ("few_requests",), says=("50.0 tokens/s (median of 3 lines)",)),
    Shown("a rate that falls is not told by its median", "\n".join(decode(2, graph=True, speed=speed) for speed in (34.1, 30.0, 0.9)), ()),
    # The rate falls while requests run; 1CatAI/1Cat-vLLM#490 has one beside a long prompt.
    Shown("decode stalls", "\n".join(map(quiet, (34.1, 30.0, 1.1, 0.9, 0.9))), ("decode_stalls",),
          says=("3 lines in a row say at most 1.1 tokens/s for up to 3 running requests, and other lines say up to 30.0", "none waits, and at most 6 %", "UTILIZATION,CLOCK"), never=("prompt is computed", "sglang")),
    Shown("it stalls as another request comes", "\n".join((quiet(38.2, 1), quiet(37.1, 1), quiet(11.0, 2, prompt=810.0), quiet(0.7, 2), quiet(0.6, 2))), ("decode_stalls",), says=("It begins as more requests run", "cudagraph_capture_sizes")),
    Shown("it stalls for most of the text", "\n".join(map(quiet, (34.1, 30.0, *[0.9] * 9))), ("decode_stalls",)),
    Shown("a prompt beside it fills the cache", "\n".join((quiet(34.1), quiet(30.0), quiet(0.3, used=7.0), quiet(0.2, used=7.8), quiet(0.3, used=8.6))), ("decode_stalls",),
          says=("fills from 7.0 to 8.6 %", "--max-num-batched-tokens"), never=("heat",)),
    Shown("prompts are computed meanwhile", "\n".join((quiet(34.1), quiet(30.0), quiet(0.9, prompt=800.0), quiet(0.9, prompt=900.0))), ()),
    Shown("a long prompt that is counted when it is done", "\n".join((quiet(34.1), quiet(30.0), quiet(0.9), quiet(0.9), quiet(30.0, prompt=9000.0))), ()),
    Shown("one of many requests is left", "\n".join((load(64, 0, 40.0), load(64, 0, 41.0), quiet(40.1, 1), quiet(40.0, 1), quiet(40.2, 1))), ()),
    Shown("sglang stalls", "\n".join(decode(2, graph=True, speed=speed) for speed in (49.0, 51.0, 1.0, 0.9)), ("decode_stalls",), never=("vLLM",)),
    Shown("the time between requests is no decode", "\n".join(sglang("Prefill batch. #new-seq: 1, #new-token: 9, #cached-token: 0, ") + "\n" + decode(1, graph=True, speed=speed) for speed in (49.0, 51.0, 1.0, 0.9)), ()),
    Shown("slow from the start", "\n".join(decode(1, graph=True, speed=speed) for speed in (1.1, 0.9, 1.0)), ("decode_slow",), says=("at most 1.1 tokens/s", "--cpu-offload-gb"), never=("bounds them",)),
    # intel/llm-scaler#391, vllm-project/vllm#1879, #30599 and #21148: people say that it hangs.
    Shown("a request that does not return", "[Bug]: the last request does not return\n" + "\n".join([quiet(47.0, 1)] * 2), ("tokens_come",), says=("max_tokens",)),
    Shown("it hangs, people say, and tokens come", f"{HANGS}\n" + "\n".join([quiet(180.0, 1)] * 2), ("tokens_come",),
          says=("180.0 tokens/s for 1 running", "max_tokens"), never=("no line of the server", "tuner preflight", "one request runs")),
    Shown("the cache fills up", f"{HANGS}\n" + "\n".join([quiet(311.1, 1, used=97.3)] * 2), ("tokens_come",), says=("97 % full", "next to no room")),
    Shown("the last line has no token", f"{HANGS}\n{quiet(3.5, 1)}\n{quiet(0.0, 1)}", ("no_tokens",), says=("1 of 2 lines say 0 tokens/s", "structured output alone")),
    # sgl-project/sglang#4759: lines of prefill show a limit on requests too.
    Shown("prefill beside a queue", "\n".join(sglang(f"Prefill batch. #new-seq: {n}, #new-token: 254, #cached-token: 4, token usage: 0.01, #running-req: {32 - n}, #queue-req: {66 - n}, ") for n in (2, 3, 5)),
          ("requests_held",), says=("32 requests run, up to 64 wait, and at most 1 %",)),
    # sgl-project/sglang#2746: two long answers fill the cache.
    Shown("few requests in a full cache", "\n".join(decode(2, graph=True, speed=10.9).replace("usage: 0.01", "usage: 1.00") for _ in range(3)), ()),
    # sgl-project/sglang#6901
    Shown("somebody wonders that the cache is empty", "KV Cache usage is 0% for mistral\n" + "\n".join([quiet(47.0, 1, used=0.3)] * 2), ("cache_unused",), says=("0.3 % of the cache", "That is no fault")),
    Shown("somebody wants more of a full one", "how to increase GPU KV cache?\n" + "\n".join([quiet(47.0, 9, used=97.3)] * 2), ()),
    Shown("prompts that take no time", "\n".join(sglang(f"Prefill batch. #new-seq: 1, #new-token: 70, #cached-token: 0, token usage: 0.0{n}, #running-req: {n}, #queue-req: {60 - n}") for n in (1, 4, 7, 9)), ()),
    Shown("prefill sets the pace", "\n".join(sglang(f"Prefill batch. #new-seq: 3, #new-token: 15000, #cached-token: 0, token usage: 0.0{n}, #running-req: {n}, #queue-req: {30 + n}") for n in (1, 4, 7, 9)), ("prompts_wait",),
          says=("up to 39 requests wait for their first token", "up to 15,000 new tokens", "--max-prefill-tokens (16384"), never=("--max-running-requests",)),
    Shown("numbers that are none", "\n".join([sglang("Decode batch. #running-req: 8, accept len: 1..5, accept rate: 0..19, gen throughput (token/s): 99.5")] * 2), ()),
    # sgl-project/sglang#3909
    Shown("nothing holds them back", "\n".join(decode(8, graph=True, speed=speed) for speed in (186.6, 185.9, 184.3)), ("load_steps",), says=("23.2 each: a step of 43 ms",)),
    Shown("steps of a second", "\n".join([quiet(16.7, 16, used=94.9)] * 3), ("decode_slow",), says=("at most 1.0 tokens/s", "nearly full (95 %)", "--cpu-offload-gb")),
    # vllm-project/vllm#31353
    Shown("one answer fills the cache", "\n".join(quiet(200.0, 1, used=used) for used in (0.3, 0.4, 0.6)), ("few_requests",), says=("fills from 0.3 to 0.6 % as its answer grows",)),
    # sgl-project/sglang#22877
    Shown("prefill and decode do not meet", f"{HANGS}\n" + "\n".join(sglang(f"Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0, #prealloc-req: {n}, #inflight-req: 1, ") for n in (18, 22, 27, 35)), ("partner_waits",),
          says=("#prealloc-req rises from 18 to 35", "nc -zv"), never=("last step",)),
    # QwenLM/Qwen3#1700
    Shown("answers that do not end", "Models don't terminate in vllm when generating structured output\n" + "\n".join(load(1, 0, used) for used in (20.6, 22.2, 23.9)), ("tokens_come",), says=("max_tokens", "maxLength"), never=("Send as many",)),
    # sgl-project/sglang#4257
    Shown("a stack of a batch after the start", f"stuck\n{steps(BEGIN, NCCL, WEIGHTS)}\n" + 'Thread 26 (idle): "MainThread"\n    get (queue.py:171)\n    process_batch_result_prefill (scheduler.py:1261)\nThread 27 (active): "Thread-3 (forward_thread_func)"\n    __call__ (torch/_ops.py:1116)\n    ragged_run (flashinfer/prefill.py:237)\n', ("stack_runs",), says=("ragged_run (flashinfer/prefill.py:237)", "--attention-backend")),
    Shown("a long prompt alone", "\n".join(f"Avg prompt throughput: {rate} tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: {used}%" for rate, used in ((812, 21), (790, 24), (801, 27))), ("prompts_alone",), says=("at 801 tokens/s", "take 12 s"), never=("a kernel or a collective does not end",)),
    Shown("texts that get longer", "\n".join(f"Decode batch, #running-req: 64, #token: 1, token usage: {used}, cuda graph: True, gen throughput (token/s): {speed}, #queue-req: 0" for used, speed in ((0.35, 2400), (0.62, 1600), (0.85, 1100))), ("decode_falls",), says=("from 2,400 to 1,100", "from 35 to 85 %")),
    Shown("fewer requests are no slower decode", "\n".join(f"Decode batch, #running-req: {n}, #token: 1, token usage: {used}, cuda graph: True, gen throughput (token/s): {speed}, #queue-req: 0" for n, used, speed in ((64, 0.35, 2400), (40, 0.62, 1600), (20, 0.85, 1100))), ("load_steps",), never=("texts get longer",)),
    # vllm-project/vllm#8395
    Shown("GPUs of which one is idle", "TP=4 gets stuck. The GPU utilization of 3 GPUs is at 100%, while 1 GPU is at 0%\n" + load(1, 0, 0.5), ("tokens_come",), says=("the rank of the idle GPU has ended", "--disable-custom-all-reduce"), never=("max_tokens",)),
    # vllm-project/vllm#11517
    Shown("one line, and somebody who says that requests are stuck", "Requests get stuck pending. --enable-lora --max-lora-rank 64\n" + load(1, 3, 3.1), ("requests_held",), says=("1 requests run, up to 3 wait", "--max-loras"), never=("max_tokens",)),
    Shown("lines that a terminal wraps in a word", "\n".join(load(n, 60, 52.0).replace("Avg generation throughput", "Avg generation throughpu\nt") for n in (27, 27, 27)), ("requests_held",), says=("27 requests run",)),
    Shown("lines that a mail wraps", "\n".join(load(n, 60, 52.0).replace("s, Running", "s,\nRunning") for n in (27, 27, 27)), ("requests_held",), says=("27 requests run",)),
    Shown("lines without their end", "\n".join(f"[TP0] Decode batch. #running-req: {n}, #token: 958017, token usage: 0.96" for n in (36, 35)), ("cache_held",), says=("96 % of it", "while 35 run")),
    Shown("prompts from the cache", "\n".join(f"Prefill batch. #new-seq: {n}, #new-token: {n}, #cached-token: {4010 * n}, token usage: 0.26, #running-req: 28, #queue-req: 0" for n in (2, 4, 5)), ("prompts_reused",), says=("Of 11 requests 11 tokens were computed", "4,010 for each")),
    Shown("new prompts", "\n".join(f"Prefill batch. #new-seq: {n}, #new-token: {900 * n}, #cached-token: {4010 * n}, token usage: 0.26, #running-req: 28, #queue-req: 0" for n in (2, 4, 5)), ()),
    Shown("lines without their end, and room", "\n".join(f"[TP0] Decode batch. #running-req: {n}, #token: 958017, token usage: 0.50" for n in (36, 35)), ()),
    Shown("it stands at a first prompt", f"{HANGS}\n{steps(BEGIN, NCCL)}\n" + sglang("Prefill batch. #new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0, "), ("start_waits",), says=("it computes a prompt", "py-spy")),
    Shown("nobody says that it stands there", steps(BEGIN, NCCL) + "\n" + sglang("Prefill batch. #new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0, "), ()),
    Shown("on a CPU", "WARNING 01-17 07:57:05 _logger.py:72] Pin memory is not supported on CPU.\n" + "\n".join([quiet(0.1, 1)] * 3), (), says=("vLLM runs on the CPU",), never=("nvidia-smi",)),
    # sgl-project/sglang#26248's kind: requests are put back, and their tokens are computed again.
    Shown("decode falls by retraction", "\n".join((decode(4, graph=True, speed=429.3, waiting=3), sglang("KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 6606, #new_token_ratio: 0.0980 -> 0.1205"),
          sglang("Prefill batch, #new-seq: 1, #new-token: 8192, #cached-token: 0, #running-req: 3, #queue-req: 3, "), decode(3, graph=True, speed=29.5, waiting=3))), ("retractions",),
          says=("8,192 new tokens", "429 tokens/s before (median), and has 30 after", "--max-running-requests below 4", "--schedule-conservativeness 1.3", "--mem-fraction-static"), never=("requests are put back\n",)),
    Shown("a retraction that costs little", "\n".join((decode(4, graph=True, speed=429.3), sglang("KV cache pool is full. Retract requests. #retracted_reqs: 1"), sglang("Prefill batch, #new-seq: 1, #new-token: 92, #cached-token: 0, "), decode(4, graph=True, speed=419.5))), (),
          says=("the KV cache is full, and requests are put back",)),
    # sgl-project/sglang#3508
    Shown("people name another engine", "slower than vllm\n" + "\n".join(decode(1, graph=True, speed=speed) for speed in (14.9, 15.0, 15.0)), ("few_requests",), says=("--disable-cuda-graph",), never=("--enforce-eager",)),
    Shown("two requests", "\n".join(decode(2, graph=True, speed=speed) for speed in (149.0, 151.0, 150.0)), ("few_requests",), says=("at most 2 requests run at a time", "Together they get 150.0")),
    Shown("rejected drafts", "\n".join([decode(8, graph=True, speed=125.0).replace("cuda graph", "accept len: 1.57, accept rate: 0.19, cuda graph")] * 2), ("drafts_rejected",),
          says=("19 % are (median of 2 lines), 1.57 tokens", "--speculative-num-steps"), never=("num_speculative_tokens",)),
    Shown("accepted drafts", "\n".join([vllm("SpecDecoding metrics: Mean acceptance length: 2.53, Accepted throughput: 10.23 tokens/s, Avg Draft acceptance rate: 76.4%")] * 2), ()),
    # Tables of nccl-tests; NVIDIA/nccl-tests#182 and #107 have processes that did not join.
    Shown("each process has its own table", table(2**20, 2**26, 2**28, copies=2), ("nccl_tests_apart",),
          says=("note: the processes of nccl-tests did not join one communicator", "a size comes again before a table ends", "make MPI=1", "nothing of the links"), never=("busbw) is", "tuner preflight", "400 Gb/s")),
    Shown("its rows are out of step", HEADING + "".join(map(row, (8, 16, 32, 16, 64, 128, 32, 64))) + NCCL_LINE, ("nccl_tests_apart",), says=("make MPI=1",), never=("TCP sockets are not",)),
    Shown("one size, two ranks 0", DEVICES.format("# Using devices\n", 11, 1) + DEVICES.format("", 12, 2).partition("\n")[2] + HEADING * 2 + row(2**28) * 2, ("nccl_tests_apart",),
          says=("One list of devices has rank 0 of 2 processes.",), never=("busbw) is",)),
    Shown("one rank alone", table().replace("# Avg", f"{row(8, 0)}{row(1 << 24, 0)}# Avg"), (), says=("One rank on one GPU ran", "mpirun -n 2")),
    Shown("two runs, one after the other", table(8, 16, 32) + table(8, 16, 32, pid=2), (), says=("busbw) is 4.5 GB/s",)),
    Shown("runs of other sizes", "".join(HEADING + row(size) + row(1024) for size in (8, 16, 32)), (), says=("in table 3, 1,024 bytes",)),
    Shown("a run of each type", HEADING + row(8) + row(16) + row(8, kind="bfloat16") + row(16, kind="bfloat16"), (), says=("busbw) is 4.5 GB/s",)),
    Shown("cycles of one run", HEADING + "".join(map(row, (8, 16, 32, 8, 16, 32, 8, 16, 32))), (), says=("busbw) is 4.5 GB/s",)),
    Shown("cycles of one size", HEADING + row(2**28) * 3, (), says=("busbw) is 4.5 GB/s",)),
    # `nvidia-smi nvlink -s`: NVIDIA/nccl#1608 has cards whose bridges join 12 of 18 links.
    Shown("a board with fewer links", links(0, 2) + links(1, 2), ("nvlink_inactive",), says=("note: NVLinks are inactive", "GPU 0: 2 of 3; GPU 1: 2 of 3.", "no link seems lost"), never=("Reset",)),
    Shown("a lost link", links(0, 3) + links(1, 2), ("nvlink_inactive",), says=("slow: a GPU has fewer", "GPU 0: 3 of 3; GPU 1: 2 of 3.", "has lost some", "nvidia-smi nvlink -e")),
    Shown("a card without a bridge", links(0, 2) + links(1, 2) + links(2, 0), ("nvlink_inactive",), says=("GPU 2: 0 of 3.", "one is left over", "nvidia-smi topo -m"), never=("has lost some",)),
    Shown("no link at all", links(0, 0) + links(1, 0), ("nvlink_inactive",), says=("No link is active", "nvidia-fabricmanager")),
    Shown("a few lines of links", links(0, 2).partition("\n")[2], ("nvlink_inactive",), says=("one GPU: 2 of 3.", "Compare all GPUs"), never=("lost some", "Reset")),
    # vllm-project/vllm#52504 and #17167: people have tried it without CUDA graphs.
    Shown("graphs on several nodes", "vLLM hangs on two nodes. With `--enforce-eager` the same setup serves\n" + vllm("Loading weights took 3.2 seconds"), ("graphs_blamed", "start_waits"),
          says=("collectives between nodes within captured graphs", "nvidia-nccl-cu12", "NCCL_DEBUG=INFO"), never=("--enforce-eager: that shows", "PIECEWISE")),
    Shown("graphs on one node", "vLLM hangs, it works fine with --enforce-eager\n" + vllm("GPU KV cache size: 9,000 tokens"), ("graphs_blamed", "start_waits"),
          says=("--disable-custom-all-reduce", "PIECEWISE"), never=("--enforce-eager: that shows", "between nodes")),
    Shown("graphs of a worker that does not answer", "multi-node hangs; if '--enforce-eager' is enabled, it starts normally\nTimeoutError: RPC call to sample_tokens timed out", ("graphs_blamed",), says=("nvidia-nccl-cu12",), never=("Then start once with --enforce-eager",)),
    Shown("eager hangs too", "vLLM hangs, and with --enforce-eager it still does not serve. It does not work with --enforce-eager\n" + vllm("GPU KV cache size: 9,000 tokens"), ("start_waits",)),
    # NVIDIA/nccl-tests#152 and NVIDIA/nccl#897: one node transfers without GPUDirect RDMA.
    Shown("a host without it", VIA.partition("\n")[0].format("P2P/IPC/read") + net("gpu32", "send", "IB/1/GDRDMA/Shared") + net("gpu37", "receive", "IB/0/Shared"), ("gdr_lacks",),
          says=("slow: no GPUDirect RDMA on gpu37", "for gpu32 and not for gpu37", "sudo modprobe nvidia-peermem"), never=("ACS", "IOMMU", "NCCL_P2P_DISABLE")),
    Shown("a rank without it", "9[1a000] -> 2[6b000] [send] via NET/IB/0/GDRDMA\n9[1a000] -> 2[6b000] [receive] via NET/IB/1", ("gdr_lacks",), says=("for rank 9 and not for rank 2",)),
    Shown("both have it", net("a", "send", "IB/0/GDRDMA") + net("b", "receive", "AWS Libfabric/1/GDRDMA"), ()),
    Shown("none has it", net("a", "send", "IB/0") + net("b", "receive", "IB/1"), ()),
    Shown("older GPUs only receive with it", net("a", "send", "IB/0") + net("b", "receive", "IB/1/GDRDMA"), ()),
    Shown("one card of a host is far", net("a", "send", "IB/0/GDRDMA") + net("b", "receive", "IB/1") + net("b", "receive", "IB/0/GDRDMA"), ()),
    # bytedance/byteps#179: counters of RoCE.
    Shown("lost packets", counted(local_ack_timeout_err=2705, np_cnp_sent=1333, out_of_sequence=0) + prios(9, 0), ("rdma_counters",),
          says=("slow: packets are lost or late", "local_ack_timeout_err is 2705 on mlx5_0", "(np_cnp_sent)", "no lossless class", "NCCL_IB_TC", "mlnx_qos"), never=("out_of_sequence is", "Nothing was lost")),
    Shown("no loss", counted(local_ack_timeout_err=0, rp_cnp_handled=0, lifespan=12), ("rdma_counters",), says=("note: ", "Nothing was lost, by local_ack_timeout_err."), never=("PFC", "Congestion")),
    Shown("rdma statistic", "link mlx5_1/1 rx_write_requests 7 out_of_sequence 41 packet_seq_err 0", ("rdma_counters",), says=("out_of_sequence is 41 on mlx5_1",)),
    Shown("priority 0 alone", prios(9, 0), ("rdma_counters",), says=("note: ", "no lossless class"), never=("Nothing was lost",)),
    Shown("a lossless class", prios(9, 7), ()),
    Shown("pauses", prios(9, 0) + "     rx_prio0_pause: 5\n", ()),
    Shown("pauses of the link", prios(9, 0) + "     rx_global_pause: 5\n", ()),
    Shown("one priority is shown", prios(9, 0).partition("\n")[0], ()),
    Shown("no buffer", "     rx_discards_phy: 88\n", ("rdma_counters",), says=("rx_discards_phy is 88: the card",)),
    # Stacks.
    Shown("a collective", WAITS.format("all_reduce (torch/distributed/distributed_c10d.py:2810)"), ("stack_peers",),
          says=("it waits for other ranks in a collective", "called for profile_run (vllm/v1/worker/gpu_model_runner.py:2012)")),
    Shown("an idle worker", WAITS.format("dequeue (vllm/distributed/device_communicators/shm_broadcast.py:470)"), ("stack_work",), says=("it is idle",)),
    Shown("an idle one beside another", WAITS.format("dequeue (vllm/distributed/device_communicators/shm_broadcast.py:470)") + WAITS.format("_try_wait (subprocess.py:2000)"),
          ("stack_compiler",), says=("it waits for a compiler",), never=("it is idle",)),
    Shown("faulthandler", 'Thread 0x00007f3c (most recent call first):\n  File "/usr/lib/torch/cuda/streams.py", line 105 in synchronize\n  File "/x/sglang/srt/managers/scheduler.py", line 20 in run_batch',
          ("stack_gpu",), says=("called for run_batch (/x/sglang/srt/managers/scheduler.py:20)",)),
    Shown("a crash is no wait", 'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f2f (most recent call first):\n  File "/x/aiter/ops/custom_all_reduce.py", line 60 in all_reduce\n'
          '  File "/x/sglang/srt/models/m.py", line 5 in forward\n\nThread 0x00007f2e (most recent call first):\n  File "/usr/lib/python3.10/threading.py", line 324 in wait',
          ("process_crashed",), says=("stops: the process ended in compiled code: Segmentation fault", "is all_reduce (/x/aiter/ops/custom_all_reduce.py:60), called for forward (/x/sglang/srt/models/m.py:5)"), never=("other ranks in a collective",)),
    # sgl-project/sglang#5034 and #12076: sglang's thread for batches, and docker compose's names.
    Shown("a lock", WAITS.format("acquire (filelock/_api.py:344)").replace("MainThread", "Thread-4 (forward_thread_func)"), ("stack_lock",), says=("~/.cache/flashinfer",)),
    Shown("docker compose", "\n".join(f"sglang-1  | {line}" for line in WAITS.format("synchronize (torch/cuda/streams.py:105)").splitlines()), ("stack_gpu",)),
    Shown("a driver's function", WAITS.format("cuEventSynchronize                 (libcuda.so.590.48.01)"), ("stack_gpu",),
          says=("The innermost frame is cuEventSynchronize (libcuda.so.590.48.01), called for profile_run",)),
    # vllm-project/vllm#17676
    Shown("FlashInfer's sampler", f"{HANGS}\n" + WAITS.format("top_k_top_p_sampling_from_logits (flashinfer/sampling.py:1548)"), ("stack_sampler",), says=("VLLM_USE_FLASHINFER_SAMPLER=0",), never=("no line of the server",)),
    Shown("one request holds the cache", "\n".join(quiet(5.4, 1, used=used).replace("Waiting: 0", "Waiting: 14") for used in (76.5, 76.7, 76.8)), ("requests_large",), says=("One request alone holds 77 % of the cache", "its client may be gone")),
    Shown("the cache fills until it hangs", f"{HANGS}\n" + "\n".join(quiet(400.0, 50, used=used) for used in (21.9, 31.7, 41.5)), ("tokens_come",), says=("fills from 22 to 42 % in these lines", "a smaller --max-num-seqs")),
    Shown("a bar of offline inference", "stuck at 0%\n" + vllm("Maximum concurrency for 10,000 tokens per request: 1.61x") + "\nProcessed prompts:   0%|      | 0/1 [00:00<?, ?it/s, est. speed input: 0.00 toks/s, output: 0.00 toks/s]", ("prompts_open",), says=("0 of 1 requests have ended", "With one request"), never=("Shorter requests fit",)),
    Shown("a bar that moves", f"{HANGS}\nProcessed prompts:  20%|##    | 2/10 [00:40<02:00, 20s/it, est. speed input: 9.00 toks/s]", ("prompts_open",), says=("2 of 10 requests have ended",), never=("With one request", "Until the first")),
    Shown("a bar that has ended", f"{HANGS}\nProcessed prompts: 100%|######| 10/10 [00:40<00:00, 20s/it]", ()),
    Shown("the API server waits for the engine", f"{HANGS}\n(APIServer pid=1) DEBUG 09-02 17:29:06 [utils.py:777] Waiting for 1 local, 0 remote core engine proc(s) to start.", ("start_waits",), says=("waits for the engine's process", "EngineCore and Worker"), never=("config.json",)),
    Shown("clocks that power and heat hold", DMON + "    0   350    84   100    30  1200    98     1\n    1   340    85   100    30  1230     0     0", ("dmon_held",), says=("(pviol): GPU 0.", "(tviol): GPU 0.")),
    Shown("a kernel that waits", DMON + "    0   150    60    96     0  1900     0     0\n    0   150    60    96     0  1900     0     0", ("dmon_waits",), says=("GPU 0: the column sm",)),
    Shown("GPUs at work", DMON + "    0   650    60    96    40  1900     0     0\n    1   650    60    96    40  1900     -     -", ()),
    Shown("half the lanes", LANES.format(3, "8x"), ("pcie_few_lanes",), says=("GPU 00000000:18:00.0: x8 of x16",)),
    Shown("all lanes of an idle card", LANES.format(1, "16x"), ()),
    Shown("a shell's word", vllm("Loading weights onto GPU. This may take a few minutes...") + "\nKilled", ("killed",), says=("the host's memory",)),
    Shown("a shell's line of a script", "serve.sh: line 3: 12345 Killed                  python -m vllm.entrypoints.openai.api_server", ("killed",)),
    Shown("a word in a sentence", "The process was killed by us.", ()),
    Shown("a GPU that is slower than another", QUERY.format(345, "P0"), ("clocks_differ",), says=("GPU 1: 345 MHz at 92 degrees C",)),
    Shown("a GPU that rests", QUERY.format(345, "P8"), ()),
    Shown("GPUs of one clock", QUERY.format(1965, "P0"), ()),
    Shown("lanes in columns", "index, pcie.link.width.current, pcie.link.width.max\n0, 16, 16\n1, 8, 16", ("pcie_few_lanes",), says=("GPU 1: x8 of x16",)),
    Shown("a host without memory", FREE.format(3), ("host_memory",), says=("2 % of it is available",)),
    Shown("a host with memory", FREE.format(90), ()),
    Shown("modules without peermem", "nvidia_uvm 1540096 0\nnvidia 56717312 1 nvidia_uvm", ("no_peermem",), says=("DMA-BUF",)),
    Shown("modules with it", "nvidia_peermem 16384 0\nnvidia_uvm 1540096 0\nnvidia 56717312 1 nvidia_uvm", ()),
    Shown("nvbandwidth", NVBANDWIDTH, ("p2p",), says=("5.3 GB/s (GPU 1 to 0)",)),
    Shown("errors of NVLink", "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: Replay Errors: 0\n\t Link 1: CRC Errors: 99231", ("nvlink_errors",), says=("GPU 0, link 1, CRC Errors: 99,231",)),
    Shown("no errors of NVLink", "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: Replay Errors: 0\n\t Link 1: CRC Errors: 0", ()),
    Shown("weights are loaded, in words that somebody typed", "Loading safetensors checkpoint shards : 100% completed\nno more logs", ("start_waits",), says=("the weights are loaded",), never=("iostat",)),
    Shown("weights are loaded, as old releases say it", vllm("[model_runner.py:904] Loading model weights took 3.3461GB"), ("start_waits",), says=("the weights are loaded",)),
    Shown("a communicator between nodes is not made", f"{HANGS}\n" + BEGUN.format(2), ("communicator_waits",), says=("NCCL_IB_DISABLE=1", "no question of speed"), never=("what makes it slow",)),
    Shown("and nobody says that it hangs", BEGUN.format(2), ()),
    Shown("rates that count a pause", "\n".join((RESTED, decode(1, graph=True, speed=1.1), decode(1, graph=True, speed=84.0), RESTED, decode(1, graph=True, speed=3.2), decode(1, graph=True, speed=82.0))), ("few_requests",), says=("gets 84.0 tokens/s", "counts the pause before a request: 2")),
    Shown("drafts of a benchmark", "============ Serving Benchmark Result ============\nSuccessful requests:   128\nAcceptance rate (%):   3.39\nAcceptance length:   1.03", ("drafts_rejected",), says=("3 % are (the benchmark's own figure)",)),
    Shown("drafts of a benchmark that are accepted", "============ Serving Benchmark Result ============\nSuccessful requests:   128\nAcceptance rate (%):   83.39", ()),
    Shown("requests wait in a line that was cut in two", "it hangs\nINFO: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s\nRunning: 0 reqs, Waiting: 3 reqs, GPU KV cache usage: 0.0%", ("none_runs",)),
    Shown("a replay of a graph", WAITS.format("replay (npu_graph_runner.py:82)").replace("active", "idle"), ("stack_graph",), says=("--disable-cuda-graph", "Ascend NPU is Huawei's")),
    Shown("a replay in torch", WAITS.format("replay (torch/cuda/graphs.py:88)"), ("stack_graph",), says=("--enforce-eager",)),
    Shown("rates of requests that have ended", "\n".join(quiet(speed, 0, used=0.0, prompt=3.0) for speed in (1.2, 2.4)), ("requests_ended",), says=("Tokens came in 2 of these lines", "about 24 tokens in 10 s", "/metrics"), never=("nothing known",)),
    Shown("the same, and one runs", "\n".join(quiet(speed, running, used=0.1) for speed, running in ((1.2, 0), (40.0, 1), (41.0, 1))), ("few_requests",)),
    Shown("an idle server, and nobody complains", "\n".join(quiet(0.0, 0, used=0.0) for _ in range(3)), ()),
    Shown("an idle server, and requests hang", HANGS + "\n" + "\n".join(quiet(0.0, 0, used=0.0) for _ in range(3)), ("none_asks",), says=("before it (the client",)),
    Shown("two models on the same GPUs", "使用4张gpu加载两个模型\n" + "\n".join([quiet(0.0, 1), *(quiet(speed, 1) for speed in (36.4, 36.9, 37.0))]), ("few_requests",), says=("several models or servers run here", "Lines without a token: 1")),
    Shown("a stack without a known wait", WAITS.format("tokenize (transformers/tokenization_utils.py:5)"), ("stack_runs",), says=("two stacks tell",)),
    Shown("the same, idle", WAITS.format("tokenize (transformers/tokenization_utils.py:5)").replace("active", "idle"), ()),
)  # fmt: skip


def test_readings_say_what_many_lines_show(subtests):
    for case in CASES:
        with subtests.test(what=case.what):
            found = diagnose_text(case.text)
            text = found.as_text()
            assert tuple(reading.name for reading in found.readings) == case.names, text
            assert [one["reading"] for one in found.as_json()["shown"]] == list(case.names)
            for words in case.says:
                assert words in text, text
            for words in case.never:
                assert words not in text, text


def test_each_reading_of_load_has_a_case():
    rows = shipped_toml("tuner.diagnose.readers", "load.toml")["reading"]
    assert {row["name"] for row in rows} <= {name for case in CASES for name in case.names}


def test_a_stack_goes_on_in_the_next_part_of_a_log():
    """The last lines of a log are read apart from those before them."""
    deep = "\n".join(f"    wrapper{n} (torch/x.py:{n})" for n in range(20))
    text = WAITS.format(f"all_reduce (torch/distributed/distributed_c10d.py:2810)\n{deep}")
    (reading,) = diagnose_text(text).readings
    assert "called for profile_run" in reading.cause[0]
