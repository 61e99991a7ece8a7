# Sourced by the command-line tests: a scratch directory, the program, and checks.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
kld=$(realpath "${KLD_BIN:-$root/build/kld}")
demo=$root/datasets/demo
models=$root/tests/golden/models
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
export SOURCE_DATE_EPOCH=1700000000 # captures of one model are then equal to the byte
export HF_HOME=$tmp/no-hub HF_HUB_CACHE= NO_COLOR=1

fail() {
    echo "FAILED: $*"
    echo "  stdout: $(head -c 600 out 2>/dev/null)"
    echo "  stderr: $(head -c 600 err 2>/dev/null)"
    exit 1
}

# expect CODE COMMAND...: run, keep stdout in ./out and stderr in ./err, check the exit code
# and that an error is one line.
expect() {
    local want=$1 rc
    shift
    "$@" >out 2>err
    rc=$?
    [ $rc = "$want" ] || fail "exit $rc instead of $want: $*"
    if [ "$want" -ge 3 ] && [ "$want" -lt 70 ]; then
        [ "$(grep -c 'error:' err)" = 1 ] || fail "expected one error line: $*"
    fi
}

says() { grep -q -- "$1" err || fail "stderr does not say '$1'"; }
shows() { grep -q -- "$1" out || fail "stdout does not show '$1'"; }

# json FILE EXPRESSION: evaluate with the program's own output, no Python or jq needed:
# picks the first "key": value after an optional anchor.
field() { grep -o "\"$2\": *[^,}]*" "$1" | head -n 1 | sed 's/^[^:]*: *//'; }

# A suite of ids for the tiny models (vocabulary 128): N windows of length L.
ids_suite() {
    awk -v n="$1" -v len="$2" 'BEGIN {
        for (w = 0; w < n; w++) {
            s = ""
            for (t = 0; t < len; t++) { x = (x * 1103515245 + 12345 + w) % 2147483648; s = s (t ? "," : "") (6 + int(x / 65536) % 120) }
            printf "{\"ids\":[%s],\"cluster\":\"c%d\",\"stratum\":\"s%d\"}\n", s, w % 7, w % 2
        }
    }'
}

# byte_tokenizer DIR: a tokenizer of 96 ids (!, ", ... `) for the tiny models, as the demo's with other ids.
byte_tokenizer() {
    {
        sed 's/"vocab": *{.*//' "$demo/ref/tokenizer.json" | tr -d '\n'
        awk 'BEGIN {
            for (i = 0; i < 96; i++) {
                c = sprintf("%c", 33 + i)
                if (i >= 94) c = i == 94 ? "\302\241" : "\302\242"
                if (c == "\"" || c == "\\") c = "\\" c
                s = s (i ? ", " : "") "\"" c "\": " i
            }
            print "\"vocab\": {" s "}, \"merges\": []}}"
        }'
    } | sed 's/"added_tokens": *\[[^]]*\]/"added_tokens": []/' >"$1/tokenizer.json"
}

# Texts of its ids: 24 documents in 6 clusters.
ids_text() {
    awk 'BEGIN {
        for (w = 0; w < 24; w++) {
            s = ""
            for (t = 0; t < 90 + w; t++) { x = (x * 1103515245 + 12345 + w) % 2147483648; s = s (t ? "," : "") int(x / 65536) % 96 }
            printf "{\"ids\":[%s],\"cluster\":\"c%d\"}\n", s, w % 6
        }
    }'
}
