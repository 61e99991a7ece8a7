#!/usr/bin/env python3
"""An independent reader of capture files, written from docs/format.md alone: checks every digest, decodes every record, prints
totals. What breaks a rule of the format is a ValueError.

    read_capture.py REFERENCE [CANDIDATE...] [--npz PREFIX]

CANDIDATE: captured with --ref REFERENCE. --npz: all records of NAME.zst to PREFIXNAME.npz, lists one after the other, `count`
and `draws` entries a row.
"""
import argparse, hashlib, json, pathlib, struct
import ed25519
import numpy as np
import zstandard

FINE, COARSE, FINE_RANKS = 2.0**20, 2.0**13, 8
NEG_INF, WIDE, NONE = 2**32 - 1, 2**32 - 2, 2**32 - 1
COLUMNS = "- count ids lp label label_lp lse entropy tail_mass tail_ids tail_lp ref_lp ref_tail_lp extra top1 wide hidden route_id route_weight route_margin".split()
SCALARS = ("label_lp", "lse", "entropy", "tail_mass")
KEYS = set("""name label family model model_full tokenizer suite vocab vocab_rows windows positions top_k min_k tail_samples tail_mass seed
           has_reference reference_name reference ref_top_k ref_tail_samples engine quant""".split())
MODES = ("natural", "replay", "replay-ids")
sha = lambda *parts: hashlib.sha256(b"".join(parts)).digest()

def need(ok, what):
    if not ok:
        raise ValueError(what)

class Bytes:
    """What is left of a piece of the file."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        need(n <= len(self.data) - self.at, "cut short")
        self.at += n
        return self.data[self.at - n: self.at]

    def ints(self, fmt):
        return struct.unpack("<" + fmt, self.take(struct.calcsize("<" + fmt)))

def unique(pairs):
    need(len({k for k, _ in pairs}) == len(pairs), "duplicate key")
    return dict(pairs)

def read_header(b):
    start = b.at
    magic, size = b.ints("II")
    need(magic == 0x184D2A50 and 56 <= size <= 1 << 20, "not a header frame")
    body = b.take(size)
    h = Bytes(body)
    magic, version, flags, n_id, n_run = h.ints("8sIIII")
    need(magic == b"KLDCAPTR", "not a capture")
    need(version == 1, f"version {version}")
    need(flags == 0 and size == 24 + n_id + n_run + 32, "header flags or sizes")
    identity, run = h.take(n_id), h.take(n_run)
    need(h.take(32) == sha(body[:-32]), "SHA-256 of the header")
    ident = json.loads(identity.decode(), object_pairs_hook=unique)
    routes, hidden, floor = (ident.get(k) for k in ("routes", "hidden", "floor"))
    need(set(ident) - {"floor", "hidden", "partition", "routes"} == KEYS, "keys of the identity")
    need(set(json.loads(run.decode(), object_pairs_hook=unique)) - {"checkpoint"} == {"time", "host"}, "keys of the run text")
    need(floor in (None, "precision", "chunk") and ident.get("partition", "x") != "", "floor or partition")
    if hidden is not None:
        need(set(hidden) == {"point", "dtype", "cols", "logit_cap", "head"} and hidden["point"] == "after the final norm", "hidden")
        need(hidden["dtype"] in ("bf16", "fp32") and 0 < hidden["cols"] <= 1 << 20 and hidden["logit_cap"] >= 0, "hidden")
    if routes is not None:
        need(set(routes) == {"mode", "kept", "layers", "top_k", "experts", "source"} and routes["mode"] in MODES, "routes")
        natural = routes["mode"] == "natural"
        need(natural == routes["kept"] == (routes["source"] == "0" * 64), "mode and source of routes")
        need(0 < routes["layers"] <= 100000 and 0 < routes["top_k"] <= min(1024, routes["experts"]) and routes["experts"] <= 65536, "routes")
    return ident, identity, sha(b.data[start: b.at])

def read_footer(data, ident, identity, header_digest, begin):
    size, magic = Bytes(data[-12:]).ints("I8s")
    need(magic == b"KLDEND.1" and size + 8 <= len(data) - begin, "no footer")
    start = len(data) - size - 8
    b = Bytes(data[start:])
    need(b.ints("II8sIIQ") == (0x184D2A5F, size, b"KLDINDEX", 1, 0, ident["windows"]), "footer head")
    frames, at, rows_all = [], begin, 0
    for _ in range(ident["windows"]):
        off, length, rows, n_head, digest = b.ints("QQII32s")
        need(off == at and length <= start - off, "frames do not follow each other")
        frame = data[off: off + length]
        need(sha(frame) == digest, f"SHA-256 of window {len(frames)}")
        frames.append((frame, rows, b.take(n_head), digest))
        at, rows_all = off + length, rows_all + rows
    need(at == start, "gap before the footer")
    positions, of_header, content, signature = b.ints("Q32s32sI")
    need(positions == rows_all == ident["positions"] and of_header == header_digest and signature in (0, 96), "footer totals")
    need(content == sha(b"kld capture 1\0", identity, *(f[3] for f in frames)), "content digest")
    if signature:
        key, sig = b.ints("32s64s")
        need(ed25519.verify(key, sig, b"kld capture signature 1\0" + content), "signature")
    sealed = b.data[8: b.at]
    need(b.ints("32sI8s") == (sha(sealed), size, b"KLDEND.1") and b.at == len(b.data), "seal of the footer")
    return frames, content

def read_head(b):
    n, flags, tokens, score_from, offset, ids_digest, ref_digest = b.ints("IIQQQ32s32s")
    need(flags == 0 and n == max(0, tokens - 1 - score_from) and tokens < 2**32, "window head")
    w = dict(rows=n, tokens=tokens, offset=offset, ids_digest=ids_digest.hex(), ref_digest=ref_digest)
    for k in ("source", "cluster", "stratum", "partition"):
        s = b.take(b.ints("H")[0])
        need(len(s) <= 4096 and 0 not in s, k)
        w[k] = s.decode()
    return w

def read_columns(b):
    cols, last = {}, 0
    while b.at < len(b.data):
        kind, c = b.ints("BI")
        need(last < kind <= 19 and c > 0, "column id or count")
        planes = np.frombuffer(b.take(4 * c), np.uint8).reshape(4, c)
        cols[COLUMNS[kind]], last = np.ascontiguousarray(planes.T).view("<u4").reshape(c), kind
    return cols

class Lists:
    """A coded column as a matrix [rows][longest], with its rows' lengths."""

    def __init__(self, codes, lens, order):
        self.lens, self.order = lens, order
        self.used = np.arange(max(lens, default=0))[None] < lens[:, None]
        self.codes = self.spread(codes, np.uint32)
        self.lp = np.full(self.used.shape, np.nan)

    def spread(self, flat, dtype, fill=0):
        m = np.full(self.used.shape, fill, dtype)
        m[self.used] = flat
        return m

    def decode(self, wide, pred=None, fine=FINE_RANKS):
        """pred: a matrix; None: the value before in the list."""
        for j in range(self.used.shape[1]):
            g = FINE if j < fine else COARSE
            p = pred[:, j] if pred is not None else self.lp[:, j - 1] if j else np.zeros(len(self.lens))
            c = self.codes[:, j].astype(np.int64)
            base = np.where(np.isfinite(p), np.rint(p * g), 0.0)
            v = (base - np.where(c & 1, -((c + 1) >> 1), c >> 1)) / g + 0.0
            v = np.where(c == NEG_INF, -np.inf, np.where(c == WIDE, wide[self][:, j], v))
            self.lp[:, j] = np.where(self.used[:, j], v, np.nan)
        return self.lp

def spread_wide(lists, values):
    """Gives every value of column `wide` to its code: by row, then by list, then by place in the list."""
    at = [(i, l.order, j, l) for l in lists for i, j in np.argwhere(l.used & (l.codes == WIDE))]
    need(len(at) == len(values), "column wide")
    out = {l: np.zeros(l.used.shape) for l in lists}
    for (i, _, j, l), v in zip(sorted(at, key=lambda x: x[:3]), values):
        need(not np.isnan(v) and v != np.inf, "NaN or +inf in column wide")
        out[l][i, j] = v
    return out

def own_list(w, ref, i, extras, extra_lp):
    k = ref["count"][i]
    ids = np.concatenate([ref["ids"][i, :k], extras])
    lp = np.concatenate([w["ref_lp"][i, :k], extra_lp])
    order = np.lexsort((ids, -lp))
    top = np.flatnonzero(ids[order] == w["top1"][i])
    need(len(top) == 1 and w["count"][i] <= len(ids) and len(set(ids)) == len(ids), "list of a candidate")
    order = np.concatenate([order[top], np.delete(order, top)])[: w["count"][i]]
    return ids[order], lp[order]

def read_window(frame, rows, head, ident, ref):
    hidden = ident.get("hidden")
    words = 0 if hidden is None else (hidden["cols"] + 1) // 2 if hidden["dtype"] == "bf16" else hidden["cols"]
    a_row = 12 * sum(ident[k] for k in ("top_k", "tail_samples", "ref_top_k", "ref_tail_samples")) + 64 + 4 * words
    routes = ident.get("routes", {})
    bound = (2**31 if routes.get("kept") else min(2**31, rows * a_row)) + 16588
    par = zstandard.get_frame_parameters(frame)
    need(par.has_checksum and par.dict_id == 0 and 0 < par.content_size <= bound, "zstd frame")
    data = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    need(data[: len(head)] == head, "head in the footer")
    b = Bytes(data)
    w = read_head(b)
    need(b.at == len(head) and w["rows"] == rows, "head")
    cols, used = read_columns(b), []

    def col(name, count):
        used.append(name)
        c = cols.get(name, np.zeros(0, np.uint32))
        need(len(c) == count, f"column {name}")
        return c
    w.update({k: col(k, rows).astype(np.int64) for k in ("count", "label")})
    w.update({k: col(k, rows).view(np.float32).astype(np.float64) for k in SCALARS})
    finite = w["count"] > 0
    need((w["count"] <= ident["top_k"]).all() and (w["label"] < ident["vocab"]).all(), "count or label")
    w["draws"] = np.where(finite & (w["tail_mass"] > 0), ident["tail_samples"], 0)
    cand = ident["has_reference"]
    extra = col("extra", rows).astype(np.int64) if cand else w["count"]
    n = int(extra.sum())
    own = Lists(col("lp", n), extra, 3 if cand else 0)
    ids = own.spread(col("ids", n), np.int64, NONE)
    n = int(w["draws"].sum())
    tail = Lists(col("tail_lp", n), w["draws"], 0.5)
    w["tail_ids"] = tail.spread(col("tail_ids", n), np.int64, NONE)
    need((ids[own.used] < ident["vocab"]).all() and (w["tail_ids"][tail.used] < ident["vocab"]).all(), "id outside the vocabulary")
    lists = [own, tail]
    if cand:
        need(w["ref_digest"] == records_digest(ref), "SHA-256 of the reference's records")
        w["top1"] = col("top1", rows).astype(np.int64)
        need(((w["top1"] < ident["vocab"]) == finite).all(), "top1")
        for order, k, lens in ((1, "ref_lp", ref["count"] * finite), (2, "ref_tail_lp", ref["draws"] * finite)):
            lists.append(Lists(col(k, int(lens.sum())), lens, order))
    else:
        need(w["ref_digest"] == bytes(32), "digest of a reference's records")
    if routes.get("kept"):
        n, k = w["tokens"] * routes["layers"], routes["top_k"]
        w["route_id"] = col("route_id", n * k).reshape(w["tokens"], -1, k)
        w["route_weight"] = col("route_weight", n * k).view(np.float32).astype(np.float64).reshape(w["route_id"].shape)
        w["route_margin"] = col("route_margin", n).view(np.float32).astype(np.float64).reshape(w["tokens"], -1)
        in_order = np.sort(w["route_id"], axis=2)
        need((in_order < routes["experts"]).all() and (in_order[..., 1:] > in_order[..., :-1]).all(), "experts of a route")
    if hidden is not None:
        h = col("hidden", rows * words).reshape(rows, words)
        if hidden["dtype"] == "bf16":
            halves = h.view("<u2").reshape(rows, 2 * words)
            need((halves[:, hidden["cols"]:] == 0).all(), "padding of hidden states")
            h = (halves[:, : hidden["cols"]].astype(np.uint32) << 16)
        w["hidden"] = np.ascontiguousarray(h).view(np.float32)
    need(set(cols) <= {*used, "wide"}, "column that nothing uses")
    wide = spread_wide(lists, cols.get("wide", np.zeros(0, np.uint32)).view(np.float32).astype(np.float64))
    own.decode(wide)
    w["tail_lp"] = tail.decode(wide, np.zeros(tail.used.shape), fine=0)
    if not cand:
        return dict(w, ids=ids, lp=own.lp, top1=np.where(finite, ids[:, 0] if ids.size else NONE, NONE))
    w["ref_lp"] = lists[2].decode(wide, ref["lp"])
    w["ref_tail_lp"] = lists[3].decode(wide, ref["tail_lp"], fine=0)
    shape = (rows, max(w["count"], default=0))
    w["ids"], w["lp"] = np.full(shape, NONE), np.full(shape, np.nan)
    for i in np.flatnonzero(finite):
        k = w["count"][i]
        w["ids"][i, :k], w["lp"][i, :k] = own_list(w, ref, i, ids[i, : extra[i]], own.lp[i, : extra[i]])
    return w

def records_digest(ref):
    pair = np.dtype([("id", "<u4"), ("lp", "<f8")])  # packed
    out = []
    for i in range(ref["rows"]):
        k, m = ref["count"][i], ref["draws"][i]
        out.append(struct.pack("<III", k, m, ref["label"][i]))
        for ids, lp in ((ref["ids"][i, :k], ref["lp"][i, :k]), (ref["tail_ids"][i, :m], ref["tail_lp"][i, :m])):
            out.append(np.rec.fromarrays([ids, lp], dtype=pair).tobytes())
    return sha(*out)

def read(path, ref=None):
    """ident, content digest (hex), windows."""
    data = pathlib.Path(path).read_bytes()
    b = Bytes(data)
    ident, identity, header_digest = read_header(b)
    frames, content = read_footer(data, ident, identity, header_digest, b.at)
    need(not ident["has_reference"] or (ref and ident["reference"] == ref[1] and len(ref[2]) == len(frames)), "another reference")
    refs = ref[2] if ident["has_reference"] else [None] * len(frames)
    return ident, content.hex(), [read_window(*f[:3], ident, r) for f, r in zip(frames, refs)]

def totals(path, cap):
    ident, content, windows = cap
    rows = sum(w["rows"] for w in windows)
    count = np.concatenate([w["count"] for w in windows])
    mass = np.concatenate([np.exp(np.nan_to_num(w["lp"], nan=-np.inf)).sum(1) + w["tail_mass"] for w in windows])
    off = np.abs(mass - 1)[count > 0].max(initial=0)
    print(f"{path}: {ident['name']} ({ident['label']}), {len(windows)} windows, {rows} positions, {(count == 0).sum()} not finite, "
          f"{pathlib.Path(path).stat().st_size / max(rows, 1):.1f} bytes each\n  content {content}\n"
          f"  list {count.mean():.1f} ids a row; list and tail sum to 1 within {off:.1e}")
    need(off < 1e-3, f"{path}: a list and its tail do not sum to 1")

def dump(path, windows):
    out = {k: [w[k] for w in windows] for k in ("rows", "cluster")}
    out.update({k: np.concatenate([w[k] for w in windows]) for k in ("count", "draws", "label", *SCALARS, "top1")})
    for k in ("ids", "lp", "tail_ids", "tail_lp", "ref_lp", "ref_tail_lp"):
        if k in windows[0]:
            out[k] = np.concatenate([w[k][w[k] != NONE] if k.endswith("ids") else w[k][~np.isnan(w[k])] for w in windows])
    np.savez_compressed(path, **out)

if __name__ == "__main__":
    ap = argparse.ArgumentParser(usage=__doc__)
    ap.add_argument("captures", nargs="+")
    ap.add_argument("--npz")
    args, first = ap.parse_args(), None
    for name in args.captures:
        capture = read(name, first)
        first = first or capture
        totals(name, capture)
        if args.npz:
            dump(f"{args.npz}{pathlib.Path(name).stem}.npz", capture[2])
