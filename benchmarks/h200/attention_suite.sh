#!/usr/bin/env bash
# Attention on one GPU, as a user would: tune, export, then the engine's own functions with and
# without the plugin. OUT gets one report a line, the exported folder and the comparison.
#   TUNER="tuner" PYTHON="python3" benchmarks/h200/attention_suite.sh OUT
set -uo pipefail
out=$1
here=$(cd "$(dirname "$0")" && pwd)
tuner=${TUNER:-tuner}
python=${PYTHON:-python3}
export TUNER_DATABASE_URL=sqlite:///$out/attention.db

gqa=q_heads=32,kv_heads=8,Lq=128,Lv=128,dtype=bfloat16
gqa64=q_heads=32,kv_heads=8,Lq=64,Lv=64,dtype=bfloat16
mla=q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16
qwen3=q_heads=32,kv_heads=4,Lq=128,Lv=128,dtype=bfloat16
oss=q_heads=64,kv_heads=8,Lq=64,Lv=64,dtype=bfloat16

tune() { # PROBLEM WORKLOAD
  local begun=$SECONDS
  $tuner tune "$1" --device H200 --workload "$here/workloads/$2.toml" --json \
    >"$out/report.json" 2>>"$out/suite.err" || { echo "FAILED $1"; return; }
  $python -c 'import json,sys; print(json.dumps(json.load(open(sys.argv[1]))))' \
    "$out/report.json" >>"$out/reports.jsonl"
  echo "$1 $2: $((SECONDS - begun)) s"
}

tune "extend_attention:$gqa" extend-4x512
tune "extend_attention:$mla" extend-4x256
tune "extend_attention:$gqa64" extend-8x512
tune "decode_attention:$mla,kv_splits=8" decode-grid
tune "decode_attention:$gqa,kv_splits=8" decode-32-and-1
tune "decode_attention:$mla,kv_splits=256" decode-grid
tune "decode_attention:$gqa,kv_splits=16" decode-32-and-1
tune "decode_attention:$gqa,kv_splits=32" decode-32-and-1
tune "decode_attention:$gqa,kv_splits=64" decode-32-and-1
tune "extend_attention:$qwen3" extend-serving
tune "decode_attention:$qwen3,kv_splits=8" decode-serving
tune "extend_attention:$oss,sinks" extend-serving
tune "extend_attention:$oss,window=127,sinks" extend-window
tune "decode_attention:$oss,kv_splits=8,sinks" decode-serving
tune "extend_attention:q_heads=16,kv_heads=16,Lq=192,Lv=128,dtype=bfloat16" prefill-192
tune "prefill_attention:$gqa" prefill-192
$tuner export --device H200 --out "$out/root" --json >"$out/export.json" 2>>"$out/suite.err"
$python "$here/attention_plugin.py" "$out/root" "$out/plugin.json" "$out/reports.jsonl" \
  >"$out/plugin.log" 2>&1
tail -5 "$out/plugin.log"
