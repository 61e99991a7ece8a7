# An output that is an input, by any name, is refused before anything is written, --force or not.
. "$(dirname "$0")/lib/t.sh"
head -n 2 "$demo/heldout.jsonl" >text.jsonl
cp text.jsonl text.copy
build="$kld suite build --tokenizer $demo/ref --window 128 --stride 128"
expect 3 $build --jsonl text.jsonl -o text.jsonl
says 'is an input of this run'
expect 3 $build -o ./text.jsonl --text text.copy text.jsonl
says 'is an input of this run'
expect 0 $build --jsonl text.jsonl -o suite.jsonl
cp suite.jsonl suite.copy
cp -r "$demo/qad" model
expect 0 "$kld" capture --quiet --model "$demo/ref" --suite suite.jsonl -o ref.zst
cp ref.zst ref.copy
ln -s ref.zst link.zst
ln ref.zst hard.zst
for out in ref.zst ./ref.zst link.zst hard.zst; do
    expect 3 "$kld" capture --quiet --model model --suite suite.jsonl --ref ref.zst -o $out --force
    says 'is an input of this run'
done
expect 3 "$kld" capture --quiet --model model --suite suite.jsonl -o suite.jsonl --force
expect 3 "$kld" capture --quiet --model model --suite suite.jsonl -o model/model.safetensors --force
expect 0 "$kld" capture --quiet --model model --suite suite.jsonl --ref ref.zst -o cand.zst
cp cand.zst cand.copy
expect 3 "$kld" compare --quiet ref.zst cand.zst --json=link.zst
expect 3 "$kld" compare --quiet ref.zst cand.zst --json=cand.zst
expect 3 "$kld" logits --quiet --model model --ids 1,2 -o model/model.safetensors
printf '\x93NUMPY\x01\x00\x46\x00%-69s\n' "{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }" >ids.npy
printf '\x05\x00\x00\x00' >>ids.npy
cp ids.npy ids.copy
expect 3 "$kld" logits --quiet --model model --ids ids.npy -o ids.npy
says 'is an input of this run'
cmp model/model.safetensors "$demo/qad/model.safetensors" || fail "the checkpoint was replaced"
for f in text suite ref cand ids; do
    cmp $f.copy "$(ls $f.jsonl $f.zst $f.npy 2>/dev/null)" || fail "$f was replaced"
done
ls ./*.partial* model/*.partial* 2>/dev/null && fail "a refused run left a partial file"
expect 0 "$kld" logits --quiet --model model --ids ids.npy -o out.npy
