# Suites of several sources: manifests, the choice of windows, partitions, contexts, the scan for calibration text.
. "$(dirname "$0")/lib/t.sh"
build="$kld suite build --tokenizer $demo/ref"

# The manifest of docs/suites.md, and what it gives.
mkdir set
cp "$demo/heldout.jsonl" set/
head -c 3000 "$root/datasets/demo/README.md" >set/notes.txt
awk '/^    \{ "tokenizer"/ { on = 1 } on { print } on && /^    \}$/ { exit }' "$root/docs/suites.md" |
    sed "s|REF_DIR|$demo/ref|" >set/suite.json
expect 0 "$kld" suite build --config set/suite.json -o set.suite
says 'windows are taken'
says "windows are in strata that 'strata' of their source does not name"
expect 0 "$kld" suite info set.suite
shows '^kld demo  *2026-01 '
shows 'of source 0, stratum reference: 20 windows asked, 20 windows with'
shows '^qualification  *all strata'
shows "warning: partition 'qualification' has"
expect 0 "$kld" suite info set.suite --json
[ "$(field out seed)" = 7 ] || fail "seed: $(field out seed)"
grep -q "$(sha256sum <"$demo/heldout.jsonl" | cut -d' ' -f1)" out || fail "the file's digest is not in the record"
[ "$(grep -c '"across_partitions": 0' out)" = 1 ] || fail "repeats across partitions"
# Files and lines in another order give the same suite; another seed gives another.
digest() { "$kld" suite info --json "$1" | grep -o '"digest": "[^"]*"'; }
tac set/heldout.jsonl >set/other && mv set/other set/heldout.jsonl
expect 0 "$kld" suite build -q --config set/suite.json -o other.suite
[ "$(digest set.suite)" = "$(digest other.suite)" ] || fail "the order of lines changed the suite"
expect 0 "$kld" suite build -q --config set/suite.json --seed 8 -o other.suite
[ "$(digest set.suite)" != "$(digest other.suite)" ] || fail "the seed changed nothing"
# Options go before the manifest; old readers and new ones agree on what a suite is.
expect 0 "$kld" suite build -q --config set/suite.json --window 128 --per-document 3 -o small.suite
expect 0 "$kld" suite info --json small.suite
[ "$(field out window)" = 128 ] && [ "$(field out per_document)" = 3 ] || fail "options did not go first"
sed 's/^{"kld_suite":1,\(.*\),"seed":.*/{"kld_suite":1,\1}/' set.suite >bare.suite
[ "$(digest set.suite)" = "$(digest bare.suite)" ] || fail "the record is part of the digest"

# A manifest that is wrong says where.
sed 's/"windows": 20/"windows": 2000/' set/suite.json >set/bad.json
expect 3 "$kld" suite build --config set/bad.json -o x.suite
says "source 'kld demo', stratum 'reference': 2000 windows are asked for, and there are [0-9]* with"
sed 's/"seed"/"sede"/' set/suite.json >set/bad.json
expect 3 "$kld" suite build --config set/bad.json -o x.suite
says "set/bad.json: 'sede' is not a key here; known are tokenizer, window"
sed 's/"revision"/"version"/' set/suite.json >set/bad.json
expect 3 "$kld" suite build --config set/bad.json -o x.suite
says "set/bad.json: source 0: 'version' is not a key here"
sed 's/heldout.jsonl/missing.jsonl/' set/suite.json >set/bad.json
expect 3 "$kld" suite build --config set/bad.json -o x.suite
says 'set/missing.jsonl'
expect 3 "$kld" suite build --config missing.json -o x.suite
expect 2 "$kld" suite build --config set/suite.json --text set/notes.txt -o x.suite
says "do not go with it"
expect 2 "$kld" suite build --config set/suite.json --partition a -o x.suite
says 'exclude each other'
grep -v '"tokenizer"' set/suite.json | sed '1s/^/{/' >set/bad.json
expect 2 "$kld" suite build --config set/bad.json -o x.suite
says "names no 'tokenizer'"
expect 3 "$kld" suite build --config set/suite.json -o set/suite.json
expect 3 "$kld" suite build --config set/suite.json -o set/heldout.jsonl
grep -q '"text"' set/heldout.jsonl || fail "an input was overwritten"

# Limits, one cluster only, an empty stratum.
expect 0 $build -q --jsonl "$demo/heldout.jsonl" --window 64 --per-document 2 -o two.suite
[ "$(grep -c '"ids"' two.suite)" = 84 ] || fail "not two windows of each of 42 documents"
expect 0 $build -q --jsonl "$demo/heldout.jsonl" --window 64 --per-cluster 1 -o one.suite
[ "$(grep -c '"ids"' one.suite)" = 42 ] || fail "not one window of each cluster"
expect 2 $build --jsonl "$demo/heldout.jsonl" --per-document 0 -o x.suite
sed 's/"cluster": "[^"]*"/"cluster": "one"/' "$demo/heldout.jsonl" >one.jsonl
expect 0 $build --jsonl one.jsonl --partition-split analysis=0.75,qualification=0.25 -o one.suite
expect 0 "$kld" suite info one.suite
shows "partition 'analysis' has 6 clusters" # one, in six strata
grep -q '"partition":"qualification"' one.suite && fail "a cluster was divided"
expect 2 $build --jsonl one.jsonl --partition-split analysis=0.75,qualification=0.2 -o x.suite
says 'add up to 0.95, not to 1'
expect 2 $build --jsonl one.jsonl --partition-split all=1 -o x.suite
expect 3 $build --jsonl one.jsonl --partition all -o x.suite
says "a partition cannot be called 'all'"

# A split holds for clusters that come later when it is kept.
head -n 30 "$demo/heldout.jsonl" >first.jsonl
expect 0 $build -q --jsonl first.jsonl --partition-split a=0.5,b=0.5 -o first.suite
expect 0 $build -q --jsonl "$demo/heldout.jsonl" --partition-split a=0.5,b=0.5 --keep-partitions first.suite -o later.suite
pairs() { grep -o '"cluster":"[^"]*","stratum":"[^"]*","partition":"[^"]*"' "$1" | sort -u; }
[ "$(pairs first.suite | comm -23 - <(pairs later.suite) | wc -l)" = 0 ] || fail "a cluster moved"
[ "$(grep -o '"partition":"[ab]"' later.suite | sort -u | wc -l)" = 2 ] || fail "one partition only"
expect 2 $build --jsonl first.jsonl --keep-partitions first.suite -o x.suite
says 'needs --partition-split'

# Chats: rendered text, with what is not to be scored in front.
echo '{"messages":[{"role":"user","content":"hi"}]}' >chat.jsonl
expect 3 $build --jsonl chat.jsonl -o x.suite
says "chat.jsonl: line 1: 'messages': a chat must be rendered with the model's chat template first"
echo '{"prefix":"<|endoftext|>Question: why?<|endoftext|>","text":"Because.","cluster":"chat"}' >chat.jsonl
expect 0 $build --jsonl chat.jsonl -o chat.suite
ids=$(grep -o '"ids":\[[^]]*\]' chat.suite | tr ',' '\n' | wc -l)
from=$(grep -o '"score_from":[0-9]*' chat.suite | cut -d: -f2)
printf 'Because.' >because.txt
expect 0 $build --text because.txt -o because.suite
[ $((ids - 1 - from)) = "$(grep -o '"ids":\[[^]]*\]' because.suite | tr ',' '\n' | wc -l)" ] || fail "$ids ids from $from"
echo '{"prefix":"and th","text":"e end","cluster":"chat"}' >chat.jsonl
expect 3 $build --jsonl chat.jsonl -o x.suite
says "document 0 ('chat'): a token lies across the end of 'prefix'"
echo '{"ids":[1,2,3,4,5,6],"score_from":3}' >chat.jsonl
expect 0 $build --jsonl chat.jsonl -o chat.suite
grep -q '"ids":\[1,2,3,4,5,6\],"score_from":3,' chat.suite || fail "score_from of ids"

# Calibration text in a suite: found, told, a gate, and left out.
expect 0 $build -q --jsonl "$demo/heldout.jsonl" --window 128 -o held.suite
head -n 3 "$demo/heldout.jsonl" >calib.jsonl
expect 0 "$kld" suite scan held.suite --against calib.jsonl --tokenizer "$demo/ref"
shows '3 of 42 clusters have some, at most 100.00 % of one'
expect 0 "$kld" suite scan held.suite --against calib.jsonl --tokenizer "$demo/ref" --json
[ "$(grep -c '"similarity": \(1.0\|0.9\)' out)" = 3 ] || fail "similarity"
[ "$(field out clusters_found)" = 3 ] || fail "clusters_found"
expect 1 "$kld" suite scan held.suite --against calib.jsonl --tokenizer "$demo/ref" --fail-above 0.5
says '100.00 % of the 13-grams of a cluster are in the calibration text; the limit is 50.00 %'
expect 0 "$kld" suite scan held.suite --against because.txt set/notes.txt --tokenizer "$demo/ref" --fail-above 0
shows '0 of 42 clusters'
tail -n +2 held.suite | head -n 4 >ids.jsonl # ids need no tokenizer
expect 1 "$kld" suite scan held.suite --against ids.jsonl --fail-above 0
expect 3 "$kld" suite scan held.suite --against calib.jsonl
says 'is text: --tokenizer is needed'
expect 3 "$kld" suite scan held.suite --against missing.jsonl --tokenizer "$demo/ref"
expect 2 "$kld" suite scan held.suite
says '--against FILE is missing'
expect 2 "$kld" suite scan held.suite --against calib.jsonl --fail-above 2
expect 0 $build --jsonl "$demo/heldout.jsonl" --window 128 --exclude-overlap calib.jsonl -o clean.suite
says '3 of 42 documents are left out'
expect 0 "$kld" suite scan clean.suite --against calib.jsonl --tokenizer "$demo/ref" --fail-above 0
expect 2 $build --jsonl "$demo/heldout.jsonl" --exclude-overlap calib.jsonl --exclude-above 1 -o x.suite
# T34: nothing is left, or nothing is there.
expect 3 $build --jsonl calib.jsonl --exclude-overlap calib.jsonl -o x.suite
says 'no scored position'
: >empty.jsonl
expect 0 "$kld" suite scan held.suite --against empty.jsonl --tokenizer "$demo/ref"
shows 'in the 0 documents read'
[ ! -e x.suite ] && [ ! -e x.suite.partial ] || fail "a suite in spite of an error"
