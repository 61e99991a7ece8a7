# The partition called qualification is read when it is asked for, and captures say what they hold.
. "$(dirname "$0")/lib/t.sh"
capture="$kld capture --model $demo/ref --suite two.suite"
head -n 9 "$demo/heldout.jsonl" >text.jsonl
expect 0 "$kld" suite build -q --jsonl text.jsonl --tokenizer "$demo/ref" --window 128 --per-document 1 \
    --partition-split analysis=0.75,qualification=0.25 -o two.suite
n=$(grep -c '"partition":"qualification"' two.suite)
all=$(grep -c '"ids"' two.suite)
[ "$n" -gt 0 ] && [ "$n" -lt "$all" ] || fail "no two partitions: $n of $all"

expect 0 $capture -o default.zst
says "$n of $all windows are of partition 'qualification' and are left out"
expect 0 $capture --partition analysis -o analysis.zst
grep -q qualification err && fail "told what was asked for"
cmp default.zst analysis.zst || fail "the default is not the other partition"
expect 0 $capture -q --partition qualification -o qualification.zst
expect 0 $capture -q --partition all -o all.zst
expect 2 $capture --partition tuning -o x.zst
says "two.suite: no window is in partition 'tuning'; there are '"
expect 2 $capture --partition '' -o x.zst
[ ! -e x.zst ] || fail "a capture in spite of an error"
expect 0 "$kld" inspect analysis.zst
shows "windows of partition 'analysis' of its suite"
expect 0 "$kld" inspect qualification.zst --json
[ "$(field out partition)" = '"qualification"' ] && [ "$(field out windows)" = "$n" ] || fail "inspect"
expect 0 "$kld" inspect all.zst --json
[ "$(field out partition)" = '""' ] && [ "$(field out windows)" = "$all" ] || fail "inspect of all"
expect 0 "$kld" verify qualification.zst
# Where nothing is left out no key is written: as before there were partitions.
grep -aq '"partition":' analysis.zst || fail "the header does not say what it holds"
grep -aq '"partition":' all.zst && fail "a key without need"

# Candidates hold what their reference holds.
expect 3 "$kld" capture -q --model "$demo/qad" --suite two.suite --ref all.zst -o x.zst
says "all.zst: it holds the windows of partition 'all', this run those of 'analysis'; capture with --partition all"
expect 3 "$kld" capture -q --model "$demo/qad" --suite two.suite --partition all --ref analysis.zst -o x.zst
says 'capture with --partition analysis to have the same'
expect 0 "$kld" capture -q --model "$demo/qad" --suite two.suite --ref analysis.zst -o cand.zst
expect 0 "$kld" capture -q --model "$demo/qad" --suite two.suite --partition all --ref all.zst -o cand_all.zst
expect 3 "$kld" compare all.zst cand.zst
says "partition differs: 'all' in the reference, 'analysis' in the candidate"
expect 0 "$kld" compare -q analysis.zst cand.zst --json
[ "$(field out partition)" = '"analysis"' ] && [ "$(field out windows)" = $((all - n)) ] || fail "compare"
grep -q partition_left_out out && fail "nothing was left out here"
# Of captures that hold everything the qualification windows are left out, too.
expect 0 "$kld" compare -q all.zst cand_all.zst --json
[ "$(field out windows)" = $((all - n)) ] || fail "compare of all: $(field out windows)"
[ "$(field out windows_left_out)" = "$n" ] || fail "windows_left_out"
grep -q '"code": "partition_left_out"' out || fail "not said"
expect 0 "$kld" compare -q all.zst cand_all.zst --partition all --json
[ "$(field out windows)" = "$all" ] && [ "$(field out windows_left_out)" = 0 ] || fail "--partition all"
expect 0 "$kld" compare -q all.zst cand_all.zst --partition qualification --json
[ "$(field out windows)" = "$n" ] || fail "--partition qualification"
expect 0 "$kld" compare -q qualification.zst qualification.zst --json
[ "$(field out windows)" = "$n" ] || fail "a capture of it alone"

# A suite of nothing else is read when asked only.
grep -v '"partition":"analysis"' two.suite | sed '1d' >only.jsonl
expect 3 "$kld" capture -q --model "$demo/ref" --suite only.jsonl -o x.zst
says "every window is of partition 'qualification', which is read only when it is asked for"
expect 0 "$kld" capture -q --model "$demo/ref" --suite only.jsonl --partition qualification -o only.zst
expect 0 "$kld" compare -q only.zst only.zst --json
[ "$(field out windows)" = "$n" ] || fail "the only partition"
