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
# A gate with a typo is told before any file is read.
expect 2 "$kld" compare no.zst such.zst --fail-above mean_kll=1
says 'unknown metric'
expect 2 "$kld" compare no.zst such.zst --margin-abs 0
says -- '--margin-abs must be above 0'
expect 2 "$kld" verify
expect 2 "$kld" capture --model x --suite y -o z --top-k ten
says 'expected a whole number'
expect 2 "$kld" capture --model x --suite y -o z --top-k -5
expect 2 "$kld" capture --model x --suite y -o z --memory 4Q
says 'expected a size'
expect 2 "$kld" capture --model x --suite y -o z --precision fp8
expect 2 "$kld" capture --model x --suite y -o z --resume --force
# Devices: what is no device, and CUDA where there is none.  A build without nvcc has no back end
# (exit 4); one with it may find no driver (exit 5), or a card, and then the model is missing.
expect 2 "$kld" capture --model x --suite y -o z --device gpu
says "expected auto, cpu, cuda, cuda:N or cuda:N,N"
if [ -e "$(dirname "$(readlink -f "$kld")")/kld-cuda.so" ]; then
    expect 2 "$kld" capture --model x --suite y -o z --device cuda:
    expect 2 "$kld" capture --model x --suite y -o z --device cuda:0,x
    expect 2 "$kld" capture --model x --suite y -o z --device cuda:0,
    if [ -e /dev/nvidiactl ]; then
        expect 5 "$kld" capture --model x --suite y -o z --device cuda:99
        says 'there .* CUDA device'
    else
        expect 5 "$kld" capture --model x --suite y -o z --device cuda
        says 'NVIDIA driver'
        says 'use --device cpu'
    fi
else
    expect 4 "$kld" capture --model x --suite y -o z --device cuda:0
    says 'no CUDA back end'
fi
expect 3 "$kld" capture --model org/never-downloaded --suite y -o z
expect 3 "$kld" inspect org/never-downloaded
says 'hf download org/never-downloaded'
# What is given for a model, but is none: the message names it, says what was found and what to do.
mkdir empty weightless folder
cp "$models/qwen3/config.json" weightless/
cp -r "$models/llama-old" folder/cut
rm folder/cut/model-00002-of-00002.safetensors
ids_suite 1 4 >suite.jsonl
for c in "inspect" "logits --ids 1,2 -o x.npy --model" "quantize --format nvfp4 -o x --model" \
    "capture --suite suite.jsonl -o x.zst --model"; do
    expect 3 "$kld" $c empty
    says 'empty: no config.json (it holds nothing); give the directory of a Hugging Face checkpoint'
    expect 3 "$kld" $c folder
    says 'folder: no config.json (it holds cut); give'
    expect 3 "$kld" $c weightless
    says 'weightless: no .safetensors file; incomplete download?'
    expect 3 "$kld" $c folder/cut
    says '1 of the 2 files named by .*index.json are missing: model-00002-of-00002.safetensors; incomplete'
    expect 3 "$kld" $c "$models/qwen3/config.json"
    says 'config.json: is a file.*give the directory that holds it'
    expect 3 "$kld" $c ''
    says 'the name of the model is empty'
    expect 3 "$kld" $c ./typo
    says './typo: no such file or directory, and not of the form org/name'
    expect 3 "$kld" $c org/name@v2
    says 'hf download org/name --revision v2'
done
m=$models/qwen3
expect 3 "$kld" capture --model "$m" --suite missing.jsonl -o x.zst
says 'missing.jsonl: cannot open: No such file'
expect 3 "$kld" capture --model "$m" --suite "$m/config.json" -o x.zst
says 'config.json: line 1'
expect 3 "$kld" capture --model "$m" --suite suite.jsonl --ref missing.zst -o x.zst
says 'missing.zst: cannot open'
expect 3 "$kld" capture --model "$m" --suite suite.jsonl --ref suite.jsonl -o x.zst
says 'suite.jsonl: not a kld capture'
expect 3 "$kld" capture --model "$m" --suite suite.jsonl -o nodir/x.zst
says 'nodir/x.zst'
expect 3 "$kld" capture --model "$m" --suite suite.jsonl -o empty
says 'empty: is a directory'
ls x* nodir 2>/dev/null && fail "output in spite of an error"
expect 3 "$kld" verify nothing.zst
# A closed pipe or a full device is an error of the program, not silence.
"$kld" --help >/dev/full 2>err
expect 5 sh -c "'$kld' verify --help >/dev/null; '$kld' inspect --json '$models/qwen3' >/dev/full"
