# Keys, signatures and receipts: made, checked (by openssl alone too), changed, refused.
. "$(dirname "$0")/lib/t.sh"
ids_suite 12 40 >suite.jsonl
expect 0 "$kld" capture --model "$models/qwen3" --suite suite.jsonl -o ref.zst
expect 0 "$kld" capture --model "$models/qwen3-nvfp4-modelopt" --suite suite.jsonl --ref ref.zst -o c.zst
expect 0 "$kld" capture --model "$models/qwen3" --suite suite.jsonl --ref ref.zst -o floor.zst --hash full

# Keys: nobody else's to read, never overwritten unasked, and openssl reads them.
umask 022
expect 0 "$kld" keygen -o me
shows 'me.pub checks'
[ "$(stat -c %a me.key)" = 600 ] || fail "mode of the private key: $(stat -c %a me.key)"
grep -q "$(sed -n 2p me.key)" out err && fail "the private key was printed"
cp me.key me.bak
expect 3 "$kld" keygen -o me
says 'me.key: exists already; --force'
rm me.pub
expect 3 "$kld" keygen -o me
cmp me.key me.bak || fail "a refused keygen changed the key"
openssl pkey -in me.key -pubout -out me.pub || fail "openssl does not read the private key"
openssl pkey -pubin -in me.pub -noout || fail "openssl does not read the public key"
expect 0 "$kld" keygen -o other --json
shows '"key_id"'
cp other.key before
expect 0 "$kld" keygen -o other --force
cmp -s other.key before && fail "--force kept the key"
openssl genpkey -algorithm ed25519 -out ssl.key
expect 2 "$kld" keygen me
id=$(openssl pkey -pubin -in me.pub -outform DER | tail -c 32 | sha256sum | cut -c 1-16)

# Captures: 96 bytes more, the same content, accepted everywhere.
cp ref.zst plain.zst
chmod 640 ref.zst
expect 0 "$kld" sign --key me.key ref.zst
shows "signed by key $id"
[ $(($(stat -c %s ref.zst) - $(stat -c %s plain.zst))) = 96 ] || fail "a signature is not 96 bytes"
[ "$(stat -c %a ref.zst)" = 640 ] || fail "signing changed the permissions"
[ "$(ls ./*.partial 2>/dev/null)" = "" ] || fail "signing left a partial"
expect 0 "$kld" inspect ref.zst
shows "signed by key $id"
expect 0 "$kld" inspect --json ref.zst
digest=$(field out digest)
expect 0 "$kld" inspect --json plain.zst
[ "$(field out digest)" = "$digest" ] || fail "signing changed the content digest"
[ "$(field out signed_by)" = null ] || fail "signed by nobody"
expect 0 zstd -q -t ref.zst
expect 0 "$kld" verify ref.zst c.zst
expect 0 "$kld" verify --key me.pub ref.zst
expect 3 "$kld" verify --key other.pub ref.zst
says "ref.zst: is signed by key $id, not by"
expect 3 "$kld" verify --key me.pub c.zst
says 'c.zst: is not signed'
expect 0 "$kld" capture --model "$models/qwen3-nvfp4-modelopt" --suite suite.jsonl --ref ref.zst -o again.zst
cmp again.zst c.zst || fail "a signed reference gives another candidate"
expect 3 "$kld" sign --key other.key ref.zst
says 'already'
cp ref.zst signed.zst
expect 0 "$kld" sign --key me.key ref.zst
cmp ref.zst signed.zst || fail "signing twice changed the file"
expect 0 "$kld" sign --key ssl.key --force ref.zst
expect 0 "$kld" sign --key me.key --force ref.zst
cmp ref.zst signed.zst || fail "the same key gives another signature"
: >c.zst.partial
expect 3 "$kld" sign --key me.key c.zst
says 'c.zst.partial: exists'
rm c.zst.partial

# Receipts: equal but for time and host, signed at once or later.
compare="$kld compare ref.zst c.zst floor.zst --fail-above mean_kl=10"
expect 0 $compare --receipt r.json --sign-key me.key
SOURCE_DATE_EPOCH=1 expect 0 $compare --receipt r2.json --json=c.json
expect 0 "$kld" sign --key me.key r2.json
diff r.json r2.json >diff
[ "$(grep -c '^[<>]' diff)" = 2 ] && grep -q '"time"' diff || fail "receipts differ: $(cat diff)"
grep -qE 'zst|/tmp|"path"' r.json && fail "a path is in the receipt"
[ "$(grep -c '"model_full_digest": "[0-9a-f]\{64\}"' r.json)" = 1 ] || fail "the full digest of one capture"
grep -q '"limit": 10.0' r.json || fail "the gate is not in the receipt"
grep -q '"limit": 10.0' c.json || fail "the gate is not in the result"
expect 1 "$kld" compare ref.zst c.zst --fail-above mean_kl=1e-9 --receipt failed.json
grep -q '"passed": false' failed.json || fail "the failed gate is not in its receipt"
expect 0 "$kld" verify r.json
shows "signed by key $id"
shows '0 of its 3 captures'
cp r.json renamed
expect 0 "$kld" verify renamed
shows 'renamed: whole; 0 of its 3'
expect 0 "$kld" verify --key me.pub r.json plain.zst c.zst floor.zst
shows '3 of its 3 captures'
shows 'c.zst: whole.*not signed; named by r.json'
expect 0 "$kld" verify --json --key me.pub r.json c.zst
shows '"captures_found": 1'
expect 3 "$kld" verify --key other.pub r.json
says 'not by'
expect 3 "$kld" verify --key me.pub failed.json
says 'failed.json: is not signed'
expect 0 "$kld" capture --model "$models/qwen3" --suite suite.jsonl -o k16.zst --top-k 16
expect 3 "$kld" verify r.json k16.zst
says 'k16.zst: its content'
expect 3 "$kld" verify c.json
says 'no receipt of kld'
expect 2 "$kld" compare ref.zst c.zst --sign-key me.key
expect 2 $compare --receipt x.json --json=x.json
expect 3 $compare --receipt ref.zst
expect 3 $compare --receipt me.key --sign-key me.key
expect 3 "$kld" compare ref.zst c.zst --receipt x.json --sign-key .
[ ! -e x.json ] || fail "a refused key left a receipt"

# With openssl alone, as docs/receipts.md says it.
value() { sed -n "s/.*\"$1\": \"\([0-9a-f]*\)\".*/\1/p" r.json | tail -n 1; }
bytes() { printf "$(printf %s "$1" | sed 's/../\\x&/g')"; }
{ printf 'kld receipt signature 1\0' && bytes "$(value content_sha256)"; } >message
bytes "$(value signature)" >signature
openssl pkeyutl -verify -pubin -inkey me.pub -rawin -in message -sigfile signature >/dev/null || fail "openssl refuses the receipt"
openssl pkeyutl -verify -pubin -inkey other.pub -rawin -in message -sigfile signature >/dev/null 2>&1 && fail "openssl accepts another key"
{ printf 'kld capture signature 1\0' && bytes "$(printf %s "$digest" | tr -d '"')"; } >message
tail -c 108 ref.zst | head -c 64 >signature
openssl pkeyutl -verify -pubin -inkey me.pub -rawin -in message -sigfile signature >/dev/null || fail "openssl refuses the capture"
if command -v python3 >/dev/null; then
    expect 0 python3 "$root/tests/oracle/check_receipt.py" r.json r2.json failed.json
    shows "signed by $id"
fi

# One digit changed, a number written otherwise, a cut, a later version, a key twice.
edit() { sed "$1" r.json >bad.json && ! cmp -s r.json bad.json || fail "not edited: $1"; }
edit '0,/"positions": /s//"positions": 1/'
expect 3 "$kld" verify bad.json
says "bad.json: 'content' was changed"
expect 3 "$kld" sign --key me.key bad.json
edit 's/0\.94999999999999996/0.95/'
expect 3 "$kld" verify bad.json
says 'not written as kld writes it'
edit 's/"kld_receipt": 1/"kld_receipt": 2/'
expect 4 "$kld" verify bad.json
edit 's/"kld_receipt": 1,/& "kld_receipt": 1,/'
expect 3 "$kld" verify bad.json
says 'duplicate'
edit "s/$(value signature)/$(value signature | tr 0-9 1-90)/"
expect 3 "$kld" verify bad.json
says "not one of key $id"
head -c 400 r.json >bad.json
expect 3 "$kld" verify bad.json

# Keys that are none.
expect 3 "$kld" sign --key me.pub c.zst
says 'public key'
expect 3 "$kld" verify --key me.key ref.zst
says 'private key'
expect 3 "$kld" sign --key . c.zst
says 'not a regular file'
expect 3 "$kld" sign --key none c.zst
openssl pkey -in me.key -aes128 -passout pass:x -out locked.key
expect 3 "$kld" sign --key locked.key c.zst
says 'encrypted'
openssl genpkey -algorithm x25519 -out x25519.key
expect 3 "$kld" sign --key x25519.key c.zst
says 'X25519'
chmod 644 me.key
expect 0 "$kld" sign --key me.key c.zst
says 'warning: me.key: others can read'
expect 0 "$kld" verify --key me.pub c.zst ref.zst
