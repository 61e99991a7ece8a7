#!/usr/bin/env python3
"""Real text as documents, for intervals by cluster: JSON Lines of pieces of about 1 KB.

    documents.py OUT.jsonl [TEXTFILE...]

Without files: what a Debian machine with Python has (tests/oracle/make_text.py). Then a cluster is a
catalogue, manual page or source file and gives one document; a stratum is the kind of text. A given file is a cluster, all its
pieces are documents, and its suffix is the stratum.
"""
import itertools, json, pathlib, sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "oracle"))
import make_text

CLUSTERS = 45
MIN, MAX = 700, 1200  # bytes


def pieces(text):
    """Cut at line ends, preferably at empty lines; what is shorter or has longer lines is left out."""
    out, size = [], 0
    for line in text.splitlines(keepends=True):
        n = len(line.encode())
        if size + n > MAX or (size >= MIN and not line.strip()):
            if size >= MIN:
                yield "".join(out)
            out, size = [], 0
        if n <= MAX:
            out.append(line)
            size += n
    if size >= MIN:
        yield "".join(out)


def sources(files):
    if files:
        for f in files:
            yield pathlib.Path(f).suffix.lstrip(".") or "text", f, pathlib.Path(f).read_text(encoding="utf-8")
        return
    kinds = {"messages": make_text.messages(), "manuals": make_text.manuals(), "sources": make_text.sources()}
    # In turn, so that a machine without manual pages still gives enough.
    for row in itertools.zip_longest(*(list(spread(list(v))) for v in kinds.values())):
        for kind, item in zip(kinds, row):
            if item:
                yield kind, f"{kind}-{item[0]}", item[1]


def spread(items):
    """The same items, far apart ones first: a catalogue's neighbours are of the same language."""
    step = max(1, len(items) // (CLUSTERS // 3))
    for first in range(step):
        yield from list(enumerate(items))[first::step]


def documents(files):
    n = 0
    for stratum, name, text in sources(files):
        found = list(itertools.islice(pieces(text.replace("\r\n", "\n")), None if files else 1))
        for i, p in enumerate(found):
            yield {"text": p, "source": f"{name}#{i}", "cluster": name, "stratum": stratum}
        n += bool(found)
        if n == CLUSTERS and not files:
            return


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    docs = list(documents(sys.argv[2:]))
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        for d in docs:
            f.write(json.dumps(d, ensure_ascii=False) + "\n")
    n = {}
    for d in docs:
        n[d["stratum"]] = n.get(d["stratum"], 0) + 1
    print(f"{len(docs)} documents of {len({d['cluster'] for d in docs})} clusters,", sum(len(d["text"].encode()) for d in docs), "bytes:", n)
    if len(docs) < 40:
        sys.exit("fewer than 40 documents: too little text")
