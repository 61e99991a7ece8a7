# Suites: the examples of docs/suites.md, BOS, short documents, ready ids, refusals.
. "$(dirname "$0")/lib/t.sh"
build="$kld suite build --tokenizer $demo/ref"

# windows OPTIONS...: the windows of ten ids as docs/suites.md writes them.
mkdir bos
cp "$demo/ref/tokenizer.json" bos/
echo '{"bos_token":"<|endoftext|>"}' >bos/tokenizer_config.json
echo '{"ids":[10,11,12,13,14,15,16,17,18,19],"cluster":"ten"}' >ten.jsonl
windows() {
    expect 0 "$kld" suite build --quiet --tokenizer bos --jsonl ten.jsonl "$@" -o ten.suite
    awk -F'"ids":\\[|\\],"score_from":|,"source"' 'NR > 1 {
        n = split($2, id, ","); line = NR > 2 ? "`, `" : "`"
        for (i = 1; i <= n; i++)
            line = line (i > 1 ? " " : "") (i == $3 + 2 ? "[" : "") (id[i] == 4095 ? "BOS" : id[i])
        printf "%s]", line
    } END { print "`" }' ten.suite
}
for o in "--window 4" "--window 4 --stride 2" "--window 4 --bos first" "--window 4 --bos every"; do
    grep -qF "| \`$o\` | $(windows $o) |" "$root/docs/suites.md" || fail "docs/suites.md: $o gives $(windows $o)"
done
windows --window 4 --stride 2 --score-last 1 >got
echo '`10 11 12 [13]`, `12 13 14 [15]`, `14 15 16 [17]`, `16 17 18 [19]`' | cmp -s - got || fail "score-last: $(cat got)"

# T27: overlap is said; scoring more than once is a warning.
expect 0 $build --jsonl ten.jsonl --window 4 --stride 1 -o s.jsonl
says 'overlap by 3 tokens; each token is scored once'
expect 0 $build --jsonl ten.jsonl --window 4 --stride 1 --score-last 2 -o s.jsonl
says 'warning: .* scored more than once'

# T20: ids with BOS and without are two suites, whoever asks.
head -n 2 "$demo/heldout.jsonl" >text.jsonl
expect 0 $build --jsonl text.jsonl --window 128 -o none.jsonl
expect 0 "$kld" suite build --tokenizer bos --jsonl text.jsonl --window 128 --bos first -o first.jsonl
expect 0 "$kld" capture -q --model "$demo/ref" --suite none.jsonl -o none.zst
expect 0 "$kld" capture -q --model "$demo/ref" --suite first.jsonl -o first.zst
expect 3 "$kld" capture -q --model "$demo/qad" --suite first.jsonl --ref none.zst -o x.zst
says 'none.zst: the suite differs: .* capture both models on the same suite'
expect 3 "$kld" compare none.zst first.zst
says 'suite differs'
# Changing what the header says is noticed.
sed '1s/"bos":"first"/"bos":"none"/' first.jsonl >lie.jsonl
expect 3 "$kld" suite info lie.jsonl
says 'digest in the header does not match'
expect 2 $build --jsonl text.jsonl --bos first -o x.jsonl
says 'names no beginning-of-sequence token'
# T21: the text has the token written out; no window gets two, and two in the text are refused.
printf '<|endoftext|>one two three' >once.txt
printf '<|endoftext|><|endoftext|>one two' >twice.txt
expect 0 "$kld" suite build --tokenizer bos --text once.txt --bos every -o once.jsonl
says '1 documents begin with the beginning-of-sequence token already; none was added'
[ "$(grep -o 4095 once.jsonl | wc -l)" = 1 ] || fail "BOS is not there once"
expect 3 "$kld" suite build --tokenizer bos --text twice.txt -o x.jsonl
says "document 0 ('twice.txt'): it begins with two beginning-of-sequence tokens (id 4095)"

# T12: ids are used as they are, also where the tokenizer would join them differently.
printf 'one ' >one-word.txt
expect 0 $build --text one-word.txt -o joined.jsonl
grep -q '"ids":\[78,77,68,220\]' joined.jsonl && fail "the tokenizer joins nothing: no test"
echo '{"ids":[78,77,68,220],"cluster":"split"}' >split.jsonl # "one " byte by byte
expect 0 $build --jsonl split.jsonl -o split.suite
grep -q '"ids":\[78,77,68,220\]' split.suite || fail "ids were changed"
expect 0 "$kld" capture -q --model "$demo/ref" --suite split.suite -o split.zst
expect 0 "$kld" compare split.zst split.zst --json
[ "$(field out positions)" = 3 ] || fail "not the three positions of four ids"

# T34: too short is stated, never a division by nothing.
: >empty.txt
printf a >one.txt
for f in empty.txt one.txt "empty.txt one.txt"; do
    expect 3 $build --text $f -o x.jsonl
    says 'no scored position'
done
expect 0 $build --text empty.txt once.txt one.txt -o short.jsonl
says '2 of 3 documents have fewer than two tokens and score nothing'
printf '\n  \n{"text":"two words"}\n\n{"text":""}\n' >blank.jsonl
expect 0 $build --jsonl blank.jsonl -o blank.suite
says '1 of 2 documents'
grep -q '"cluster":"blank.jsonl:3"' blank.suite || fail "the cluster is not the line"
printf '\n\n' >nothing.jsonl
expect 2 $build --jsonl nothing.jsonl -o x.jsonl
says 'no document'
echo '{"ids":[5]}' >one-id.jsonl
expect 3 "$kld" capture --model "$demo/ref" --suite one-id.jsonl -o x.zst
says 'no scored position'

# Several files, of the kind of the option in front of them, in the order given.
printf 'two words' >w.txt
for i in 1 2 3; do echo "{\"ids\":[$i,$i]}" >j$i.jsonl; done
expect 0 $build --jsonl j1.jsonl j2.jsonl --text w.txt once.txt --jsonl j3.jsonl -o many.jsonl
order=$(grep -o '"cluster":"[^"]*"' many.jsonl | cut -d'"' -f4 | tr '\n' ' ')
[ "$order" = 'j1.jsonl:1 j2.jsonl:1 w.txt once.txt j3.jsonl:1 ' ] || fail "order: $order"
expect 2 "$kld" suite build w.txt --tokenizer "$demo/ref" -o x.jsonl
says "'w.txt': say --text or --jsonl before it"

# What else docs/suites.md says is refused.
printf 'caf\351 au lait' >latin.txt
expect 3 $build --text latin.txt -o x.jsonl
says "document 0 ('latin.txt'): text is not valid UTF-8 at byte 3"
echo '{"ids":[1,4096]}' >over.jsonl
expect 3 $build --jsonl over.jsonl -o x.jsonl
says 'id 4096 at 1, but the tokenizer has 4096 ids'
printf '%s\n' '{"text":"a b c","cluster":"w","partition":"analysis"}' '{"text":"d e f","cluster":"w"}' >two.jsonl
expect 3 $build --jsonl two.jsonl --partition qualification -o x.jsonl
says "cluster 'w' is in partition 'analysis' and in 'qualification'"
expect 0 $build --jsonl two.jsonl --partition analysis -o x.jsonl
rm x.jsonl
echo '{"text":"a","ids":[1]}' >both.jsonl
expect 3 $build --jsonl both.jsonl -o x.jsonl
says 'both.jsonl: line 1: expected either'
expect 2 $build --jsonl ten.jsonl --window 4 --stride 5 -o x.jsonl
expect 2 $build --jsonl ten.jsonl --score-last 0 -o x.jsonl
expect 3 $build --text missing.txt -o x.jsonl
says missing.txt
expect 3 "$kld" suite build --tokenizer "$models/qwen3" --text once.txt -o x.jsonl
says 'tokenizer.json'
[ ! -e x.jsonl ] && [ ! -e x.jsonl.partial ] || fail "a suite in spite of an error"
expect 0 "$kld" suite info short.jsonl --json
[ "$(field out windows)" = 1 ] || fail "suite info --json: windows"
expect 2 "$kld" suite
expect 2 "$kld" suite frob
