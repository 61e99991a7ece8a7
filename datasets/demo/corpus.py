#!/usr/bin/env python3
"""Collect the demo's text from Debian packages: training text and held-out text.

    corpus.py --work DIR [--any-version]

Needs Debian 12 (bookworm) on amd64 with apt-get and dpkg; no Python package outside the standard library.
Packages go to DIR/debs (those already there are used as they are, so a package that has left the mirror can
be put there by hand from https://snapshot.debian.org), their files to DIR/files. Results:

    DIR/train.jsonl      {"text", "source"} a line, one document each
    heldout.jsonl        {"text", "source", "cluster", "stratum"} a line, beside this script
    sources.json         every package: version, SHA-256 of the .deb, licence, holders, bytes used

The result depends on the package versions alone: documents are ordered by name, and where a choice is made
(a package larger than its share, the held-out documents) it follows the SHA-256 of the document's name.
"""
import argparse
import gzip
import hashlib
import html.parser
import io
import json
import pathlib
import re
import struct
import subprocess
import unicodedata
import zlib

HERE = pathlib.Path(__file__).resolve().parent
SHARE = 6_000_000          # most training characters taken from one package, so that none dominates
EXCERPT = (2500, 3600)     # characters of a held-out document: cut at a paragraph inside this range


# ---------------------------------------------------------------- markup to plain text

class Html(html.parser.HTMLParser):
    """Block elements become paragraphs; navigation, scripts and metadata are dropped."""
    BLOCK = set("p div li dt dd h1 h2 h3 h4 h5 h6 tr table ul ol dl section article blockquote title td th "
                "page item note steps list terms desc body".split())
    DROP_TAG = set("script style head nav footer button svg select form info comment table colophon".split())
    DROP_NAME = set("navheader navfooter docnav nosearch sphinxsidebar related headerlink toc toplang bottomlang "
                    "page-header path quickview footer up menu contents fancy_toc fancy_title banner topic "
                    "copyright legalnotice revhistory author directive-list".split())
    VOID = set("area base br col embed hr img input link meta source track wbr".split())

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.out, self.buf, self.pre, self.drop, self.depth = [], [], 0, None, 0

    def flush(self):
        text = "".join(self.buf)
        text = text.strip("\n") if self.pre else " ".join(text.split())
        if text.strip(" \n¶"):
            self.out.append(text.rstrip(" ¶"))
        self.buf = []

    def handle_starttag(self, tag, attrs):
        if self.drop:                       # count only the dropped tag itself: unclosed <li> and <p> are common
            self.depth += tag == self.drop
            return
        names = {w for k, v in attrs if k in ("class", "id") and v for w in v.lower().split()}
        if tag not in self.VOID and (tag in self.DROP_TAG or names & self.DROP_NAME):
            self.flush()
            self.drop, self.depth = tag, 1
        elif tag in ("pre", "screen"):
            self.flush()
            self.pre += 1
        elif tag in self.BLOCK:
            self.flush()
        elif tag == "br":
            self.buf.append("\n" if self.pre else " ")

    def handle_endtag(self, tag):
        if self.drop:
            self.depth -= tag == self.drop
            if not self.depth:
                self.drop = None
        elif tag in ("pre", "screen"):
            self.flush()
            self.pre = max(0, self.pre - 1)
        elif tag in self.BLOCK:
            self.flush()

    def handle_data(self, data):
        if not self.drop:
            self.buf.append(data)


def from_html(text):
    main = re.search(r'<div[^>]*role="main"', text)          # Sphinx pages: the article without the side bars
    if main:
        text = text[main.start():].split('<div class="sphinxsidebar"')[0]
    parser = Html()
    parser.feed(text)
    parser.flush()
    return "\n\n".join(parser.out)


def unwrap(text):
    """Join hard-wrapped prose; leave indented, listed and drawn lines alone."""
    out = []
    for block in re.split(r"\n[ \t]*\n+", text):
        lines = block.split("\n")
        prose = len(lines) > 1 and not any(re.match(r"[\s*#|+=>.:0-9-]", x) for x in lines[1:])
        out.append(" ".join(x.strip() for x in lines) if prose else block)
    return "\n\n".join(out)


def dedent(text):
    return re.sub(r"(?m)^   (?=\S)", "", text)


def from_rst(text):
    text = re.sub(r"(?m)^(\.\. .*|   :[a-z-]+:.*|:[A-Za-z -]+:( .*)?|[=~^*#-]{3,}|.*SPDX-License.*)\n", "", text)
    text = re.sub(r":[a-zA-Z:+-]+:`~?!?([^`<]*?)\s*(<[^`]*>)?`", r"\1", text)
    text = re.sub(r"`([^`<]+?)\s*<[^`]*>`__?", r"\1", text)
    return unwrap(text.replace("``", "").replace("::\n", ":\n"))


def from_asciidoc(text):
    text = re.sub(r"(?m)^(ifn?def::.*|endif::.*|include::.*|\[\[.*\]\]|[-=~^+]{3,}|:[a-z-]+:.*|//.*|\+)\n", "", text)
    text = re.sub(r"linkgit:([\w-]+)\[(\d)\]", r"\1(\2)", text)
    return unwrap(re.sub(r"<<[\w-]+,([^>]*)>>", r"\1", text))


def from_pod(text):
    text = re.sub(r"(?ms)^=begin .*?^=end .*?$|^=for .*?\n\n|^=encoding .*?$", "", text)
    text = re.sub(r"(?m)^=(head\d|item|over|back|cut|pod)[ \t]*(\*|\d+\.?)?", "", text)
    for _ in range(3):                                       # codes nest; take the innermost first
        text = re.sub(r"[BCFIS](?:<< (.*?) >>|<([^<>]*)>)", lambda m: m[1] or m[2] or "", text, flags=re.S)
        text = re.sub(r"L<(?:([^<>|]*)\|)?([^<>]*)>", lambda m: m[1] or m[2], text)
        text = re.sub(r"[XZ]<[^<>]*>", "", text)
    for name, char in (("lt", "<"), ("gt", ">"), ("sol", "/"), ("verbar", "|")):
        text = text.replace(f"E<{name}>", char)
    return unwrap(text)


def from_markdown(text):
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return unwrap(re.sub(r"(?m)^#+ *|[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}|^-{3,}$", "", text))


# ---------------------------------------------------------------- where documents come from

def read(path):
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix in (".gz", ".dz") else data).decode("utf-8", "replace")


def files(pattern, convert, skip=None):
    """Every file that matches is a document."""
    def documents(root, _debs):
        for path in sorted(root.glob(pattern)):
            if path.is_file() and not path.is_symlink() and not (skip and re.search(skip, str(path.relative_to(root)))):
                yield re.sub(r"(\.(html|rst|txt|pod|md|page|gz))+$", "", path.name), convert(read(path))
    return documents


def dictionary(name):
    """Entries of a dictd file, grouped into documents by the headword's first two letters."""
    def documents(root, _debs):
        groups = {}
        for entry in re.split(r"\n(?=\S)", read(root / f"usr/share/dictd/{name}.dict.dz")):
            if not entry.startswith("00") and re.match(r"[A-Za-z]{2}", entry):
                # the sources' own tags are noise here, and so are the braces of their cross references
                entry = re.sub(r"\n +\[(1913 Webster|WordNet 1\.5|PJC|[^\]\n]*\+PJC)\]|[{}]", "", entry)
                groups.setdefault(entry[:2].lower(), []).append(entry.strip())
        for key in sorted(groups):
            yield key, "\n\n".join(groups[key])
    return documents


def jargon(root, _debs):
    """The Jargon File: its chapters and appendices, and its entries grouped by their first two letters."""
    text = dedent(read(root / "usr/share/doc/jargon-text/jargon.txt.gz").replace("\xa0", " "))
    groups = {}
    parts = re.split(r"\n(?=(?:Chapter \d+|Appendix [A-C])\. |:\S[^\n]*:)", text)
    for part in parts[1:]:
        if part.startswith(":"):
            word = re.sub(r"[^a-z]", "", part[1:20].lower())[:2]
            groups.setdefault(word, []).append(unwrap(part.strip()))
        else:
            yield re.sub(r"\W+", "-", part.split("\n")[0]).strip("-").lower(), unwrap(part)
    for key in sorted(groups):
        if len(key) == 2:
            yield "entries-" + key, "\n\n".join(groups[key])


def austen(root, _debs):
    """R keeps the novels as serialized string vectors: zlib chunks, each a list of (flags, length, bytes)."""
    data = io.BytesIO((root / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes())
    while data.read(4):                                      # the unpacked length, not needed
        unzip = zlib.decompressobj()
        raw = unzip.decompress(data.read())
        data.seek(-len(unzip.unused_data), 2)
        at = raw.index(b"\0\0\0\x10") + 4
        count, at, lines = struct.unpack(">I", raw[at:at + 4])[0], at + 4, []
        for _ in range(count):
            size = struct.unpack(">i", raw[at + 4:at + 8])[0]
            lines.append(raw[at + 8:at + 8 + max(size, 0)].decode("utf-8", "replace"))
            at += 8 + max(size, 0)
        yield re.sub(r"\W+", "-", lines[0].lower()), unwrap("\n".join(lines)).replace("_", "")


def bible(root, debs):
    """The text is stored compressed; its own program prints it: "Ruth 1", then numbered, wrapped verses."""
    program = extract(debs, "bible-kjv") / "usr/bin/bible"
    out = subprocess.run([program, "-p", root / "usr/lib", "Gen1:1-Rev22:21"], stdin=subprocess.DEVNULL,
                         capture_output=True, check=True, text=True).stdout
    books = {}
    for chapter in re.split(r"\n(?=[1-3A-Z][^\n]* \d+\n\n  1 )", out):
        title, _, verses = chapter.strip().partition("\n")
        book = title.rpartition(" ")[0].lower().replace(" ", "-")
        books.setdefault(book, []).append(title + "\n\n" + " ".join(re.sub(r"(?m)^ +\d+ ", "", verses).split()))
    for book, chapters in books.items():
        yield book, "\n\n".join(chapters)


def opticks(root, _debs):
    text = read(root / "usr/share/go-1.19/src/testdata/Isaac.Newton-Opticks.txt").replace("\r", "")
    yield "newton-opticks", unwrap(text[text.index("OPTICKS:"):]).replace("_", "")


DOC = "usr/share/doc/"
GPL2 = "GPL-2.0-or-later"
# package, version, licence, holders, stratum, documents, held-out documents (a count, or their names)
SOURCES = [
    ("r-cran-janeaustenr", "1.0.0-1", "public domain (texts), MIT (package)", "Jane Austen (d. 1817); package: Julia Silge",
     "literature", austen, ["northanger-abbey", "persuasion"]),
    ("golang-1.19-src", "1.19.8-2", "public domain (the one text used)", "Isaac Newton (d. 1727)",
     "literature", opticks, ["newton-opticks"]),
    ("bible-kjv-text", "4.38", "public domain (text)", "King James Version (1611); file: Chip Chapin",
     "scripture", bible, ["ruth", "jonah", "esther", "ecclesiastes", "james", "philippians"]),
    ("jargon-text", "4.4.7-4.1", "public domain", "The Jargon File 4.4.7, ed. Eric S. Raymond",
     "essay", jargon, ["chapter-5-hacker-writing-style", "chapter-9-crackers-phreaks-and-lamers",
                       "chapter-4-jargon-construction", "appendix-b-a-portrait-of-j-random-hacker",
                       "entries-ho", "entries-mu", "entries-tu"]),
    ("dict-wn", "1:3.0-37", "WordNet-3.0", "Princeton University", "encyclopedic", dictionary("wn"),
     ["ob", "gl", "vi", "ju"]),
    ("sqlite3-doc", "3.40.1-2+deb12u2", "public domain", "D. Richard Hipp and others", "reference",
     files(DOC + "sqlite3/*.html", from_html, r"(doclist|keyword_index|sitemap|changes|chronology|toc|hlr)"), 5),
    ("postgresql-doc-15", "15.20-0+deb12u1", "PostgreSQL",
     "PostgreSQL Global Development Group; Regents of the University of California", "reference",
     files(DOC + "postgresql-doc-15/html/*.html", from_html, r"/(release-|bookindex|biblio|errcodes|features)"), 5),
    ("python3.11-doc", "3.11.2-6+deb12u9", "PSF-2.0", "Python Software Foundation and others", "reference",
     files(DOC + "python3.11/html/**/*.html", from_html, r"/(genindex|py-modindex|search|_s|_d|license|copyright)|changelog"),
     3),
    ("apache2-doc", "2.4.71-1~deb12u1", "Apache-2.0", "The Apache Software Foundation", "manual",
     files(DOC + "apache2-doc/manual/en/**/*.html", from_html, r"/(license|sitemap|index|directives|quickreference)"), 5),
    ("debian-handbook", "11.20220922", "CC-BY-SA-3.0 (also GPL-2.0-or-later)",
     "Raphaël Hertzog, Roland Mas, Freexian SARL", "manual",
     files(DOC + "debian-handbook/html/en-US/*.html", from_html, r"/(index|ix01)"), 4),
    ("gnome-user-docs", "43.0-2", "CC-BY-SA-3.0", "Shaun McCance and the GNOME documentation authors", "manual",
     files("usr/share/help/C/gnome-help/*.page", from_html), 0),
    ("debian-faq", "11.1", "Debian FAQ licence (copyleft, GNU-manual style)", "Software in the Public Interest", "manual",
     files(DOC + "debian/FAQ/*.en.html", from_html), 0),
    ("debian-reference-en", "2.100", GPL2, "Osamu Aoki", "manual",
     files("usr/share/debian-reference/*.en.html", from_html), 0),
    ("maint-guide", "1.2.53", GPL2, "Josip Rodin, Osamu Aoki", "manual",
     files(DOC + "maint-guide/html/*.en.html", from_html), 0),
    ("git-doc", "1:2.39.5-0+deb12u3", "GPL-2.0-only", "Linus Torvalds and others", "manual",
     files(DOC + "git/html/**/*.txt", from_asciidoc, r"RelNotes"), 0),
    ("linux-doc-6.1", "6.1.192-3", "GPL-2.0-only (files under the GFDL left out)", "Linus Torvalds and others", "manual",
     files(DOC + "linux-doc-6.1/Documentation/**/*.rst.gz", from_rst,
           r"/(translations|userspace-api/media|driver-api/media)/"), 0),
    ("perl-doc", "5.36.0-7+deb12u4", "GPL-1.0-or-later or Artistic-1.0", "Larry Wall and others", "manual",
     files("usr/share/perl/5.36.0/pod/*.pod", from_pod, r"delta"), 0),
    ("bind9-doc", "1:9.18.49-1~deb12u3", "MPL-2.0", "Internet Systems Consortium", "manual",
     files(DOC + "bind9-doc/arm/*.html", from_html, r"/(genindex|search|notes)"), 0),
    ("postfix-doc", "3.7.11-0+deb12u1", "IPL-1.0 or EPL-2.0", "Wietse Venema and others", "manual",
     files(DOC + "postfix/html/*.html", from_html), 0),
    ("installation-guide-amd64", "20230508+deb12u1", GPL2, "The Debian Installer team", "manual",
     files(DOC + "installation-guide-amd64/en/*.html", from_html), 0),
    ("anarchism", "15.3-3", GPL2, "The Anarchist FAQ Editorial Collective", "essay",
     files(DOC + "anarchism/markdown/*", from_markdown, r"links|biblio|changelog"), 0),
    ("dict-gcide", "0.48.5+nmu2", GPL2, "GCIDE: Patrick J. Cassidy; from Webster (1913)", "encyclopedic",
     dictionary("gcide"), 0),
    ("dict-foldoc", "20230119-1", "GFDL-1.1-or-later, no invariant sections", "Denis Howe", "encyclopedic",
     dictionary("foldoc"), 0),
]
TOOLS = [("bible-kjv", "4.38")]       # the program that unpacks bible-kjv-text; none of its text is used


# ---------------------------------------------------------------- packages

def fetch(debs, package, version, any_version):
    debs.mkdir(parents=True, exist_ok=True)
    if not list(debs.glob(f"{package}_*.deb")):
        subprocess.run(["apt-get", "download", "-q", package if any_version else f"{package}={version}"],
                       cwd=debs, check=True, stdout=subprocess.DEVNULL)
    deb, = debs.glob(f"{package}_*.deb")
    found = subprocess.run(["dpkg-deb", "-f", deb, "Version"], capture_output=True, check=True, text=True).stdout.strip()
    if found != version and not any_version:
        raise SystemExit(f"{deb}: version {found}, expected {version} (--any-version accepts it; the text will differ)")
    return deb, found


def extract(debs, package):
    root = debs.parent / "files" / package
    if not root.exists():
        deb, = debs.glob(f"{package}_*.deb")
        root.mkdir(parents=True)
        subprocess.run(["dpkg", "-x", deb, root], check=True)
    return root


# ---------------------------------------------------------------- cleaning and choosing

def clean(text):
    """Normalize; drop paragraphs that are not mostly words (tables, drawings, lists of options)."""
    text = unicodedata.normalize("NFC", text).replace("\xa0", " ").replace("\u200b", "").replace("\r", "")
    keep = []
    for block in re.split(r"\n\s*\n", re.sub(r"[ \t]+\n", "\n", text)):
        letters = sum(c.isalpha() or c == " " for c in block)
        address = re.search(r"\w@\w[\w.-]*\.\w", block)      # nobody's mail address belongs into a sample
        if block.strip() and letters >= 0.7 * len(block) and "\ufffd" not in block and not address:
            keep.append(block.strip("\n"))
    return "\n\n".join(keep)


def usable(text):
    ascii_share = sum(c < "\x7f" for c in text) / max(1, len(text))
    free = not re.search(r"GFDL|Free Documentation License", text)      # single files under another licence
    english = text.lower().count(" the ") * 1500 >= len(text)
    return len(text) >= 400 and ascii_share > 0.95 and english and free


def runs(text, n=10):
    """Every run of n words."""
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[i:i + n]) for i in range(len(words) - n + 1)}


def excerpt(text):
    """A run of whole paragraphs from the middle of the document, where its own prose is densest."""
    blocks = text.split("\n\n")
    start, size = len(blocks) // 3, lambda b: sum(map(len, b)) + 2 * len(b)
    while start and size(blocks[start:]) < EXCERPT[1]:
        start -= 1
    end = start + 1
    while end < len(blocks) and size(blocks[start:end]) < EXCERPT[0]:
        end += 1
    piece = "\n\n".join(blocks[start:end])
    if len(piece) > EXCERPT[1]:                          # a long paragraph: end at a sentence instead
        piece = piece[:piece.rfind(". ", 0, EXCERPT[1]) + 1]
    return piece


def order(package, name):
    return hashlib.sha256(f"{package}/{name}".encode()).hexdigest()


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--work", type=pathlib.Path, required=True)
    args.add_argument("--any-version", action="store_true")
    args = args.parse_args()
    debs, seen, train, held, report = args.work / "debs", set(), [], [], []
    for package, version in TOOLS:
        fetch(debs, package, version, args.any_version)
    documents = []
    for package, version, licence, holders, stratum, source, wanted in SOURCES:
        deb, found = fetch(debs, package, version, args.any_version)
        docs = {}
        for name, text in source(extract(debs, package), debs):
            text = clean(text)
            if usable(text) and name not in docs:
                docs[name] = text
        if isinstance(wanted, int):
            prose = [n for n in docs if len(docs[n]) > 5000 and
                     sum(c.isalpha() or c == " " for c in docs[n]) > 0.9 * len(docs[n])]
            wanted = sorted(prose, key=lambda n: order(package, n))[:wanted]
        documents.append((package, docs, wanted))
        for name in wanted:
            kind = "encyclopedic" if name.startswith("entries-") else stratum
            held.append({"text": excerpt(docs[name]), "source": package, "cluster": f"{package}/{name}", "stratum": kind})
        report.append({"package": package, "version": found, "deb_sha256": hashlib.sha256(deb.read_bytes()).hexdigest(),
                       "licence": licence, "holders": holders, "train_documents": 0, "train_bytes": 0,
                       "heldout_documents": len(wanted)})
    # A paragraph of a held-out document never appears in the training text, nor does any paragraph twice; and
    # one dictionary quotes another, so a paragraph that shares ten words in a row with an excerpt goes too.
    secret = set().union(*(runs(h["text"]) for h in held))
    key = lambda block: hash(" ".join(block.split()).lower())
    for package, docs, wanted in documents:
        for name in wanted:
            seen.update(key(b) for b in docs[name].split("\n\n"))
    for (package, docs, wanted), row in zip(documents, report):
        left = SHARE
        for name in sorted(docs, key=lambda n: order(package, n)):
            blocks = [b for b in docs[name].split("\n\n")
                      if len(b) < 40 or (key(b) not in seen and secret.isdisjoint(runs(b)))]
            seen.update(key(b) for b in blocks)
            text = "\n\n".join(blocks)
            if name not in wanted and left > 0 and len(text) >= 400:
                left -= len(text)
                row["train_documents"] += 1
                row["train_bytes"] += len(text.encode())
                train.append({"text": text, "source": package})
    train.sort(key=lambda d: hashlib.sha256(d["text"].encode()).hexdigest())
    dump = lambda rows: "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
    (args.work / "train.jsonl").write_text(dump(train))
    (HERE / "heldout.jsonl").write_text(dump(held))
    (HERE / "sources.json").write_text(json.dumps({
        "packages": report, "tools": [f"{p}={v}" for p, v in TOOLS],
        "train": {"documents": len(train), "bytes": sum(r["train_bytes"] for r in report),
                  "sha256": hashlib.sha256(dump(train).encode()).hexdigest()},
        "heldout": {"documents": len(held), "bytes": sum(len(h["text"].encode()) for h in held),
                    "sha256": hashlib.sha256(dump(held).encode()).hexdigest()}}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
