#!/usr/bin/env python3
"""An independent check of receipts, written from docs/receipts.md alone, with the standard library alone: version, members,
digest of the canonical content, signature.

    check_receipt.py RECEIPT...
"""
import hashlib, json, sys
import ed25519

SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

def need(ok, what):
    if not ok:
        raise ValueError(what)

def unique(pairs):
    need(len({k for k, _ in pairs}) == len(pairs), "duplicate key")
    return dict(pairs)

def text(s):
    return '"' + "".join(SHORT.get(c, c if c >= " " else f"\\u{ord(c):04X}") for c in s) + '"'

def real(x):
    digits, e, exponent = f"{x:.17g}".partition("e")
    if e:
        return f"{digits}e{int(exponent)}"
    return digits if "." in digits else digits + ".0"

def canonical(v):
    if isinstance(v, dict):
        return "{" + ",".join(text(k) + ":" + canonical(v[k]) for k in sorted(v)) + "}"
    if isinstance(v, list):
        return "[" + ",".join(map(canonical, v)) + "]"
    if isinstance(v, str):
        return text(v)
    if isinstance(v, float):
        return real(v)
    return {None: "null", True: "true", False: "false"}[v] if v is None or isinstance(v, bool) else str(v)

def check(path):
    r = json.loads(open(path, "rb").read().decode(), object_pairs_hook=unique)
    need(r.get("kld_receipt") == 1, "version")
    need(set(r) == {"kld_receipt", "content", "content_sha256", "run", "signature"}, "members")
    need(set(r["run"]) == {"time", "host"}, "run")
    digest = hashlib.sha256(canonical(r["content"]).encode()).digest()
    need(digest.hex() == r["content_sha256"], "content_sha256")
    s, who = r["signature"], "nobody"
    if s is not None:
        need(set(s) == {"algorithm", "key_id", "public_key", "signature"} and s["algorithm"] == "ed25519", "signature")
        key, sig = bytes.fromhex(s["public_key"]), bytes.fromhex(s["signature"])
        need(s["key_id"] == ed25519.key_id(key), "key_id")
        need(ed25519.verify(key, sig, b"kld receipt signature 1\0" + digest), "signature")
        who = s["key_id"]
    captures = [c["content_digest"] for c in (r["content"]["reference"], *r["content"]["candidates"])]
    print(f"{path}: content {digest.hex()}, signed by {who}; captures " + " ".join(captures))

if __name__ == "__main__":
    need(len(sys.argv) > 1, __doc__)
    for name in sys.argv[1:]:
        check(name)
