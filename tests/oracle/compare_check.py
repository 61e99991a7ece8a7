#!/usr/bin/env python3
"""Recomputes from captures, read by read_capture.py, what `kld compare` reports (docs/metrics.md), and holds it against its JSON.

    compare_check.py COMPARE.json REFERENCE CANDIDATE...      exit status 1 when a number differs

Every number that needs no resampling and only one formula: perplexities (label_lp), top-1 (top1), the bound of KL (ref_lp), its
estimate and sampling error (the draws), the overlap of nuclei (own lists).
"""
import json, pathlib, sys
import numpy as np
from read_capture import need, read

TOLERANCE = 1e-12  # relative: FP64 sums of tens of thousands of values in another order


def nucleus(ids, lp, p):
    """None when the list ends before p is reached."""
    order = np.lexsort((ids[1:], -lp[1:])) + 1  # the first stays
    ids, lp = np.append(ids[:1], ids[order]), np.append(lp[:1], lp[order])
    n = np.searchsorted(np.cumsum(np.exp(lp)), p - 1e-9) + 1
    return set(ids[:n]) if n <= len(ids) else None


def kl_rows(r, c):
    """Lower bound, estimate and its variance at every row."""
    p, q = np.exp(np.nan_to_num(r["lp"], nan=-np.inf)), np.exp(np.nan_to_num(c["ref_lp"], nan=-np.inf))
    R = r["tail_mass"]
    Rq = np.maximum(R + (p - q).sum(1), np.minimum(1e-6, R))
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = np.where(p > 0, p * (r["lp"] - c["ref_lp"]) + q - p, q).sum(1) + np.where(R > 0, R * np.log(R / Rq), 0) + Rq - R
        x = np.exp(c["ref_tail_lp"] - r["tail_lp"]) * (R / Rq)[:, None]
        f = x - 1 - np.log(x)
        rest, var = (R * f.mean(1), R * R * f.var(1, ddof=1) / f.shape[1]) if f.shape[1] > 1 else (0 * R, 0 * R)
    drawn = (r["draws"] > 0) & (R >= 1e-12)
    return bound, np.where(drawn, bound + rest, bound), np.where(drawn, var, 0)


def metrics(r, c, top_p):
    """Of one window, sums over rows that are finite on both sides."""
    ok = (r["count"] > 0) & (c["count"] > 0)
    bound, mean, var = (x[ok].sum() for x in kl_rows(r, c))
    jac = []
    for i in np.flatnonzero(ok):
        a, b = (nucleus(x["ids"][i, :x["count"][i]], x["lp"][i, :x["count"][i]], top_p) for x in (r, c))
        if a is not None and b is not None:
            jac.append(len(a & b) / len(a | b))
    return np.array([ok.sum(), -r["label_lp"][ok].sum(), -c["label_lp"][ok].sum(), (r["top1"] == c["top1"])[ok].sum(),
                     bound, mean, var, sum(jac), len(jac)])


def against(ref, cand, report):
    n, nll_r, nll_c, top, bound, mean, var, jac, decided = sum(metrics(r, c, report["settings"]["top_p"]) for r, c in zip(ref[2], cand[2]))
    ours = {"positions": int(n), "perplexity.reference": np.exp(nll_r / n), "perplexity.candidate": np.exp(nll_c / n),
            "top1_agreement": top / n, "kl.lower_bound": bound / n, "kl.mean": mean / n, "kl.stderr_sampling": np.sqrt(var) / n,
            "top_p.jaccard": jac / decided if decided else None, "top_p.decided": int(decided)}
    theirs = next((c for c in report["candidates"] if c["content_digest"] == cand[1]), None)
    need(theirs, "the report has no such candidate")
    same = True
    for k, v in ours.items():
        t = theirs
        for part in k.split("."):
            t = t[part]
        equal = t == v or (None not in (t, v) and abs(t - v) <= TOLERANCE * abs(v))
        same &= equal
        print(f"  {k:22} {v!s:24} {t}{'' if equal else '  DIFFERS'}")
    return same


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    report = json.loads(pathlib.Path(sys.argv[1]).read_text())
    ref, same = read(sys.argv[2]), True
    for path in sys.argv[3:]:
        print(f"{path} against {sys.argv[2]}: here, in the report")
        same &= against(ref, read(path, ref), report)
    sys.exit(0 if same else 1)
