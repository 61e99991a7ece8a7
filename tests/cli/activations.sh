# --activations: what it changes, what a capture and a comparison say of it, what is refused.
. "$(dirname "$0")/lib/t.sh"
m=$models/qwen3-nvfp4-ct
ids_suite 6 40 >suite.jsonl
cap() { expect 0 "$kld" capture --suite suite.jsonl "$@"; }
cap --model "$models/qwen3-base" -o ref.zst
cap --model "$m" --ref ref.zst -o w.zst
cap --model "$m" --ref ref.zst -o w2.zst --activations weights-only
cmp w.zst w2.zst || fail "weights-only is not the default"
cap --model "$m" --ref ref.zst -o a.zst --activations as-declared
says 'inputs of products are quantized: attention NVFP4, static scale (8); mlp NVFP4, static scale (6); static scales: own'
cap --model "$m" --ref ref.zst -o a1.zst --activations as-declared --threads 1
cmp a.zst a1.zst || fail "captures with quantized inputs depend on threads"
cap --model "$m" --ref ref.zst -o max.zst --activations as-declared --fused-input-scale max

# The files say so.
expect 0 "$kld" inspect w.zst
shows 'activations weights-only'
expect 0 "$kld" inspect a.zst
shows 'activations as-declared; fused_input_scale own;'
expect 0 "$kld" inspect max.zst
shows 'fused_input_scale max'
expect 0 "$kld" inspect "$m"
shows 'declared quantization of inputs: attention NVFP4, static scale (8); mlp NVFP4, static scale (6)'
expect 0 "$kld" inspect "$models/qwen3-base"
grep -q 'declared quantization' out && fail "a dense checkpoint declares nothing"

# A comparison shows both and refuses none; quantized inputs make it worse.
expect 0 "$kld" compare ref.zst w.zst a.zst --json c.json
shows 'qwen3-base - BF16; activations weights-only'
shows '\[1\] qwen3-nvfp4-ct - NVFP4; activations weights-only'
shows '\[2\] qwen3-nvfp4-ct - NVFP4; activations as-declared (own scales)'
shows 'captured with activations as-declared'
expect 0 "$kld" compare ref.zst a.zst --json
a=$(field out mean)
expect 0 "$kld" compare ref.zst w.zst --json
w=$(field out mean)
awk -v a="$a" -v w="$w" 'BEGIN { exit !(a > w) }' || fail "mean KL $a with quantized inputs, $w without"
expect 0 "$kld" capture --model "$m" --suite suite.jsonl -o aref.zst --activations as-declared
expect 0 "$kld" capture --model "$m" --suite suite.jsonl --ref aref.zst -o b.zst
expect 0 "$kld" compare aref.zst b.zst
shows 'the reference was captured with activations as-declared'

# Logits have it, too; a resume does not change over to the other.
expect 0 "$kld" logits --model "$m" --ids 7,8,9 -o w.npy
expect 0 "$kld" logits --model "$m" --ids 7,8,9 -o a.npy --activations as-declared
cmp -s w.npy a.npy && fail "logits do not change"

expect 2 "$kld" capture --model "$m" --suite suite.jsonl -o x.zst --activations some
expect 2 "$kld" capture --model "$m" --suite suite.jsonl -o x.zst --fused-input-scale max
says 'needs --activations as-declared'
expect 2 "$kld" logits --model "$m" --ids 7 -o x.npy --activations as-declared --fused-input-scale min
b=$models/qwen3-fp8-block
expect 0 "$kld" logits --model "$b" --ids 7 -o x.npy
expect 4 "$kld" logits --model "$b" --ids 7 -o y.npy --activations as-declared
says 'not emulated: dynamic FP8 in blocks of 32 (14 such weights)'
expect 4 "$kld" capture --model "$b" --suite suite.jsonl -o x.zst --activations as-declared
[ ! -e x.zst ] && [ ! -e x.zst.partial ] && [ ! -e y.npy ] || fail "output in spite of an error"
expect 0 "$kld" inspect "$b"
shows 'attention not emulated: dynamic FP8 in blocks of 32 (8)'
# Nothing declared: the same, and said.
expect 0 "$kld" logits --model "$models/qwen3-mxfp4-ct" --ids 7 -o n.npy --activations as-declared
says 'declares no quantized inputs'
