# T7, T8: weights with NaN in them.  Rows that are not finite are counted and left out, a
# comparison without any others is invalid, and neither passes a gate.
. "$(dirname "$0")/lib/t.sh"
# An embedding row of NaN spoils the positions from its token on: id 9 is in windows 1 and 3.
cat >suite.jsonl <<'END'
{"ids":[10,11,12,13,14,15],"cluster":"a"}
{"ids":[10,11,9,13,14,15],"cluster":"b"}
{"ids":[20,21,22,23,24,25],"cluster":"c"}
{"ids":[20,21,22,23,9,25],"cluster":"d"}
END
# poison DIR TENSOR ELEMENT COUNT: BF16 NaN over elements of a copy of the model.
poison() {
    cp -r "$models/qwen3-base" "$1"
    local f=$1/model.safetensors head begin
    head=$(od -An -tu8 -N 8 "$f" | tr -d ' ')
    begin=$(head -c $((head + 8)) "$f" | grep -ao "\"$2\":{[^}]*}" | sed 's/.*"data_offsets":\[\([0-9]*\),.*/\1/')
    [ -n "$begin" ] || fail "no tensor $2"
    for i in $(seq "$4"); do printf '\300\177'; done |
        dd of="$f" bs=1 seek=$((8 + head + begin + 2 * $3)) conv=notrunc status=none
}
poison some model.embed_tokens.weight $((9 * 64)) 64
poison all model.norm.weight 0 64
expect 0 "$kld" capture -q --model "$models/qwen3-base" --suite suite.jsonl -o ref.zst
expect 0 "$kld" capture -q --model some --suite suite.jsonl --ref ref.zst -o some.zst
says 'not finite'
expect 0 "$kld" capture -q --model all --suite suite.jsonl --ref ref.zst -o all.zst
expect 0 "$kld" verify some.zst all.zst

# Window 1 loses t = 2, 3, 4 and window 3 loses t = 4; windows 0 and 2 lose nothing.
expect 0 "$kld" compare ref.zst some.zst --json
lost=$(field out excluded)
[ "$lost" = 4 ] || fail "excluded: $lost"
grep -A 20 '"first"' out | grep -q '"window": 1' || fail "the first place is not in window 1"
grep -A 20 '"first"' out | grep -q '"position": 2' || fail "the first place is not position 2"
[ "$(field out status)" = '"partial"' ] || fail "status: $(field out status)"
[ "$(field out mean)" != null ] || fail "no mean of the other positions"
expect 0 "$kld" compare ref.zst some.zst
shows "$lost of 20"
expect 1 "$kld" compare ref.zst some.zst --fail-above mean_kl=1000
says "$lost positions are not finite"

expect 3 "$kld" compare ref.zst all.zst --json
[ "$(field out status)" = '"invalid"' ] || fail "status: $(field out status)"
[ "$(field out mean)" = null ] || fail "a mean of nothing: $(field out mean)"
grep -Eqi ': *-?(nan|inf)' out && fail "NaN in JSON"
# A reference of NaN cannot be compared with either.
expect 0 "$kld" capture -q --model all --suite suite.jsonl -o nanref.zst
expect 0 "$kld" capture -q --model "$models/qwen3-base" --suite suite.jsonl --ref nanref.zst -o c.zst
expect 3 "$kld" compare nanref.zst c.zst
