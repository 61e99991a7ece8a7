# The nightly job on the demo: captures used again, a checkpoint that got worse, one that is broken,
# what must not be overwritten.
. "$(dirname "$0")/lib/t.sh"
head -n 3 "$demo/heldout.jsonl" >text.jsonl
expect 0 "$kld" suite build --jsonl text.jsonl --tokenizer "$demo/ref" --window 128 --stride 128 -o suite.jsonl
expect 0 "$kld" quantize --model "$demo/ref" --format nvfp4 -o nvfp4
config() { # OUTPUT MORE_CANDIDATES
    cat <<JSON
{"output": "$1", "suite": "suite.jsonl", "reference": {"model": "$demo/ref"},
 "candidates": [{"name": "qad", "model": "$demo/qad"}, {"name": "nvfp4", "model": "nvfp4"}${2:-}],
 "compare": {"resamples": 100, "tokenizer": "$demo/ref"},
 "gates": ["mean_kl=0.3"], "gates_by_candidate": {"nvfp4": ["mean_kl=0.7"]},
 "regression": {"mean_kl": 0.1}, "floor": true, "keep": 3, "prometheus": "textfile/kld.prom",
 "sign_key": "night.key"}
JSON
}
mkdir textfile
expect 0 "$kld" keygen -o night
config job >n.json
expect 0 "$kld" nightly --check n.json
[ ! -e job ] || fail "--check wrote something"
expect 0 "$kld" nightly --dry-run n.json
shows 'captured reference: there is none yet'
[ ! -e job ] || fail "--dry-run wrote something"

# Everything is captured, then nothing.
expect 0 "$kld" nightly n.json --label build-1
says 'reference: captured: there is none yet'
shows 'passed  qad: mean KL'
shows 'no good run before'
for f in report.html summary.md receipt.json compare.json junit.xml metrics.prom nightly.json; do
    [ -s "job/latest/$f" ] || fail "no $f"
done
cmp job/latest/metrics.prom textfile/kld.prom || fail "the second copy differs"
expect 0 "$kld" verify job/captures/*.zst job/latest/receipt.json
shows 'signed'
sum=$(cat job/captures/*.zst | sha256sum)
expect 0 "$kld" nightly n.json
for c in reference qad nvfp4 floor; do says "$c: reused, nothing changed"; done
shows 'the same capture'
[ "$sum" = "$(cat job/captures/*.zst | sha256sum)" ] || fail "a reused capture was written"
grep -q '"label": "build-1"' job/latest/nightly.json && fail "the label of another run"
grep -q '^kld_capture_reused{capture="reference"} 1' textfile/kld.prom || fail "no gauge of reuse"
grep -q '^kld_mean_kl{candidate="nvfp4"} 0\.' textfile/kld.prom || fail "no gauge of the KL"
expect 0 "$kld" nightly --dry-run n.json --json
[ "$(grep -c '"action": "reused"' out)" = 4 ] || fail "a dry run would not use everything again"

mkdir elsewhere
(cd elsewhere && expect 0 "$kld" nightly --dry-run --json ../n.json &&
    [ "$(grep -c '"action": "reused"' out)" = 4 ]) || fail "it matters where it is run"

# Weights of one layer overwritten, of the same size and still loadable: the gate says what, above
# what, and what it was before; the others are not captured again; the last good capture stays.
cp -a nvfp4 good
w=nvfp4/model.safetensors
header=$(od -An -tu8 -N8 $w | tr -d ' ')
entry=$(head -c $((header + 8)) $w | grep -ao '"model.layers.3.mlp.down_proj.weight":{[^}]*}')
at=$(echo "$entry" | sed 's/.*data_offsets":\[\([0-9]*\),.*/\1/')
head -c 12000 /dev/zero | tr '\0' 'w' | dd of=$w bs=1 seek=$((header + 8 + at)) conv=notrunc status=none
expect 1 "$kld" nightly n.json
says 'error: nvfp4: mean_kl [0-9.]* is above 0.7 (0\.[0-9]* in the last good run of 2023-11-14)'
says 'nvfp4: captured: the checkpoint changed'
says 'qad: reused'
shows 'more than 10 % above'
shows ', worse'
[ "$(ls job/captures/nvfp4-*.zst | wc -l)" = 2 ] || fail "the last good capture is gone"
grep -q '<failure message="nvfp4: mean_kl' job/latest/junit.xml || fail "no failure in JUnit"
grep -q '^kld_gate_failed{candidate="nvfp4",metric="mean_kl",kind="absolute"} 1' textfile/kld.prom ||
    fail "no failed gate for Prometheus"
[ "$(field job/latest/nightly.json exit_code)" = 1 ] || fail "the summary has another exit code"

# One that does not load costs the others nothing, and is told by its own exit code.
mkdir broken && cp nvfp4/*.json broken/ && head -c 100000 good/model.safetensors >broken/model.safetensors
config job ', {"name": "broken", "model": "broken"}' >broken.json
expect 3 "$kld" nightly --check broken.json
says 'broken.json: broken: broken'
expect 3 "$kld" nightly broken.json
says 'error: broken: broken/model.safetensors'
shows 'error   broken: broken/model'
shows 'passed  qad'
shows 'failed  nvfp4'
grep -q '<testcase classname="kld.captures" name="broken" time="[0-9.]*"><error message="broken/model.safet' job/latest/junit.xml ||
    fail "no error in JUnit"
[ "$(ls -d job/runs/* | wc -l)" = 3 ] || fail "old reports were not removed"

# Without the reference nothing can be measured; with a floor that is none, all but that.
mkdir none && cp broken/* none/
sed "s#$demo/ref\"}#none\"}#; s#\"job\"#\"noref\"#" n.json >noref.json
expect 3 "$kld" nightly noref.json
says 'error: reference: none/model.safetensors.*(and 2 more)'
shows 'skipped  qad: not captured: it needs that of reference, which failed'
[ -s noref/latest/junit.xml ] && [ ! -e noref/latest/report.html ] || fail "reports of nothing"
sed "s#\"floor\": true#\"floor\": \"$(ls job/captures/qad-*.zst)\"#" n.json >floor.json
expect 3 "$kld" nightly floor.json
says 'is not the reference captured again'
shows 'passed  qad'

# The checkpoint of before is back: its capture is found again.
rm -rf nvfp4 && mv good nvfp4
expect 0 "$kld" nightly n.json
says 'nvfp4: reused'
[ "$(ls job/captures/nvfp4-*.zst | wc -l)" = 1 ] || fail "a capture that nobody needs was kept"

# A capture that was damaged is made anew, and is the same.
f=$(ls job/captures/qad-*.zst) && cp "$f" whole.zst
printf X | dd of="$f" bs=1 seek=5000 conv=notrunc status=none
expect 0 "$kld" nightly n.json
says 'it is captured anew'
cmp "$f" whole.zst || fail "the capture made anew differs"

# Interrupted: exit 130, nothing recorded, and the next run goes on.
config again >again.json
"$kld" nightly again.json >out.again 2>err &
pid=$!
for i in $(seq 200); do
    [ -n "$(ls again/captures/*.partial 2>/dev/null)" ] && break
    sleep 0.02
done
kill -INT $pid
wait $pid
rc=$?
[ $rc = 130 ] || [ $rc = 0 ] || fail "exit $rc after SIGINT"
[ $rc = 0 ] || [ ! -e again/latest ] || fail "an interrupted run left a report"
expect 0 "$kld" nightly again.json
cmp again/captures/reference-*.zst job/captures/reference-*.zst || fail "continued, the capture differs"

# A disk that fills up: told as such, and continued when there is room.
config full >full.json
trap '' XFSZ
expect 5 bash -c "ulimit -f $(($(stat -c %s job/captures/reference-*.zst) / 2048)); trap '' XFSZ; exec '$kld' nightly full.json"
says 'error: reference: full/captures/reference-.*partial.*: cannot write: '
[ -s full/latest/junit.xml ] || fail "no report of a capture that failed"
expect 0 "$kld" nightly full.json
says 'reference: continued: an earlier run did not finish it'
cmp full/captures/reference-*.zst job/captures/reference-*.zst || fail "continued, the capture differs"

# Two at once.
(
    flock 9
    echo 4711 >job/lock
    expect 3 "$kld" nightly n.json
    says 'job/lock: another run (process 4711) holds it'
) 9>>job/lock || exit 1
# A history of a later version, a damaged one, one of another program: refused, and left alone.
cp job/history.db keep.db
printf '\0\0\0\2' | dd of=job/history.db bs=1 seek=60 conv=notrunc status=none
cp job/history.db later.db
expect 4 "$kld" nightly n.json
says 'job/history.db: version 2 of the history was written by a later kld'
cmp job/history.db later.db || fail "a later history was changed"
head -c 6000 keep.db >job/history.db && cp job/history.db cut.db
expect 3 "$kld" nightly n.json
says 'job/history.db: the history is damaged'
cmp job/history.db cut.db || fail "a damaged history was changed"
echo 'not a database, but long enough to be taken for one when nobody looks at its first bytes' >job/history.db
expect 3 "$kld" nightly n.json
says 'damaged'
cp keep.db job/history.db
expect 0 "$kld" nightly n.json

# The file itself.
expect 0 "$kld" nightly --example
cp out example.json && sed -i 's/"keep"/"kept"/' example.json
expect 3 "$kld" nightly example.json
says "example.json: unknown key 'kept'; known are output"
expect 2 "$kld" nightly
expect 2 "$kld" nightly --example n.json
expect 3 "$kld" nightly nothing.json
