# Every form of a report: table, JSON, Markdown, HTML; text of the worst positions; what is refused.
. "$(dirname "$0")/lib/t.sh"
head -n 4 "$demo/heldout.jsonl" >text.jsonl
expect 0 "$kld" suite build --jsonl text.jsonl --tokenizer "$demo/ref" --window 256 --stride 256 -o suite.jsonl
cp -r "$demo/ref" base
expect 0 "$kld" capture --quiet --model base --suite suite.jsonl -o ref.zst
expect 0 "$kld" capture --quiet --model "$demo/qad" --suite suite.jsonl --ref ref.zst -o qad.zst
compare() { "$kld" compare --quiet ref.zst qad.zst "$@"; }

# All at once: files beside the table.
expect 0 compare --json=r.json --html r.html --markdown=r.md --tokenizer "$demo/ref" --fail-above mean_kl=10
shows 'KL(reference || candidate), nats'
shows 'Largest KL: text before'
grep -q '^| candidate | KLD | JS | top-1 | p99 | p99.9 | max |$' r.md || fail "no Markdown table"
grep -q 'gate \*\*passed\*\*' r.md || fail "no gate in Markdown"
grep -q '^<!doctype html>' r.html && grep -q '</html>' r.html || fail "no page"
grep -q '"next_text":"' r.html || fail "no text in the page"
grep -q "default-src 'none'" r.html || fail "no policy"
[ "$(stat -c %s r.html)" -lt 400000 ] || fail "the page has $(stat -c %s r.html) bytes"
grep -q '"next_text": "' r.json && grep -q '"passed": true' r.json || fail "no text or gate in JSON"
grep -q '"by_position": \[' r.json || fail "no KL by position"
# Each alone on stdout.
expect 0 compare --markdown --tokenizer "$demo/ref" --fail-above mean_kl=10
cmp out r.md || fail "--markdown and --markdown=FILE differ"
expect 0 compare --json --tokenizer "$demo/ref" --fail-above mean_kl=10
cmp out r.json || fail "--json and --json=FILE differ"
expect 2 compare --json --markdown
says 'a FILE to one of'

# Where the checkpoint was, its tokenizer is found; without one there is no text; another one's is
# refused before anything is computed.
expect 0 compare --json
grep -q '"next_text": "' out || fail "the checkpoint's tokenizer was not found"
rm -r base
expect 0 compare --json
grep -q '"next_text": null' out || fail "text without a tokenizer"
expect 0 compare
grep -q 'Largest KL' out && fail "worst positions without text"
mkdir other && sed 's/"<|endoftext|>"/"<|end|>"/g' "$demo/ref/tokenizer.json" >other/tokenizer.json
expect 3 compare --tokenizer other --html no.html
says 'but the captures were made with'
[ ! -e no.html ] || fail "a refused comparison left a page"

# A failed gate does not cost the reader the report.
expect 1 compare --html failed.html --markdown=failed.md --fail-above mean_kl=1e-9
grep -q 'gate \*\*FAILED\*\*' failed.md || fail "no failed gate in Markdown"
grep -q '"passed":false' failed.html || fail "no failed gate in the page"
# What is read is not written over, and a page that cannot be written is an error.
expect 3 compare --html qad.zst
expect 3 compare --markdown=ref.zst
expect 0 "$kld" verify ref.zst qad.zst
expect 3 compare --html .

# A name of a file cannot become a part of the page or of Markdown.
evil='a|b<script>alert(1)<'
mkdir x && cp -r "$demo/qad" "x/$evil"
expect 0 "$kld" capture --quiet --model "x/$evil" --suite suite.jsonl --ref ref.zst -o evil.zst
expect 0 "$kld" compare --quiet ref.zst evil.zst --html evil.html --markdown
shows 'a\\|b\\<script\\>alert(1)\\<'
grep -q 'a|b\\u003cscript\\u003ealert(1)\\u003c' evil.html || fail "the name is not in the page"
grep -q 'a|b<script' evil.html && fail "the name is markup in the page"
exit 0
