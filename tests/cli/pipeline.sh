# Suite -> captures -> comparison on the bundled model; identity checks; gates; determinism.
. "$(dirname "$0")/lib/t.sh"
head -n 4 "$demo/heldout.jsonl" >text.jsonl
build="$kld suite build --jsonl text.jsonl --tokenizer $demo/ref --window 256 --stride 256"
expect 0 $build -o suite.jsonl
expect 0 "$kld" capture --model "$demo/ref" --suite suite.jsonl -o ref.zst --stats
expect 0 "$kld" capture --model "$demo/qad" --suite suite.jsonl --ref ref.zst -o qad.zst
expect 0 "$kld" verify ref.zst qad.zst
expect 0 zstd -q -t ref.zst qad.zst

# Same model, same bytes: again, and with another number of threads.
expect 0 "$kld" capture --model "$demo/ref" --suite suite.jsonl -o again.zst --threads 1 --memory 64K
cmp ref.zst again.zst || fail "captures differ between 1 thread with a spill and all threads"
expect 3 "$kld" capture --model "$demo/ref" --suite suite.jsonl -o again.zst
says 'use --force'
expect 0 "$kld" capture --model "$demo/ref" --suite suite.jsonl -o again.zst --force --threads 3
cmp ref.zst again.zst || fail "captures differ between thread counts"

# T1: self-comparison is exactly zero.
expect 0 "$kld" compare ref.zst ref.zst --json
[ "$(field out mean)" = 0.0 ] || fail "self KL is not 0: $(field out mean)"
[ "$(field out top1_agreement)" = 1.0 ] || fail "self top-1 is not 1"
[ "$(field out jaccard)" = 1.0 ] || fail "self Jaccard is not 1"

# The report, in both forms, and gates.
expect 0 "$kld" compare ref.zst qad.zst --json cmp.json
shows qad
expect 0 "$kld" compare ref.zst qad.zst --json
grep -q '"schema": 1' out || fail "no schema"
cmp out cmp.json || fail "--json and --json FILE differ"
expect 0 "$kld" compare ref.zst qad.zst --fail-above mean_kl=10
expect 1 "$kld" compare ref.zst qad.zst --fail-above mean_kl=1e-9
says mean_kl
expect 2 "$kld" compare ref.zst qad.zst --fail-above mean_klx=1
expect 2 "$kld" compare ref.zst qad.zst --fail-above mean_kl

# T32 and relatives: what does not belong together is refused.
expect 0 "$kld" capture --model "$demo/ref" --suite suite.jsonl -o ref16.zst --top-k 16
expect 3 "$kld" compare ref16.zst qad.zst
expect 3 "$kld" compare qad.zst ref.zst
says 'reference'
expect 0 $build --score-last 32 -o other.jsonl
expect 3 "$kld" capture --model "$demo/qad" --suite other.jsonl --ref ref.zst -o x.zst
says 'suite differs'
[ ! -e x.zst ] && [ ! -e x.zst.partial ] || fail "a refused capture left a file"
# Another engine arithmetic is refused, or marked when allowed.
expect 0 "$kld" capture --model "$demo/qad" --suite suite.jsonl --ref ref.zst -o qad32.zst --precision fp32
expect 3 "$kld" compare ref.zst qad32.zst
says 'arithmetic'
expect 0 "$kld" compare ref.zst qad32.zst --allow-arithmetic-mismatch --json
grep -q '"arithmetic_mismatch": true' out || fail "the mismatch is not marked"
# T6: a candidate captured on its own gets a bound, no estimate.
expect 0 "$kld" capture --model "$demo/qad" --suite suite.jsonl -o alone.zst
expect 0 "$kld" compare ref.zst alone.zst --json
[ "$(field out mean)" = null ] || fail "an estimate without the reference's ids: $(field out mean)"
# Ids that the tokenizer lacks.
echo '{"ids":[1,2,99999999]}' >bad.jsonl
expect 3 "$kld" capture --model "$demo/ref" --suite bad.jsonl -o x.zst
# Other tokenizer (T11): one merge less.
mkdir other && cp "$demo"/ref/* other/ && sed 's/"<|endoftext|>"/"<|end|>"/g' "$demo/ref/tokenizer.json" >other/tokenizer.json
expect 3 "$kld" capture --model other --suite suite.jsonl -o x.zst
says 'tokenizer differs'
expect 0 "$kld" inspect ref.zst
expect 0 "$kld" inspect --json ref.zst
expect 0 "$kld" inspect "$demo/qad"
shows NVFP4
