# Routes: the four cells of a reference and a candidate, resuming, and what cannot be replayed.
. "$(dirname "$0")/lib/t.sh"
cp -r "$models/glm4_moe" ref
byte_tokenizer ref
ids_text >text.jsonl
expect 0 "$kld" suite build --jsonl text.jsonl --tokenizer ref --window 256 -o s.jsonl
# A candidate: some weights are gone.
cp -r ref cand
for at in $(seq 30000 1000 140000); do
    printf '\0\0\0\0\0\0\0\0' | dd of=cand/model.safetensors bs=1 seek=$at conv=notrunc status=none
done
capture() { "$kld" capture --quiet --suite s.jsonl "$@"; }
expect 0 capture --model ref -o plain.zst
expect 0 capture --model ref -o b.zst --routes capture
expect 0 capture --model cand --ref b.zst -o q.zst --routes capture
expect 0 capture --model cand --ref b.zst -o bq.zst --routes replay=b.zst
expect 0 capture --model ref --ref b.zst -o qb.zst --routes replay=q.zst
expect 0 capture --model ref --ref b.zst -o bb.zst --routes replay=b.zst
expect 0 capture --model cand --ref b.zst -o ids.zst --routes replay-ids=b.zst
expect 0 "$kld" verify b.zst q.zst bq.zst qb.zst bb.zst ids.zst

expect 0 "$kld" inspect b.zst
shows 'keeps routes: 3 of 6 experts a token in 1 layers'
expect 0 "$kld" inspect ids.zst
shows 'with the experts (not the weights) of capture'
expect 0 "$kld" inspect bq.zst --json
grep -q '"mode": "replay"' out || fail "no route mode"

# Its own routes change nothing; another's do.
expect 0 capture --model ref --ref b.zst -o again.zst
expect 0 "$kld" compare b.zst again.zst --json
[ "$(field out mean)" = 0.0 ] || fail "keeping routes changed the result"
expect 0 "$kld" compare b.zst bb.zst --json
[ "$(field out mean)" = 0.0 ] || fail "its own routes, replayed: KL $(field out mean)"
[ "$(field out max)" = 0.0 ] || fail "its own routes, replayed: largest KL $(field out max)"
for c in q bq qb ids; do
    expect 0 "$kld" compare b.zst $c.zst --json
    field out mean >mean.$c
done
[ "$(sort -u mean.q mean.bq mean.qb mean.ids | wc -l)" = 4 ] || fail "cells agree: $(cat mean.*)"

# All on one command line: who ran with whose routes is known from the headers.
expect 0 "$kld" compare b.zst q.zst bq.zst qb.zst bb.zst ids.zst --json
[ "$(field out BxB)" = 0.0 ] || fail "BxB is $(field out BxB)"
for c in q:QxQ bq:BxQ qb:QxB; do
    [ "$(field out "${c#*:}")" = "$(cat mean.${c%:*})" ] || fail "${c#*:} is $(field out "${c#*:}")"
done
[ "$(field out interaction)" != null ] || fail "no interaction"
expect 0 "$kld" compare b.zst q.zst bq.zst qb.zst
shows 'Expert routes against the reference'
shows 'whose routes (rows) x whose weights (columns)'
expect 0 "$kld" compare b.zst qb.zst
shows 'routes are those of a capture that is not here'
expect 3 "$kld" compare bq.zst q.zst
says 'cannot be a reference'

# Killed in between, the resumed capture is the same, routes of finished layers included.
start=$(date +%s%N)
expect 0 capture --model cand --ref b.zst -o whole.zst --routes capture
took=$((($(date +%s%N) - start) / 1000000))
cmp q.zst whole.zst || fail "two captures with routes differ"
for i in 1 2 3 4 5 6; do
    rm -rf part.zst*
    mode=
    for round in 1 2 3 4; do
        "$kld" capture --quiet --suite s.jsonl --model cand --ref b.zst -o part.zst --routes capture $mode >out 2>err &
        pid=$!
        ms=$((took / 20 + (RANDOM * 32768 + RANDOM) % (took > 20 ? took : 20)))
        sleep "$(awk -v m=$ms 'BEGIN{print m/1000}')"
        kill -9 $pid 2>/dev/null
        wait $pid 2>/dev/null
        [ -e part.zst ] && break
        mode=--resume
    done
    [ -e part.zst ] || expect 0 capture --model cand --ref b.zst -o part.zst --routes capture --resume
    cmp whole.zst part.zst || fail "round $i: the resumed capture differs"
done

# What cannot be replayed.
expect 3 capture --model ref --ref b.zst -o x.zst --routes replay=plain.zst
says 'keeps no routes; capture it with --routes capture'
expect 3 capture --model ref --ref b.zst -o x.zst --routes replay=bq.zst
says 'it was replayed'
expect 0 "$kld" suite build --jsonl text.jsonl --tokenizer ref --window 64 -o other.jsonl
expect 3 "$kld" capture --quiet --suite other.jsonl --model ref -o x.zst --routes replay=b.zst
says 'is of another suite'
cp -r "$models/glm_moe_dsa" wide && cp ref/tokenizer.json wide/
expect 3 capture --model wide -o x.zst --routes replay=b.zst
says 'not the same architecture'
cp -r "$models/gemma3" dense && cp ref/tokenizer.json dense/
expect 4 capture --model dense -o x.zst --routes capture
says 'without experts'
expect 2 "$kld" capture --suite s.jsonl --model ref -o x.zst --routes replay=
[ ! -e x.zst ] && [ ! -e x.zst.partial ] || fail "a refused capture left a file"
# A damaged byte in the source is found before anything is computed.
cp b.zst bad.zst
printf '\377' | dd of=bad.zst bs=1 seek=3000 conv=notrunc status=none
expect 3 capture --model cand --ref b.zst -o x.zst --routes replay=bad.zst
says 'bad.zst'
