#!/usr/bin/env python3
"""The tensor names of a released checkpoint, from its model.safetensors.index.json, in a form short enough to commit.

    index_patterns.py INDEX.json SOURCE > tests/golden/index/NAME.txt

SOURCE says where the index is published. A line is a name in which {a..b} stands for every number from a to b: all of them on a
line vary freely, so that a line with two ranges stands for their product. An index has names alone, so there are no dtypes and no
shapes here. What is written expands to exactly the names that were read.
"""
import itertools, json, re, sys

NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def runs(values):
    """Rising numbers -> (first, last) of every run without a gap."""
    out = []
    for v in values:
        if out and out[-1][1] == v - 1:
            out[-1][1] = v
        else:
            out.append([v, v])
    return out


def products(tuples):
    """A set of number tuples -> lists of ranges, one a position. Numbers with the same set of tails share a line."""
    if tuples == {()}:
        return [[]]
    tails = {}
    for t in tuples:
        tails.setdefault(t[0], set()).add(t[1:])
    same = {}
    for v in sorted(tails):
        same.setdefault(frozenset(tails[v]), []).append(v)
    return [[r] + rest for tail, vs in same.items() for r in runs(vs) for rest in products(set(tail))]


def patterns(names):
    by_form = {}
    for n in names:
        by_form.setdefault(NUMBER.sub("#", n), set()).add(tuple(map(int, NUMBER.findall(n))))
    for form, tuples in sorted(by_form.items()):
        for ranges in products(tuples):
            text = iter(str(a) if a == b else f"{{{a}..{b}}}" for a, b in ranges)
            yield re.sub("#", lambda _: next(text), form)


def expand(line):
    parts = re.split(r"\{(\d+)\.\.(\d+)\}", line)
    spans = [range(int(a), int(b) + 1) for a, b in zip(parts[1::3], parts[2::3])]
    for values in itertools.product(*spans):
        yield parts[0] + "".join(str(v) + p for v, p in zip(values, parts[3::3]))


if __name__ == "__main__":
    with open(sys.argv[1]) as f:
        names = set(json.load(f)["weight_map"])
    lines = list(patterns(names))
    back = [n for line in lines for n in expand(line)]
    assert len(back) == len(names) and set(back) == names
    print(f"# {sys.argv[2]}\n# {len(names)} tensors, names only: the index has no dtypes and no shapes.")
    print("\n".join(lines))
