#!/usr/bin/env bash
# Everything that needs a card, in one go, so that all figures come from one card in one state:
#   tests/bench/gpu.sh [check] [bench] [peer] [capture]      default: all four
# check    tests/gpu: every operation against its CPU twin, whole models against the oracles, faults
# bench    tests/bench/bench: one JSON line an operation
# peer     tests/bench/torch_peer.py: the same in PyTorch (PEER_ARGS=--no-model leaves out the model)
# capture  checkpoints of an 8B model's shape with random weights, about 23 GB in OUT, removed afterwards
# BIN: the programs (default build/release-cuda1/bin, made by `make gpu-tests`). OUT: results
# (default build/bench). The table of ratios at the end comes from what ran.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
BIN=$(realpath "${BIN:-build/release-cuda1/bin}")
OUT=${OUT:-build/bench}
parts=${*:-check bench peer capture}
rc=0
mkdir -p "$OUT"
has() { case " $parts " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

if has check; then
    KLD_BIN=$BIN/kld tests/run "$BIN"/test_gpu_* tests/gpu/*.sh | tee "$OUT/check.txt" || rc=1
fi
has bench && { "$BIN/bench" cuda | tee "$OUT/bench.jsonl" || rc=1; }
# shellcheck disable=SC2086 # several arguments
has peer && { python3 tests/bench/torch_peer.py ${PEER_ARGS:-} | tee "$OUT/peer.jsonl" || rc=1; }

# one NAME MODEL [OPTION...]: a capture; its figures as a JSON line, its bytes against the first of
# the same MODEL.
one() {
    local name=$1 model=$2 line same=true
    shift 2
    SOURCE_DATE_EPOCH=0 "$BIN/kld" capture --quiet --json --force --device cuda --model "$OUT/$model" \
        --suite "$OUT/s.jsonl" -o "$OUT/$name.zst" "$@" >"$OUT/run.json" || { rc=1; return; }
    line=$(tr -d '\n' <"$OUT/run.json")
    [ -e "$OUT/$model.zst" ] || cp "$OUT/$name.zst" "$OUT/$model.zst"
    cmp -s "$OUT/$name.zst" "$OUT/$model.zst" || { same=false rc=1; }
    echo "{\"name\": \"$name\", \"same_bytes\": $same, \"run\": $line}" | tee -a "$OUT/capture.jsonl"
    rm -f "$OUT/$name.zst"
}
cold() { find "$OUT/$1" -type f -exec dd if={} iflag=nocache count=0 status=none \; ; }

if has capture; then
    rm -f "$OUT"/capture.jsonl "$OUT"/8b-*.zst
    "$BIN/synth" suite 151936 "${WINDOWS:-64}" 2048 "$OUT/s.jsonl"
    "$BIN/synth" 8b bf16 "$OUT/8b-bf16" && sync
    one bf16 8b-bf16
    one bf16_again 8b-bf16
    one bf16_4G 8b-bf16 --gpu-memory 4G
    one bf16_two_lanes 8b-bf16 --device cuda:0,0
    cold 8b-bf16
    one bf16_disk 8b-bf16
    rm -rf "$OUT/8b-bf16"
    "$BIN/synth" 8b nvfp4 "$OUT/8b-nvfp4" && sync
    one nvfp4 8b-nvfp4
    one nvfp4_2G 8b-nvfp4 --gpu-memory 2G
    rm -rf "$OUT"/8b-*
fi
tests/bench/ratios "$OUT" || rc=1
exit $rc
