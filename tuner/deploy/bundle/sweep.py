"""The sweep: a script that runs the engine's benchmark over lengths and concurrencies."""

from __future__ import annotations

from tuner.deploy.bundle.commands import endpoint
from tuner.deploy.bundle.scripts import SHOW, model_mounts, quoted, script_head
from tuner.deploy.cluster import Cluster

LENGTHS = (128, 256)  # tokens of a prompt, and of its answer
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 100, 128, 200, 256, 512, 1024)

_OPTIONS = r"""
print=no bare=no runs=3 out=sweep-$(date +%Y%m%d-%H%M%S) sharegpt=
while (($#)); do
  case "$1" in
    --print) print=yes ;;
    --bare) bare=yes ;;
    --runs) runs=${2:?--runs needs a number}; shift ;;
    --out) out=${2:?--out needs a folder}; shift ;;
    --sharegpt) sharegpt=${2:?--sharegpt needs a file}; shift ;;
    *)
      printf 'usage: %s [--runs N] [--out DIR] [--sharegpt FILE] [--bare] [--print]\n' "$0" >&2
      exit 2
      ;;
  esac
  shift
done
if ! [[ $runs =~ ^[1-9][0-9]{0,3}$ ]]; then
  printf 'error: --runs needs a whole number from 1, not %s\n' "$runs" >&2
  exit 2
fi
if [[ $print == no ]]; then
  mkdir -p -- "$out"
  out=$(cd -- "$out" && pwd -P)
elif [[ $out != /* ]]; then
  out=$PWD/$out  # docker takes a relative path for the name of a volume
fi
if [[ -n $sharegpt && $sharegpt != /* ]]; then sharegpt=$PWD/$sharegpt; fi
if [[ $bare == no && $out$sharegpt == *:* ]]; then
  printf 'error: docker cannot mount a path with a colon: %s %s\n' "$out" "$sharegpt" >&2
  exit 2
fi
"""
# At least four prompts, because the first request of a load is slower.
_LOOP = r"""
for run in $(seq "$runs"); do
  for length in {lengths}; do
    for concurrency in {concurrencies}; do
      prompts=$((concurrency * 2 < 4 ? 4 : concurrency * 2))
      launch=("${{client[@]}}"
{arguments}
      )
      if [[ $print == yes ]]; then show "${{launch[@]}}"; else "${{launch[@]}}"; fi
    done
  done
done
"""
_COMMON = """\
--base-url {url} --model {name} --tokenizer "$tokenizer"
"${{dataset[@]}}" --random-input-len "$length" --random-output-len "$length"
--num-prompts "$prompts" --max-concurrency "$concurrency" --seed "$run"
"""
# "random" uses ShareGPT's conversations, which sglang would download for every load;
# "random-ids" (sglang 0.5 and later) needs no file.
_SGLANG_DATASET = r"""
dataset=(--dataset-name random-ids)
if [[ -n $sharegpt ]]; then
  if [[ $bare == yes ]]; then file=$sharegpt; else file=/sharegpt.json; fi
  dataset=(--dataset-name random --dataset-path "$file")
fi
"""
_VLLM_DATASET = r"""
dataset=(--dataset-name random)
if [[ -n $sharegpt ]]; then
  printf 'error: vLLM makes its random prompts itself: leave --sharegpt out\n' >&2
  exit 2
fi
"""
# Equal lengths: sglang's ratio is shortest / longest, vLLM's is the largest deviation.
_SGLANG = """\
--backend sglang-oai --random-range-ratio 1.0 --output-file "$results/run-$run.jsonl"
"""
_VLLM = """\
--backend vllm --random-range-ratio 0.0 --ignore-eos
--save-result --result-dir "$results"
--result-filename "run-$run-length-$length-concurrency-$concurrency.json"
"""
_CONTAINER = r"""
tokenizer={model}
if [[ $bare == yes ]]; then
  client=({client})
  results=$out
else
  tokenizer={inside}
  mounts=(--volume "$out:/results")
  if [[ -n $sharegpt ]]; then mounts+=(--volume "$sharegpt:/sharegpt.json:ro"); fi
  client=(
    docker run --rm --network host "${{mounts[@]}}"
{lines}
  )
  results=/results
fi
"""
_BARE = r"""
tokenizer={model}
client=({client})
results=$out
"""


def sweep_script(cluster: Cluster) -> str:
    """The script that runs the sweep against a serving cluster and saves each run's JSON."""
    sglang = cluster.engine.name == "sglang"
    url = f"http://{endpoint(cluster.nodes[0].host, cluster.ports.serve)}"
    common = _COMMON.format(
        url=quoted(url),
        name=quoted(cluster.model.name),
    )
    arguments = common + (_SGLANG if sglang else _VLLM)
    loop = _LOOP.format(
        lengths=" ".join(map(str, LENGTHS)),
        concurrencies=" ".join(map(str, CONCURRENCIES)),
        arguments="\n".join(f"        {line}" for line in arguments.splitlines()),
    )
    title = f"{cluster.name}: benchmark over lengths and requests in flight."
    dataset = _SGLANG_DATASET if sglang else _VLLM_DATASET
    return script_head(title) + _OPTIONS + SHOW + _client(cluster) + dataset + loop


def _client(cluster: Cluster) -> str:
    """The part that sets the client: in the engine's image, or installed here with --bare."""
    sglang = cluster.engine.name == "sglang"
    client = "python3 -m sglang.bench_serving" if sglang else "vllm bench serve"
    model, inside = quoted(cluster.model.path), quoted(cluster.model.container_path)
    if not cluster.engine.image:
        head = "\nbare=yes  # the cluster file names no image\n"
        return head + _BARE.format(client=client, model=model)
    program, _, rest = client.partition(" ")
    lines = [*model_mounts(cluster), f"--entrypoint {program}", quoted(cluster.engine.image)]
    text = "\n".join(f"    {line}" for line in [*lines, rest])
    return _CONTAINER.format(client=client, lines=text, model=model, inside=inside)
