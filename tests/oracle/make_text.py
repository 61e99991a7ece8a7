#!/usr/bin/env python3
"""Writes over 1 MB of mixed-language text and code, from what a Debian machine with Python has, for tokenizer_check.py.

    make_text.py OUT

Sources: translated messages (.mo) and manual pages, the Python standard library, Unicode character names, and random strings with
a fixed seed. The same machine gives the same bytes; every source but the last may be missing.
"""
import gettext, gzip, pathlib, random, sys, sysconfig, unicodedata

SHARE = 400_000  # at most this many characters from one source


def take(pieces, limit=SHARE):
    out, n = [], 0
    for p in pieces:
        p = p.replace("\0", "")
        out.append(p)
        n += len(p)
        if n >= limit:
            break
    return "\n".join(out)


def messages():
    # A few files of each language, not all files of the first one.
    by_lang = {}
    for f in sorted(pathlib.Path("/usr/share/locale").glob("*/LC_MESSAGES/*.mo")):
        by_lang.setdefault(f.parts[-3], []).append(f)
    for lang, files in sorted(by_lang.items()):
        for f in files[:3]:
            try:
                with open(f, "rb") as fp:
                    catalog = gettext.GNUTranslations(fp)._catalog
            except (OSError, UnicodeDecodeError, ValueError):
                continue
            yield take((m for m in catalog.values() if isinstance(m, str)), 12_000)


def manuals():
    for f in sorted(pathlib.Path("/usr/share/man").glob("*/man*/*.gz"))[::7]:
        try:
            yield gzip.decompress(f.read_bytes()).decode("utf-8")[:20_000]
        except (OSError, UnicodeDecodeError, EOFError):
            continue


def sources():
    for f in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[::3]:
        try:
            text = f.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        # Every other file with Windows line ends.
        yield text[:20_000] if len(text) % 2 else text[:20_000].replace("\n", "\r\n")


def names():
    for c in range(0x80, 0x30000, 17):
        name = unicodedata.name(chr(c), "")
        if name:
            yield f"{chr(c)} {name} {name.title()} {name.lower()}"


def random_strings(n=600_000):
    rnd = random.Random(271828)
    blocks = [(0x20, 0x7f)] * 8 + [(0xa0, 0x250), (0x250, 0x370), (0x370, 0x530), (0x530, 0x700), (0x900, 0xe00), (0xe00, 0x1200),
              (0x1200, 0x1800), (0x1e00, 0x2070), (0x2070, 0x2c00), (0x3000, 0x3400), (0x4e00, 0x9fff), (0xac00, 0xd7a4),
              (0xf900, 0xfb50), (0xfb50, 0xfe00), (0xfe20, 0xfff0), (0x10300, 0x10900), (0x1d400, 0x1d800), (0x1f000, 0x1fa00)]
    glue = ["", "", "", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u200d", "'s", "'LL", "'\u017f", "1", "123456", "\u0301", "\u0323", ".", "!!", "\n\n  "]
    out, size = [], 0
    while size < n:
        lo, hi = rnd.choice(blocks)
        # Unassigned code points differ between Unicode versions, so they say nothing.
        word = "".join(c for c in (chr(rnd.randrange(lo, hi)) for _ in range(rnd.randrange(1, 9)))
                       if unicodedata.category(c) not in ("Cn", "Cs"))
        out.append(word + rnd.choice(glue))
        size += len(out[-1])
    return "".join(out)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    parts = {"messages": take(messages()), "manuals": take(manuals()), "sources": take(sources()), "names": take(names()),
             "random": random_strings()}
    data = "\n".join(parts.values()).encode()
    pathlib.Path(sys.argv[1]).write_bytes(data)
    print(", ".join(f"{k} {len(v)}" for k, v in parts.items()), f"-> {len(data)} bytes")
