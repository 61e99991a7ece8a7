#!/usr/bin/env python3
"""Compares kld's token ids with Hugging Face tokenizers' on any amount of text.

    tokenizer_check.py KLD TOKENIZER_DIR TEXTFILE...      exit status 0 when every id agrees

kld writes a suite (JSON lines); the ids are all "ids" arrays in order, with one window that holds the whole file.
"""
import json, pathlib, subprocess, sys, tempfile
from tokenizers import Tokenizer

WINDOW = "1000000000"


def ids_in(node):
    """Every "ids" array below a JSON value, in order."""
    if isinstance(node, dict):
        for k, v in node.items():
            if k == "ids" and isinstance(v, list):
                yield from v
            else:
                yield from ids_in(v)
    elif isinstance(node, list):
        for v in node:
            yield from ids_in(v)


def kld_ids(kld, tokenizer, text):
    with tempfile.TemporaryDirectory() as tmp:
        out = pathlib.Path(tmp) / "suite.jsonl"
        subprocess.run([kld, "suite", "build", "--text", text, "--tokenizer", tokenizer, "--window", WINDOW, "--bos", "none",
                        "-o", out], check=True)
        with open(out, encoding="utf-8") as f:
            return [i for line in f if line.strip() for i in ids_in(json.loads(line))]


def show(tok, ids, at):
    part = ids[max(0, at - 4): at + 6]
    return f"{part} {[tok.id_to_token(i) for i in part]}"


def check(kld, folder, tok, text):
    # newline="" keeps CRLF as it is in the file
    want = tok.encode(open(text, encoding="utf-8", newline="").read(), add_special_tokens=False).ids
    got = kld_ids(kld, folder, text)
    first = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), None)
    if first is None and len(want) != len(got):
        first = min(len(want), len(got))
    size = pathlib.Path(text).stat().st_size
    print(f"{text}: {size} bytes, {len(want)} ids, kld {len(got)}:", "equal" if first is None else f"first difference at id {first}")
    if first is not None:
        print("  want", show(tok, want, first))
        print("  got ", show(tok, got, first))
        print("  after", repr(tok.decode(want[max(0, first - 12): first], skip_special_tokens=False)))
    return first is None


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    kld, folder, texts = sys.argv[1], sys.argv[2], sys.argv[3:]
    tok = Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
    sys.exit(0 if all([check(kld, folder, tok, t) for t in texts]) else 1)
