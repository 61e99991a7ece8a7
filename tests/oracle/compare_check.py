#!/usr/bin/env python3
"""Recomputes from captures, read by read_capture.py, what `kld compare` reports (docs/metrics.md), and holds it against its JSON.

    compare_check.py COMPARE.json REFERENCE CANDIDATE...      exit status 1 when a number differs

Every number that needs no resampling and only one formula: perplexities (label_lp), top-1 (top1), the bound of KL (ref_lp), its
estimate and sampling error (the draws), the overlap of nuclei (own lists), and the agreement of routes where both keep them.
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


def kl_row(r, c, i):
    """Lower bound, estimate and its variance at row i; g(x) = x - 1 - ln x, g'(x) = 1 - 1/x, intercept g(x) - x g'(x) = -ln x."""
    k, n, R = r["count"][i], c["count"][i], r["tail_mass"][i]
    lp, lq = r["lp"][i, :k], c["ref_lp"][i, :k]
    p, q = np.exp(lp), np.exp(lq)
    bound = (p * (lp - lq) + q - p).sum()
    if R == 0:
        return bound, bound, 0
    extra = ~np.isin(c["ids"][i, :n], r["ids"][i, :k])
    ids, e = c["ids"][i, :n][extra], c["lp"][i, :n][extra]
    order = np.lexsort((ids, -e))
    ids, e, cap = ids[order], e[order], np.exp(lp.min() + 2.0**-14)
    P, Q, m = R, max(R + (p - q).sum(), min(1e-6, R)), 0
    while m < len(e) and P > cap and np.exp(e[m]) * P > cap * Q:
        P, Q, m = P - cap, Q - np.exp(e[m]), m + 1
    r0 = max(Q, min(1e-6, P)) / P
    cells = np.exp(e[:m]) - cap + cap * (np.log(cap) - e[:m])
    bound += cells.sum() + P * (r0 - 1 - np.log(r0))
    x = np.exp(c["ref_tail_lp"][i, :r["draws"][i]] - r["tail_lp"][i, :r["draws"][i]])
    if R < 1e-12 or len(x) < 2:
        return bound, bound, 0
    own = {t: np.exp(l) * 2 / cap for t, l in zip(ids[:m], e[:m])}  # where the tangent touches
    at = np.array([own.get(t, r0) for t in r["tail_ids"][i, :len(x)]])
    f = x / at - 1 - np.log(x / at) - np.log(at) + np.log(r0)
    known = (np.exp(e[:m]) - cap / 2 - cells - cap * np.log(r0)).sum()  # q g'(2q/cap) = q - cap/2
    return bound, bound + known + R * f.mean(), R * R * f.var(ddof=1) / len(f)


def metrics(r, c, top_p):
    """Of one window, sums over rows that are finite on both sides."""
    ok = (r["count"] > 0) & (c["count"] > 0)
    bound, mean, var = np.sum([kl_row(r, c, i) for i in np.flatnonzero(ok)], axis=0) if ok.any() else (0, 0, 0)
    jac = []
    for i in np.flatnonzero(ok):
        a, b = (nucleus(x["ids"][i, :x["count"][i]], x["lp"][i, :x["count"][i]], top_p) for x in (r, c))
        if a is not None and b is not None:
            jac.append(len(a & b) / len(a | b))
    return np.array([ok.sum(), -r["label_lp"][ok].sum(), -c["label_lp"][ok].sum(), (r["top1"] == c["top1"])[ok].sum(),
                     bound, mean, var, sum(jac), len(jac)])


def routes(ref, cand):
    """Over all windows: the overall means, by way of dense vectors over experts."""
    n, (a, b) = ref[0]["routes"]["experts"], ([np.concatenate([w[k] for w in x[2]]) for k in ("route_id", "route_weight", "route_margin")]
                                              for x in (ref, cand))

    def dense(ids, values):
        v = np.zeros(ids.shape[:2] + (n,))
        np.put_along_axis(v, ids.astype(np.int64), values, axis=2)
        return v
    shared = (dense(a[0], 1.0) * dense(b[0], 1.0)).sum(2)
    share = [dense(x[0], x[1] / x[1].sum(2, keepdims=True)) for x in (a, b)]
    equal, finite = shared == a[0].shape[2], np.isfinite(a[2])
    mean = lambda of: a[2][of & finite].mean() if (of & finite).any() else None
    out = {"top1_agreement": (a[0][..., 0] == b[0][..., 0]).mean(), "slot_agreement": (a[0] == b[0]).mean(),
           "overlap": shared.mean() / a[0].shape[2], "exact_agreement": equal.mean(),
           "weight_tv": 0.5 * np.abs(share[0] - share[1]).sum(2).mean(),
           "margin.mean": mean(finite), "margin.equal": mean(equal), "margin.differ": mean(~equal)}
    return {f"routes.overall.{k}": v for k, v in out.items()}


def against(ref, cand, report):
    n, nll_r, nll_c, top, bound, mean, var, jac, decided = sum(metrics(r, c, report["settings"]["top_p"]) for r, c in zip(ref[2], cand[2]))
    ours = {"positions": int(n), "perplexity.reference": np.exp(nll_r / n), "perplexity.candidate": np.exp(nll_c / n),
            "top1_agreement": top / n, "kl.lower_bound": bound / n, "kl.mean": mean / n, "kl.stderr_sampling": np.sqrt(var) / n,
            "top_p.jaccard": jac / decided if decided else None, "top_p.decided": int(decided)}
    if all(x[0].get("routes", {}).get("kept") for x in (ref, cand)):
        ours.update(routes(ref, cand))
    theirs = next((c for c in report["candidates"] if c["content_digest"] == cand[1]), None)
    need(theirs, "the report has no such candidate")
    same = True
    for k, v in ours.items():
        t = theirs
        for part in k.split("."):
            t = t[part]
        equal = t == v or (None not in (t, v) and abs(t - v) <= TOLERANCE * abs(v))
        same &= equal
        print(f"  {k:30} {v!s:24} {t}{'' if equal else '  DIFFERS'}")
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
