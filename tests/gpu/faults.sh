# What can go wrong on a card: no memory, a file that shrinks while it is read, an interruption.
. "$(dirname "$0")/../cli/lib/t.sh"
[ -e /dev/nvidiactl ] || { echo "no CUDA device"; exit 77; }
synth=$(dirname "$kld")/synth
"$synth" 1b bf16 m >/dev/null
"$synth" suite 151936 24 2048 s.jsonl
run=("$kld" capture --quiet --model m --suite s.jsonl --device cuda)
expect 0 "${run[@]}" -o whole.zst
# Less memory: the same bytes; too little: refused before anything is written, with the arithmetic.
expect 0 "${run[@]}" -o small.zst --gpu-memory 1G
cmp whole.zst small.zst || fail "another budget, other bytes"
expect 5 "${run[@]}" -o tiny.zst --gpu-memory 100M
says 'smallest possible here is'
[ ! -e tiny.zst ] && [ ! -e tiny.zst.partial ] || fail "a refused run left files"
# Two lanes on one card: the same bytes.
expect 0 "$kld" capture --quiet --model m --suite s.jsonl --device cuda:0,0 -o two.zst --gpu-memory 8G
cmp whole.zst two.zst || fail "two lanes, other bytes"
# Interrupted, and killed: resumed to the same bytes.
for signal in INT KILL; do
    for after in 0.35 0.6 0.9; do
        rm -rf cut.zst*
        "${run[@]}" -o cut.zst 2>err &
        pid=$!
        sleep $after
        kill -$signal $pid 2>/dev/null
        wait $pid
        rc=$?
        if [ -e cut.zst.partial ]; then
            [ $signal = KILL ] || [ $rc = 130 ] || fail "exit $rc when interrupted"
            expect 0 "${run[@]}" -o cut.zst --resume
        elif [ ! -e cut.zst ]; then
            expect 0 "${run[@]}" -o cut.zst
        fi
        cmp whole.zst cut.zst || fail "resumed after SIG$signal at $after s: other bytes"
    done
done
# A shard that is shorter than its header says, found while it streams.
cp -r m short
f=$(ls short/*.safetensors | tail -n 1)
"${run[@]:0:2}" --quiet --model short --suite s.jsonl --device cuda -o short.zst 2>err &
pid=$!
truncate -s 200000000 "$f"
wait $pid
rc=$?
[ $rc = 3 ] || [ $rc = 5 ] || fail "exit $rc when a shard shrinks"
[ "$(grep -c 'error:' err)" = 1 ] || fail "expected one error line"
grep -q "$(basename "$f")" err || fail "the message does not name the shard"
[ ! -e short.zst ] || fail "a capture of a damaged checkpoint"
exit 0
