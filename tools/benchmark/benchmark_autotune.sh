#!/usr/bin/env bash
# Profiles the tuning space: benchmark_autotune.sh [SEQ_LENS]
# profiles/autotune.csv is replaced when all of it is measured; a failed run leaves it as it was.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p profiles
seq_lens="${1:-1024,2048,4096,8192,16384}"
trap 'rm -f profiles/autotune.csv.new' EXIT
KERNELS=tune tools/benchmark/ncu_bench.py --seq_lens="${seq_lens}" --d_heads=128 --runs=1 --csv > profiles/autotune.csv.new
mv profiles/autotune.csv.new profiles/autotune.csv
