#!/usr/bin/env bash
# Every H200 figure of docs/benchmarks.md: raw results into a folder.
#
#     benchmarks/h200/suite.sh r1|keys|engine|planted OUT
#
# Each job starts from an empty compile cache and an empty store. `engine` needs an importable sglang.
set -euo pipefail
part=$1 out=$2
python=${PYTHON:-python3}
problem_r1="fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128"

tune() { # name, problem, options...
  local name=$1 problem=$2 work
  shift 2
  work=$(mktemp -d)
  TUNER_CACHE_DIR=$work/cache TUNER_DATABASE_URL=sqlite:///$work/store.db \
    $python -c 'from tuner.cli import main; main()' tune "$problem" --device H200 --measure gpu \
    --json "$@" >"$out/$name.json" 2>"$out/$name.err" || { tail -3 "$out/$name.err"; return 1; }
  echo "$name done"
}

again() { # name, problem, NAME=FILE...
  local name=$1 problem=$2
  shift 2
  $python benchmarks/h200/rerace.py "$problem" H200 "$out/$name.json" "$@"
}

r1() {
  tune r1 "$problem_r1" --record "$out/r1.csv.gz"
  tune r1-seed1 "$problem_r1" --seed 1
  tune r1-grid "$problem_r1" --grid
  again r1-again "$problem_r1" "first=$out/r1.json" "second=$out/r1-seed1.json" "grid=$out/r1-grid.json"
}

keys() { # all, or those that KEYS names
  while read -r name problem; do
    [[ -z ${KEYS:-} || " $KEYS " == *" $name "* ]] || continue
    tune "$name" "$problem"
    again "$name-again" "$problem" "first=$out/$name.json"
  done <<KEYS
e257n256 fused_moe:E=257,N=256,K=7168,top_k=9,dtype=fp8_w8a8,block_shape=128x128
e257n512 fused_moe:E=257,N=512,K=7168,top_k=9,dtype=fp8_w8a8,block_shape=128x128
e128n768fp8 fused_moe:E=128,N=768,K=2048,top_k=8,dtype=fp8_w8a8,block_shape=128x128
e128n768bf16 fused_moe:E=128,N=768,K=2048,top_k=8,dtype=bfloat16
e256n64int8 fused_moe:E=256,N=64,K=7168,top_k=8,dtype=int8_w8a8,per_channel_quant
KEYS
}

engine() {
  local work
  work=$(mktemp -d)
  export TUNER_CACHE_DIR=$work/cache TUNER_DATABASE_URL=sqlite:///$work/store.db
  $python -c 'from tuner.cli import main; main()' tune "$problem_r1" --device H200 --measure gpu >/dev/null
  $python -c 'from tuner.cli import main; main()' export --device H200 --out "$work/overlay"
  $python -c 'from tuner.cli import main; main()' prove --device H200 --out "$work/overlay" --json \
    >"$out/gate.json"
  TRITON_CACHE_DIR=$work/triton $python benchmarks/h200/procedure.py "$problem_r1" "$out/procedure.json"
}

planted() {
  $python benchmarks/h200/planted.py "$out/planted.json"
}

mkdir -p "$out"
"$part"
