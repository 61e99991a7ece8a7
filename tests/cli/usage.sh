# Help, usage errors and exit codes.
. "$(dirname "$0")/lib/t.sh"
expect 2 "$kld"
says 'Usage: kld COMMAND'
expect 2 "$kld" frobnicate
says 'not a command'
expect 0 "$kld" --help
shows 'Commands:'
expect 0 "$kld" --version
shows '^kld [0-9]'
for c in capture compare suite logits quantize inspect verify; do
    expect 0 "$kld" $c --help
    shows "Usage: kld $c"
    expect 0 "$kld" help $c
    expect 2 "$kld" $c --no-such-option
    says "Try \`kld $c --help"
done
expect 2 "$kld" capture --model x
says -- '--suite is missing'
expect 2 "$kld" compare only-one.zst
expect 2 "$kld" verify
expect 2 "$kld" capture --model x --suite y -o z --top-k ten
says 'expected a whole number'
expect 2 "$kld" capture --model x --suite y -o z --top-k -5
expect 2 "$kld" capture --model x --suite y -o z --memory 4Q
says 'expected a size'
expect 2 "$kld" capture --model x --suite y -o z --precision fp8
expect 2 "$kld" capture --model x --suite y -o z --resume --force
expect 4 "$kld" capture --model x --suite y -o z --device cuda:0
expect 3 "$kld" capture --model org/never-downloaded --suite y -o z
expect 3 "$kld" inspect org/never-downloaded
says 'hf download org/never-downloaded'
expect 3 "$kld" verify nothing.zst
# A closed pipe or a full device is an error of the program, not silence.
"$kld" --help >/dev/full 2>err
expect 5 sh -c "'$kld' verify --help >/dev/null; '$kld' inspect --json '$models/qwen3' >/dev/full"
