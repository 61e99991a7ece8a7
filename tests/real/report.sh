#!/usr/bin/env bash
# The HTML report in a browser: headless Chromium opens pages of real captures, wide, narrow, dark and
# on paper.  Nothing may be reported on the console or requested; every chart is drawn, nothing hangs
# over the edge, controls work.  Pictures stay in OUT when it is given.
# Usage: KLD_BIN=build/kld tests/real/report.sh [OUT]
out=${1:+$(mkdir -p "$1" && realpath "$1")}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../cli/lib/t.sh"
out=${out:-$tmp/pictures}
mkdir -p "$out"
command -v chromium >/dev/null || fail "no chromium (Debian package chromium)"

# A page of a dense model with text, and one of routes, cells, a repeat and a hostile name.
head -n 12 "$demo/heldout.jsonl" >text.jsonl
expect 0 "$kld" suite build --jsonl text.jsonl --tokenizer "$demo/ref" --window 256 --stride 256 -o suite.jsonl
expect 0 "$kld" quantize --quiet --model "$demo/ref" --format nvfp4 -o nvfp4
expect 0 "$kld" capture --quiet --model "$demo/ref" --suite suite.jsonl -o ref.zst
for m in "$demo/qad" nvfp4; do
    expect 0 "$kld" capture --quiet --model "$m" --suite suite.jsonl --ref ref.zst -o "$(basename "$m").zst"
done
expect 1 "$kld" compare --quiet ref.zst ref.zst nvfp4.zst qad.zst --tokenizer "$demo/ref" --html dense.html --fail-above mean_kl=0.3
cp -r "$models/glm4_moe" base && byte_tokenizer base && ids_text >ids.jsonl
evil='<img src=x onerror=alert(1)>'
cp -r base "$evil"
for at in $(seq 30000 1000 140000); do
    printf '\0\0\0\0\0\0\0\0' | dd of="$evil/model.safetensors" bs=1 seek="$at" conv=notrunc status=none
done
expect 0 "$kld" suite build --jsonl ids.jsonl --tokenizer base --window 256 -o ids_suite.jsonl
capture() { expect 0 "$kld" capture --quiet --suite ids_suite.jsonl "$@"; }
capture --model base -o b.zst --routes capture
capture --model "$evil" --ref b.zst -o q.zst --routes capture
capture --model "$evil" --ref b.zst -o bq.zst --routes replay=b.zst
capture --model base --ref b.zst -o qb.zst --routes replay=q.zst
expect 0 "$kld" compare --quiet b.zst q.zst bq.zst qb.zst --tokenizer base --html routes.html

# browse NAME WIDTH ARGUMENTS...: one run of the browser; what it logs is in ./log.
browse() {
    local width=$1
    shift
    timeout 60 chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars \
        --disable-background-networking --disable-component-update --no-first-run --user-data-dir="$tmp/profile" \
        --host-resolver-rules='MAP * ~NOTFOUND' --enable-logging=stderr --virtual-time-budget=4000 \
        --window-size="$width,2400" "$@" >dom 2>log || fail "chromium ended with $?: $(tail -n 3 log)"
}
dark=--blink-settings=preferredColorScheme=0
quiet() { ! grep CONSOLE log || fail "$1: the console reports something"; }

# probe PAGE WIDTH: a frame of that width (windows of the browser are at least 500 wide) around the copy
# that looks at itself; what it found is in ./probe.
probe() {
    local page=$1 width=$2
    shift 2
    echo "<!doctype html><pre></pre><script>onmessage = (e) => { document.querySelector('pre').textContent = e.data }</script>
<iframe src='probed-$page.html' width='$width' height='2000' style='border:0'></iframe>" >frame.html
    browse 1400 "$@" --dump-dom "file://$tmp/frame.html"
    quiet "$page"
    sed -n 's|.*<pre>\(.*\)</pre>.*|\1|p' dom >probe
}

# The page as it is, under its own policy.
for page in dense routes; do
    browse 1280 --screenshot="$out/$page-light.png" "file://$tmp/$page.html"
    quiet $page
    browse 390 --screenshot="$out/$page-narrow.png" "file://$tmp/$page.html"
    quiet $page
done
browse 1280 $dark --screenshot="$out/dense-dark.png" "file://$tmp/dense.html"
quiet dense
browse 1280 $dark --no-pdf-header-footer --print-to-pdf="$out/dense.pdf" "file://$tmp/dense.html"
quiet dense
for f in "$out"/*.png; do [ "$(stat -c %s "$f")" -gt 50000 ] || fail "$f is nearly empty"; done
[ "$(head -c 5 "$out/dense.pdf")" = %PDF- ] || fail "no PDF"
# The policy forbids what it should, and the console says so.
sed 's|<main|<img src="https://example.org/x.png"><script>document.title = "ran"</script><main|' dense.html >tampered.html
browse 1280 --dump-dom "file://$tmp/tampered.html"
[ "$(grep -c 'CONSOLE.*Content Security Policy' log)" -ge 2 ] || fail "a foreign image and script are not refused"
grep -q '<title>ran' dom && fail "a foreign script ran"

# Copies without the policy, with earlier runs, that look at themselves.
runs='[{"candidate":"nvfp4","runs":[{"time":"2026-01-01T03:00:00Z","kl_mean":0.4,"kl_ci95":[0.38,0.43],"gate":"passed"},{"time":"2026-01-02T03:00:00Z","kl_mean":0.5,"gate":"failed"}]}]'
for page in dense routes; do
    sed -e 's|<meta http-equiv[^>]*>|<script>window.failures = []; addEventListener("error", (e) => failures.push(e.message))</script>|' \
        -e "s|,\"history\":null}|,\"history\":$runs}|" $page.html >probed-$page.html
    { echo '<script>'; cat "$here/report_probe.js"; echo '</script>'; } >>probed-$page.html
    for width in 1280 360; do
        probe $page $width
        grep -q '"ok":true' probe && grep -q "\"width\":$width" probe || fail "$page at $width: $(cat probe)"
        grep -q '"background":"rgb(255, 255, 255)"' probe || fail "not light"
    done
done
probe dense 1280 $dark
grep -q '"background":"rgb(15, 19, 24)"' probe || fail "not dark: $(cat probe)"
exit 0
