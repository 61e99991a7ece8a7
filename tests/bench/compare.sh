#!/usr/bin/env bash
# Time and memory of reading and comparing two captures: compare.sh KLD DIR, DIR as from captures.
set -eu
kld=$1 dir=$2
say() {
    printf '%-8s ' "$1"
    shift
    command time -f '%U s user, %S s system, %e s, %M KiB' "$@" 2>&1 >/dev/null | tail -1
}
export OMP_WAIT_POLICY=passive
say verify "$kld" verify "$dir/ref.zst"
say compare "$kld" compare "$dir/ref.zst" "$dir/cand.zst" --json
