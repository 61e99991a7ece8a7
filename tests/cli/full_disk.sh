# A disk that fills up: one line, exit 5, the finished part is kept, and resume completes it.
. "$(dirname "$0")/lib/t.sh"
head -n 4 "$demo/heldout.jsonl" >text.jsonl
expect 0 "$kld" suite build --jsonl text.jsonl --tokenizer "$demo/ref" --window 256 --stride 256 -o suite.jsonl
expect 0 "$kld" capture --quiet --model "$demo/ref" --suite suite.jsonl -o whole.zst
limit=$(($(stat -c %s whole.zst) / 2048)) # half of the file, in KiB
trap '' XFSZ
expect 5 bash -c "ulimit -f $limit; trap '' XFSZ; exec '$kld' capture --quiet --model '$demo/ref' --suite suite.jsonl -o part.zst"
says 'part.zst'
[ ! -e part.zst ] || fail "a half-written capture under its final name"
expect 0 "$kld" capture --quiet --model "$demo/ref" --suite suite.jsonl -o part.zst --resume
cmp whole.zst part.zst || fail "the capture completed after a full disk differs"
expect 5 bash -c "ulimit -f 4; trap '' XFSZ; exec '$kld' logits --model '$models/qwen3' --ids 1,2,3,4,5,6,7,8,9,10,11,12,13,14 -o l.npy"
[ ! -e l.npy ] && [ ! -e l.npy.partial ] || fail "half-written logits"
expect 5 bash -c "ulimit -f 16; trap '' XFSZ; exec '$kld' quantize --model '$demo/ref' --format nvfp4 -o q"
[ ! -e q ] || fail "a half-written checkpoint"
