# kld logits: shapes, id lists, refusals.
. "$(dirname "$0")/lib/t.sh"
m=$models/qwen3
expect 0 "$kld" logits --model "$m" --ids "$m/ids.npy" -o a.npy
cmp -n 128 a.npy "$m/logits.npy" >/dev/null || true
[ "$(stat -c %s a.npy)" = "$(stat -c %s "$m/logits.npy")" ] || fail "other size than transformers' array"
ids=$(od -An -v -td8 -j 128 "$m/ids.npy" | tr -s ' \n' ',' | sed 's/^,//; s/,$//')
expect 0 "$kld" logits --model "$m" --ids "$ids" -o b.npy
cmp a.npy b.npy || fail "the same ids as text give other logits"
expect 0 "$kld" logits --model "$m" --ids "$ids" -o c.npy --threads 1
cmp a.npy c.npy || fail "logits depend on threads"
expect 2 "$kld" logits --model "$m" --ids 1,x,3 -o d.npy
expect 2 "$kld" logits --model "$m" --ids , -o d.npy
expect 3 "$kld" logits --model "$m" --ids 1,2,100000 -o d.npy
says 100000
head -c 100 "$m/ids.npy" >cut.npy
expect 3 "$kld" logits --model "$m" --ids cut.npy -o d.npy
expect 3 "$kld" logits --model "$m" --ids "$m/logits.npy" -o d.npy
says 'token ids must be'
printf "\\223NUMPY\\001\\000\\073\\000{'descr': '<i8', 'fortran_order': False, 'shape': (0,), } \\n" >none.npy
expect 3 "$kld" logits --model "$m" --ids none.npy -o d.npy
says 'none.npy: no token ids'
[ ! -e d.npy ] && [ ! -e d.npy.partial ] || fail "output in spite of an error"
# A model found by name in the Hugging Face cache.
hub=$tmp/hf/hub/models--org--tiny
mkdir -p "$hub/refs" "$hub/snapshots/abc"
printf abc >"$hub/refs/main"
cp "$m"/* "$hub/snapshots/abc/"
HF_HOME=$tmp/hf expect 0 env HF_HOME="$tmp/hf" "$kld" logits --model org/tiny --ids "$ids" -o e.npy
cmp a.npy e.npy || fail "the cached copy gives other logits"
