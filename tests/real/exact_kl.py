#!/usr/bin/env python3
"""What `kld compare` says of captures against the truth: the full-vocabulary divergences, in FP64 from the raw logits of `kld logits`.

    exact_kl.py KLD SUITE WORKDIR REFERENCE_DIR CANDIDATE_DIR... [--windows N] [--seeds N,N...]

N windows, spread over the suite, become a suite of their own; the reference and the candidates are captured on it with default
options and compared. Logits and captures have the same arithmetic (--precision bf16, the default of a capture), so what differs is
the file alone: its top ids, its draws, its rounding. Exit status 1 when
    a lower bound is above the truth (by more than 1e-6, for rounding),
    an estimate of KL, JS or TV is more than 3 of its sampling errors off (reverse KL is only reported: docs/metrics.md, tail),
    top-1 agreement or a perplexity is not exact, or the Jaccard overlap of the nuclei is off by more than rounding can do,
    a capture takes more than 1024 bytes a position.
The truth is computed once; captures and checks are made for every seed of the draws.

Then captures with `--exact` are compared through their heads: means of every divergence, of the nuclei and of the masses on them must
be within 1e-6 of the truth (relative), with bounds that are the value itself; as must captures whose head was found as a kept file.
"""
import argparse, json, pathlib, subprocess, sys
import numpy as np

TOP_P, TOP_K, BLOCK = 0.95, 256, 64
SIGMAS, ROUNDING = 3, 1e-6
# Log-probabilities in the file are multiples of 2^-13 from rank 8 on. A cumulative mass moves by about 1e-5 with them, and where
# it crosses top-p that close, or a near-tie swaps there, a nucleus gains or loses a token: rare, and one token of many.
JACCARD_ROUNDING = 1e-4
EXACT = 1e-6  # relative; live and replayed logits are of one arithmetic, and sums are taken in FP64 here and there
DIVERGENCES = ("kl", "reverse_kl", "js", "tv")


def run(*args):
    subprocess.run([str(a) for a in args], check=True, stdout=subprocess.DEVNULL)


def sample(suite, n):
    """The header and n windows, evenly spread."""
    with open(suite, encoding="utf-8") as f:
        lines = [json.loads(x) for x in f]
    head, windows = lines[0], lines[1:]
    return head, [windows[i] for i in np.unique(np.linspace(0, len(windows) - 1, n).astype(int))]


def build(kld, work, head, windows, tokenizer):
    docs = work / "sample.jsonl"
    with open(docs, "w", encoding="utf-8") as f:
        for w in windows:
            keys = [k for k in ("ids", "source", "cluster", "stratum", "partition") if w.get(k)]
            f.write(json.dumps({k: w[k] for k in keys}) + "\n")
    run(kld, "suite", "build", "--jsonl", docs, "--tokenizer", tokenizer, "--window", head["window"], "-q", "-o", work / "sample-suite.jsonl")
    got = sample(work / "sample-suite.jsonl", len(windows))[1]
    assert [w["ids"] for w in got] == [w["ids"] for w in windows], "the sample has other windows"
    return work / "sample-suite.jsonl"


def logits(kld, model, ids, work):
    np.save(work / "ids.npy", np.array(ids, dtype=np.int64))
    run(kld, "logits", "--model", model, "--ids", work / "ids.npy", "--precision", "bf16", "-q", "-o", work / "logits.npy")
    return np.load(work / "logits.npy")


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def nuclei(lp, ids, slack):
    """The `ids` most probable ids of each row, most probable first, and how many of them are its nucleus; more than those when they
    do not reach it.  A mass within slack of TOP_P has reached it."""
    part = np.sort(np.argpartition(-lp, ids - 1, axis=1)[:, :ids], axis=1)
    order = np.argsort(-np.take_along_axis(lp, part, 1), axis=1, kind="stable")  # ties by lower id
    part = np.take_along_axis(part, order, 1)
    size = (np.exp(np.take_along_axis(lp, part, 1)).cumsum(1) < TOP_P - slack).sum(1) + 1
    return part, size


def listed(lp):
    """Ids of each row's nucleus as a capture's list has them; None where it ends before."""
    ids, size = nuclei(lp, TOP_K, 1e-9)
    return [set(o[:n]) if n <= TOP_K else None for o, n in zip(ids.tolist(), size)]


def members(lp):
    """Each row's nucleus, over the whole vocabulary, as a mask."""
    ids, size = nuclei(lp, lp.shape[1], 0)
    mask = np.zeros(lp.shape, dtype=bool)
    np.put_along_axis(mask, ids, np.arange(lp.shape[1]) < size[:, None], 1)
    return mask


def block_values(lp, lq, labels):
    """Per-position values of some rows, from log-probabilities [rows][vocab]."""
    p, q, rows = np.exp(lp), np.exp(lq), np.arange(len(lp))
    lm = np.log((p + q) / 2)
    n_p, n_q = members(lp), members(lq)
    cut_p, cut_q = p * n_p, q * n_q
    return {
        "kl": (p * (lp - lq)).sum(1), "reverse_kl": (q * (lq - lp)).sum(1),
        "js": ((p * (lp - lm)).sum(1) + (q * (lq - lm)).sum(1)) / 2, "tv": np.abs(p - q).sum(1) / 2,
        "top1": lp.argmax(1) == lq.argmax(1), "nll_reference": -lp[rows, labels], "nll_candidate": -lq[rows, labels],
        "whole_jaccard": (n_p & n_q).sum(1) / (n_p | n_q).sum(1),
        "whole_tv": np.abs(cut_p / cut_p.sum(1, keepdims=True) - cut_q / cut_q.sum(1, keepdims=True)).sum(1) / 2,
        "on_reference": (q * n_p).sum(1), "on_candidate": (p * n_q).sum(1),
        "jaccard": np.array([len(s & t) / len(s | t) if s and t else np.nan for s, t in zip(listed(lp), listed(lq))])}


def exact(kld, work, windows, vocab, reference, candidates):
    parts = {c: [] for c in candidates}
    for n, w in enumerate(windows):
        first, last = w["score_from"], len(w["ids"]) - 1
        labels = np.array(w["ids"][first + 1:])
        # Columns beyond the tokenizer's are padding and no part of the softmax.
        a, *others = (logits(kld, m, w["ids"], work)[first:last, :vocab] for m in (reference, *candidates))
        for i in range(0, len(labels), BLOCK):
            rows = slice(i, i + BLOCK)
            lp = log_softmax(a[rows])
            for c, b in zip(candidates, others):
                parts[c].append(block_values(lp, log_softmax(b[rows]), labels[rows]))
        print(f"exact: window {n + 1} of {len(windows)}, {len(labels)} positions", file=sys.stderr, flush=True)
    out = {}
    for c in candidates:
        v = {k: np.concatenate([p[k] for p in parts[c]]) for k in parts[c][0]}
        decided = ~np.isnan(v["jaccard"])
        out[c] = {k: float(x.mean()) for k, x in v.items() if k != "jaccard"}
        out[c].update(positions=len(decided), decided=int(decided.sum()), jaccard=float(v["jaccard"][decided].mean()))
    return out


def capture(kld, work, suite, model, out, *more):
    run(kld, "capture", "--model", model, "--suite", suite, "-o", out, "--force", "-q", *more)
    return out.stat().st_size


class Checks:
    def __init__(self):
        self.failed = 0

    def __call__(self, ok, what):
        if not ok:
            self.failed += 1
            print(f"  FAILED: {what}")


def hold(c, truth, check):
    """One candidate of the report against the truth."""
    check(c["positions"] == truth["positions"], f"positions {c['positions']}, expected {truth['positions']}")
    for k in DIVERGENCES:
        bound, mean, se, want = c[k]["lower_bound"], c[k]["mean"], c[k]["stderr_sampling"], truth[k]
        z = (mean - want) / se if se else 0.0 if abs(mean - want) <= ROUNDING else np.inf
        print(f"  {k:11} bound {bound:.6f}   estimate {mean:.6f} ± {se:.6f}   exact {want:.6f}   z {z:+.2f}")
        check(bound <= want + ROUNDING, f"{k}: the bound is above the truth")
        check(bound <= mean, f"{k}: the bound is above the estimate")
        check(k == "reverse_kl" or abs(z) <= SIGMAS, f"{k}: the estimate is {z:+.1f} sampling errors off")
    for name, got, want, slack in (
            ("top-1", c["top1_agreement"], truth["top1"], 1e-12),
            ("ppl ref", c["perplexity"]["reference"], np.exp(truth["nll_reference"]), 1e-6 * np.exp(truth["nll_reference"])),
            ("ppl cand", c["perplexity"]["candidate"], np.exp(truth["nll_candidate"]), 1e-6 * np.exp(truth["nll_candidate"])),
            ("jaccard", c["top_p"]["jaccard"], truth["jaccard"], JACCARD_ROUNDING),
            ("decided", c["top_p"]["decided"], truth["decided"], 1)):
        print(f"  {name:11} {got:.9g}   exact {want:.9g}   difference {got - want:+.1e}")
        check(abs(got - want) <= slack, f"{name}: off by more than {slack:.1e}")


def one_seed(a, work, suite, seed, truth, check):
    ref = work / "ref.zst"
    sizes = {a.reference: capture(a.kld, work, suite, a.reference, ref, "--seed", seed)}
    outs = [work / f"{pathlib.Path(c).name}.zst" for c in a.candidates]
    for c, out in zip(a.candidates, outs):
        sizes[c] = capture(a.kld, work, suite, c, out, "--ref", ref)
    run(a.kld, "compare", ref, *outs, "--json", work / "compare.json")
    report = json.loads((work / "compare.json").read_text())
    for c, r in zip(a.candidates, report["candidates"]):
        print(f"{c} against {a.reference}")
        hold(r, truth[c], check)
    for c, size in sizes.items():
        per = size / truth[a.candidates[0]]["positions"]
        print(f"{c}: {per:.1f} bytes a position")
        check(per <= 1024, f"{c}: more than 1024 bytes a position")


def hold_exact(c, truth, check):
    """One candidate of an exact comparison against the truth: nothing is estimated."""
    check(c["exact"] and c["exact"]["check_max"] == 0, f"live and replayed logits differ: {c['exact']}")
    pairs = [(k, c[k]["mean"], truth[k]) for k in DIVERGENCES] + [
        ("jaccard", c["top_p"]["jaccard"], truth["whole_jaccard"]), ("nucleus tv", c["top_p"]["tv"], truth["whole_tv"]),
        ("q(Np)", c["top_p"]["mass_on_reference"], truth["on_reference"]),
        ("p(Nq)", c["top_p"]["mass_on_candidate"], truth["on_candidate"]), ("top-1", c["top1_agreement"], truth["top1"])]
    for name, got, want in pairs:
        print(f"  {name:11} {got:.12f}   exact {want:.12f}   relative difference {(got - want) / want:+.1e}")
        check(abs(got - want) <= EXACT * abs(want), f"{name}: off by more than {EXACT:.0e} of it")
    for k in DIVERGENCES:
        check(c[k]["exact"] and c[k]["lower_bound"] == c[k]["mean"] and c[k]["stderr_sampling"] == 0, f"{k}: not exact")
    check(c["top_p"]["undecided"] == 0, "undecided nuclei")


def through_heads(a, work, suite, truth, check):
    """Captures that keep hidden states, and the heads beside them where they are dense."""
    ref, outs = work / "hidden-ref.zst", [work / f"hidden-{pathlib.Path(c).name}.zst" for c in a.candidates]
    for model, out, more in ((a.reference, ref, ()), *((c, out, ("--ref", ref)) for c, out in zip(a.candidates, outs))):
        size = capture(a.kld, work, suite, model, out, "--exact", "--keep-head", *more)
        print(f"{model}: {size / truth[a.candidates[0]]['positions']:.1f} bytes a position with hidden states")
    run(a.kld, "compare", ref, *outs, "--device", "cpu", "--json", work / "hidden.json")
    report = json.loads((work / "hidden.json").read_text())
    for c, r in zip(a.candidates, report["candidates"]):
        print(f"{c} against {a.reference}, through their heads")
        hold_exact(r, truth[c], check)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for k in ("kld", "suite", "workdir", "reference"):
        ap.add_argument(k)
    ap.add_argument("candidates", nargs="+")
    ap.add_argument("--windows", type=int, default=12)
    ap.add_argument("--seeds", default="1")
    a = ap.parse_args()
    work = pathlib.Path(a.workdir)
    work.mkdir(parents=True, exist_ok=True)
    head, windows = sample(a.suite, a.windows)
    suite = build(a.kld, work, head, windows, a.reference)
    truth = exact(a.kld, work, windows, head["vocab"], a.reference, a.candidates)
    (work / "exact.json").write_text(json.dumps(truth, indent=1) + "\n")
    positions = truth[a.candidates[0]]["positions"]
    print(f"{len(windows)} windows, {positions} positions, vocabulary {head['vocab']}; natural logarithms")
    check = Checks()
    for seed in a.seeds.split(","):
        print(f"seed {seed}")
        one_seed(a, work, suite, seed, truth, check)
    print("exact captures")
    through_heads(a, work, suite, truth, check)
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
