"""The sweep: a script that runs the engine's benchmark over lengths and concurrencies."""

from __future__ import annotations

from tuner.deploy.bundle.commands import endpoint
from tuner.deploy.bundle.scripts import SHOW, model_mounts, quoted, script_head
from tuner.deploy.cluster import Cluster

LENGTHS = (128, 256)  # tokens of a prompt, and of its answer
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 100, 128, 200, 256, 512, 1024)

_OPTIONS = r"""
print=no bare=no runs=3 out=sweep-$(date +%Y%m%d-%H%M%S)
while (($#)); do
  case "$1" in
    --print) print=yes ;;
    --bare) bare=yes ;;
    --runs) runs=${2:?--runs needs a number}; shift ;;
    --out) out=${2:?--out needs a folder}; shift ;;
    *)
      printf 'usage: %s [--runs N] [--out DIR] [--bare] [--print]\n' "$0" >&2
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
if [[ $bare == no && $out == *:* ]]; then
  printf 'error: docker cannot mount a path with a colon: %s\n' "$out" >&2
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
--random-input-len "$length" --random-output-len "$length"
--num-prompts "$prompts" --max-concurrency "$concurrency" --seed "$run"
"""
# "random-ids" (sglang 0.5 and later) needs no file. Equal lengths: sglang's ratio is
# shortest / longest, vLLM's is the largest deviation.
_SGLANG = """\
--backend sglang-oai --dataset-name random-ids --random-range-ratio 1.0
--output-file "$results/run-$run.jsonl"
"""
_VLLM = """\
--backend vllm --dataset-name random --random-range-ratio 0.0 --ignore-eos
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
  client=(
    docker run --rm --network host --volume "$out:/results"
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
    return script_head(title) + _OPTIONS + SHOW + _client(cluster) + loop


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
