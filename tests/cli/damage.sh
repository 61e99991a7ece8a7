# T31: any damage to a capture is refused by verify and by compare (every bit and every
# truncation are swept in the unit test; here, the program's words and exit codes).
. "$(dirname "$0")/lib/t.sh"
ids_suite 6 40 >suite.jsonl
expect 0 "$kld" capture --model "$models/qwen3" --suite suite.jsonl -o ref.zst
expect 0 "$kld" capture --model "$models/qwen3-nvfp4-modelopt" --suite suite.jsonl --ref ref.zst -o c.zst
expect 0 "$kld" compare ref.zst c.zst
for f in ref c; do
    size=$(stat -c %s $f.zst)
    for at in 0 5 40 $((size / 3)) $((size / 2)) $((size - 40)) $((size - 1)); do
        cp $f.zst bad.zst
        byte=$(od -An -tu1 -j "$at" -N 1 bad.zst)
        printf "\\$(printf %o $((byte ^ 16)))" | dd of=bad.zst bs=1 seek="$at" conv=notrunc status=none
        cmp -s $f.zst bad.zst && fail "the byte at $at was not changed"
        expect 3 "$kld" verify bad.zst
        says bad.zst
        if [ $f = ref ]; then expect 3 "$kld" compare bad.zst c.zst; else expect 3 "$kld" compare ref.zst bad.zst; fi
        head -c "$at" $f.zst >cut.zst
        expect 3 "$kld" verify cut.zst
        expect 3 "$kld" compare ref.zst cut.zst
    done
done
cat c.zst c.zst >twice.zst
expect 3 "$kld" verify twice.zst
echo hello >text.zst
expect 3 "$kld" verify text.zst
says 'not a'
