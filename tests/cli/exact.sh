# Exact captures and floor captures: what is kept, what is refused, the same bytes however made.
. "$(dirname "$0")/lib/t.sh"
head -n 3 "$demo/heldout.jsonl" >text.jsonl
expect 0 "$kld" suite build --jsonl text.jsonl --tokenizer "$demo/ref" --window 128 --stride 128 -o suite.jsonl
capture="$kld capture --suite suite.jsonl"

# An exact capture has everything that an ordinary one has, and hidden states beside it.
expect 0 $capture --model "$demo/ref" -o plain.zst
expect 0 $capture --model "$demo/ref" -o ref.zst --exact --keep-head
says 'the head is in .*head-[0-9a-f]*.safetensors'
[ "$(ls head-*.safetensors | wc -l)" = 1 ] || fail "no head beside the capture"
expect 0 $capture --model "$demo/qad" --ref ref.zst -o qad.zst --exact --keep-head
[ "$(ls head-*.safetensors | wc -l)" = 1 ] || fail "the same head was kept twice"
expect 0 "$kld" verify ref.zst qad.zst
expect 0 zstd -q -t ref.zst
expect 0 "$kld" inspect ref.zst
shows 'hidden states.*128.*BF16.*after the final norm'
expect 0 "$kld" inspect --json ref.zst
grep -q '"point": "after the final norm"' out || fail "the capture point is not in the file"
[ "$(stat -c %s ref.zst)" -gt "$(stat -c %s plain.zst)" ] || fail "no hidden states"

# The same bytes for any number of threads, and after an interruption.
expect 0 $capture --model "$demo/ref" -o again.zst --exact --threads 1 --memory 64K
cmp ref.zst again.zst || fail "exact captures differ between thread counts"
"$kld" capture --suite suite.jsonl --model "$demo/ref" -o part.zst --exact >out 2>err &
sleep 0.2
kill -9 $! 2>/dev/null
wait $! 2>/dev/null
[ -e part.zst ] || expect 0 $capture --model "$demo/ref" -o part.zst --exact --resume
cmp ref.zst part.zst || fail "a resumed exact capture differs"
expect 0 $capture --model "$demo/ref" -o ref32.zst --exact --precision fp32
expect 0 "$kld" inspect ref32.zst
shows 'FP32'

# Floors: in which way they differ is in the file; they need the capture that they repeat.
expect 0 $capture --model "$demo/ref" --ref ref.zst -o floor.zst --floor
expect 0 $capture --model "$demo/ref" --ref ref32.zst -o floor32.zst --floor=precision
expect 0 $capture --model "$demo/ref" --ref ref.zst -o chunk.zst --floor=chunk
expect 0 "$kld" inspect --json floor.zst
grep -q '"floor": "precision"' out && grep -q '"precision": "fp32"' out || fail "not the other precision"
expect 0 "$kld" inspect --json floor32.zst
grep -q '"precision": "bf16"' out || fail "not the other precision"
expect 0 "$kld" inspect chunk.zst
shows 'noise floor.*chunk'
expect 0 "$kld" compare ref.zst floor.zst chunk.zst --json
[ "$(field out kl_mean)" != null ] && [ "$(field out kl_mean)" != 0.0 ] || fail "no noise floor"
grep -q '"arithmetic_mismatch": true' out && fail "a floor is no mismatch"
expect 2 $capture --model "$demo/ref" -o x.zst --floor
expect 2 $capture --model "$demo/ref" --ref ref.zst -o x.zst --floor --precision fp32
expect 2 $capture --model "$demo/ref" --ref ref.zst -o x.zst --floor=engine
expect 2 $capture --model "$demo/ref" -o x.zst --keep-head
expect 3 $capture --model "$demo/qad" --ref ref.zst -o x.zst --floor
says 'checkpoint differs.*repeats the capture of the reference itself'
# A floor of one reference is none of another.
expect 0 $capture --model "$demo/qad" -o qref.zst
expect 0 $capture --model "$demo/qad" --ref qref.zst -o qfloor.zst --floor
expect 3 "$kld" compare ref.zst qfloor.zst
[ ! -e x.zst ] && [ ! -e x.zst.partial ] || fail "a refused capture left a file"

# Exact comparisons: the kept head serves both (the demo's candidate has the reference's own).
expect 0 "$kld" compare ref.zst qad.zst --device cpu --json
grep -q '"check_max": 0.0' out || fail "replayed logits are not the live ones"
grep -q '"exact": true' out || fail "not exact"
[ "$(field out stderr_sampling)" = 0.0 ] && [ "$(field out undecided)" = 0 ] || fail "something is estimated"
kl=$(grep -A3 '"kl": {' out | field /dev/stdin mean)
expect 0 "$kld" compare ref.zst qad.zst --device cpu
shows '; exact$'
expect 0 "$kld" compare ref.zst qad.zst --device cpu --head shared --json
[ "$(grep -A3 '"kl": {' out | field /dev/stdin mean)" = "$kl" ] || fail "one head, two results"
expect 0 "$kld" compare ref.zst qad.zst --exact never --json
grep -q '"exact": null' out || fail "--exact never is exact"
# A floor is exact, too, though its hidden states are of the other precision; the reference itself is 0.
expect 0 $capture --model "$demo/ref" --ref ref.zst -o floor.zst --exact --floor --force
expect 0 "$kld" compare ref.zst floor.zst ref.zst --device cpu --json
[ "$(grep -c '"head": "own"' out)" = 3 ] || fail "not both are exact"
grep -A3 '"kl": {' out | grep -q '"mean": 0.0,' || fail "the reference is not itself"
# A capture that keeps none is compared by its list, and a shared head needs both.
expect 0 $capture --model "$demo/qad" --ref ref.zst -o lists.zst
expect 0 "$kld" compare ref.zst lists.zst --json
grep -q hidden_missing out || fail "nobody is told"
expect 2 "$kld" compare ref.zst lists.zst --head shared
expect 2 "$kld" compare ref.zst qad.zst --head shared --exact never
expect 2 "$kld" compare ref.zst qad.zst --head mine
expect 2 "$kld" compare ref.zst qad.zst --device tpu
# Where the checkpoint is gone and no head was kept, it is said what is missing.
mkdir moved gone
cp -r "$demo/ref" gone/ref
expect 0 "$kld" capture --suite suite.jsonl --model gone/ref -o moved/ref.zst --exact
rm -r gone
expect 3 "$kld" compare moved/ref.zst moved/ref.zst
says "head [0-9a-f]* of 'ref' was not found.*--checkpoint.*--exact never.*gone/ref (is not there)"
expect 0 "$kld" compare moved/ref.zst moved/ref.zst --device cpu --checkpoint "$demo/qad/" --checkpoint "$demo/ref"
expect 3 "$kld" compare moved/ref.zst moved/ref.zst --checkpoint "$models/llama"
says 'holds the head'
cp head-*.safetensors moved
expect 0 "$kld" compare moved/ref.zst moved/ref.zst --device cpu
expect 0 "$kld" compare moved/ref.zst moved/ref.zst --exact never
