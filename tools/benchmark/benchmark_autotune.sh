#!/usr/bin/env bash
# Profiles the tuning space: benchmark_autotune.sh [SEQ_LENS]
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p profiles
seq_lens="${1:-1024,2048,4096,8192,16384}"
KERNELS=tune tools/benchmark/ncu_bench.py --seq_lens="${seq_lens}" --d_heads=128 --runs=1 --csv > profiles/autotune.csv
