# T30: kill -9 at random moments, then --resume: byte-identical to an uninterrupted run.
. "$(dirname "$0")/lib/t.sh"
head -n 5 "$demo/heldout.jsonl" >text.jsonl
expect 0 "$kld" suite build --jsonl text.jsonl --tokenizer "$demo/ref" --window 256 --stride 256 -o suite.jsonl
start=$(date +%s%N)
expect 0 "$kld" capture --quiet --model "$demo/ref" --suite suite.jsonl -o whole.zst
took=$((($(date +%s%N) - start) / 1000000))
killed=0
for i in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf part.zst part.zst.partial part.zst.partial.d
    mode=
    for round in 1 2 3 4 5 6; do
        "$kld" capture --quiet --model "$demo/ref" --suite suite.jsonl -o part.zst $mode >out 2>err &
        pid=$!
        # Up to the whole run's length, so that loading, layers, head and writing are all hit.
        ms=$((took / 20 + (RANDOM * 32768 + RANDOM) % (took > 20 ? took : 20)))
        sleep "$(awk -v m=$ms 'BEGIN{print m/1000}')"
        kill -9 $pid 2>/dev/null && killed=$((killed + 1))
        wait $pid 2>/dev/null
        [ -e part.zst ] && break
        mode=--resume
    done
    [ -e part.zst ] || expect 0 "$kld" capture --quiet --model "$demo/ref" --suite suite.jsonl -o part.zst --resume
    cmp whole.zst part.zst || fail "round $i: the resumed capture differs"
    [ ! -e part.zst.partial ] && [ ! -e part.zst.partial.d ] || fail "round $i: leftovers"
done
[ $killed -ge 5 ] || fail "only $killed runs were killed"
# Ctrl-C: exit 130, the partial is kept, a plain second run is refused with advice.
rm -rf part.zst*
cp -a "$demo/ref" model # with its time of modification
expect 0 "$kld" capture --quiet --model model --name ref --suite suite.jsonl -o whole.zst --force
capture="$kld capture --model model --name ref --suite suite.jsonl -o part.zst"
$capture >out 2>err &
pid=$!
sleep "$(awk -v m=$took 'BEGIN{print m/2000}')"
kill -INT $pid 2>/dev/null
wait $pid
rc=$?
[ $rc = 130 ] || [ $rc = 0 ] || fail "exit $rc after SIGINT"
if [ $rc = 130 ]; then
    expect 3 $capture
    says '--resume'
    expect 3 "$kld" capture --model "$demo/qad" --suite suite.jsonl -o part.zst --resume
    # Other weights of the same shape do not go on with the states of these; nothing is lost.
    if [ -n "$(ls part.zst.partial.d 2>/dev/null)" ]; then
        touch -d 2001-01-01 model/model.safetensors
        expect 3 $capture --resume
        says 'modified since'
        [ -e part.zst.partial ] && [ -n "$(ls part.zst.partial.d)" ] || fail "a refused resume lost the partial"
    fi
    rm -rf model && cp -a "$demo/ref" model && touch -r "$demo/ref/model.safetensors" model/model.safetensors
    expect 0 $capture --resume
    cmp whole.zst part.zst || fail "the capture resumed after SIGINT differs"
fi
