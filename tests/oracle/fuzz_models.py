#!/usr/bin/env python3
"""Random tiny checkpoints of every family, `kld logits` against transformers.

    fuzz_models.py KLD [N] [SEED]      N checkpoints a family (default 20); exit status 1 when one is off by more than 1e-4

What tiny.py fixes by hand is drawn here: sizes, head layouts, ties, biases, RoPE kind and spelling, windows, dtype, shards.
"""
import json, pathlib, random, subprocess, sys, tempfile
import numpy as np
import torch
import tiny

LIMIT = 1e-4
tiny.T.utils.logging.set_verbosity_error()


def rope(r, length):
    theta = r.choice([1e4, 5e5, 1e6])
    kind = r.choice(["default", "default", "linear", "llama3", "yarn", "yarn-factor"])
    if kind == "linear":
        return tiny.rope("linear", theta, factor=r.choice([2.0, 3.5]))
    if kind == "llama3":
        return tiny.rope("llama3", theta, factor=r.choice([8.0, 32.0]), low_freq_factor=1.0, high_freq_factor=4.0,
                         original_max_position_embeddings=r.choice([16, 64]))
    if kind.startswith("yarn"):
        more = dict(factor=r.choice([2.0, 4.0]), original_max_position_embeddings=r.choice([16, 64]))
        if kind == "yarn-factor":
            more.update(attention_factor=r.choice([1.0, 0.9]), beta_fast=r.choice([32.0, 8.0]), beta_slow=1.0)
        return tiny.rope("yarn", theta, **more)
    return tiny.rope(theta=theta)


def draw(r, family):
    """Class, config, length of the ids, dtype, bytes a shard."""
    hd = 2 * r.randint(2, 24)
    nk = r.randint(1, 3)
    nq = nk * r.randint(1, 4)
    hidden = nq * r.choice([hd, r.randint(4, 24)])
    length = r.choice([1, 2, 17, 70, 257, 300, 600])
    k = tiny.sizes(hidden, 4 * r.randint(5, 40), r.randint(1, 4), nq, nk, hd)
    k.update(vocab_size=r.randint(5, 300), tie_word_embeddings=r.random() < 0.4, rms_norm_eps=r.choice([1e-6, 1e-5, 1e-2]),
             max_position_embeddings=r.choice([64, 1024]), rope_parameters=rope(r, length))
    window = r.choice([None, 1, 5, 64, 256, 300])
    if family == "qwen2":  # its heads have hidden_size / heads columns
        k.update(hidden_size=nq * hd, head_dim=hd)
    if family == "llama":
        k.update(attention_bias=r.random() < 0.3, mlp_bias=r.random() < 0.3)
    elif family == "mistral":
        k.update(sliding_window=window)
    else:
        use = window is not None and r.random() < 0.6
        k.update(use_sliding_window=use, sliding_window=window or 64, max_window_layers=r.randint(0, k["num_hidden_layers"]))
        if family == "qwen3":
            k.update(attention_bias=r.random() < 0.3)
    dtype = r.choice([torch.bfloat16, torch.float16, torch.float32])
    return (*getattr(tiny, family)(**k), length, dtype, r.choice(["1GB", 20_000]))


def one(kld, r, family, folder):
    cls, cfg, length, dtype, shard = draw(r, family)
    model = cls(cfg).float().eval()
    tiny.randomise(model, r.randrange(1 << 30))
    for p in model.parameters():
        p.copy_(p.to(dtype).float())
    tiny.copy.deepcopy(model).to(dtype).save_pretrained(folder, max_shard_size=shard)
    path = folder / "config.json"
    old = r.random() < 0.5
    if old:
        # head_dim stays: only where it equals hidden/heads do old files leave it out.
        path.write_text(json.dumps(tiny.released(json.loads(path.read_text()))))
    ids = torch.tensor([r.randrange(cfg.vocab_size) for _ in range(length)])
    want = tiny.logits_of(cls, folder, ids).numpy().astype(np.float64)
    np.save(folder / "ids.npy", ids.numpy())
    done = subprocess.run([kld, "logits", "--quiet", "--model", folder, "--ids", folder / "ids.npy", "-o", folder / "out.npy",
                           "--precision", "fp32"], capture_output=True, text=True)
    if done.returncode:
        return f"exit {done.returncode}: {done.stderr.strip()}"
    got = np.load(folder / "out.npy").astype(np.float64)
    return float((np.abs(got - want).max(1) / np.abs(want).max(1)).max())


def main(kld, n, seed):
    kld, bad = pathlib.Path(kld).resolve(), 0
    for family in ("llama", "mistral", "qwen2", "qwen3"):
        worst = 0.0
        for i in range(n):
            with tempfile.TemporaryDirectory() as d:
                folder = pathlib.Path(d)
                off = one(kld, random.Random(f"{seed}-{family}-{i}"), family, folder)
                if isinstance(off, str) or not off <= LIMIT:
                    bad += 1
                    print(f"{family} {i}: {off}\n  {json.dumps(json.loads((folder / 'config.json').read_text()))}")
                else:
                    worst = max(worst, off)
        print(f"{family}: {n} checkpoints, largest relative error {worst:.1e}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20, sys.argv[3] if len(sys.argv) > 3 else "1"))
