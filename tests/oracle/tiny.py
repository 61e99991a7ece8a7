#!/usr/bin/env python3
"""Tiny random checkpoints with their logits: the oracle of the engine's tests.

    tiny.py [OUT_DIR] [NAME,NAME...]      (default OUT_DIR: tests/golden/models)

Each OUT_DIR/NAME/ is a checkpoint in the Hugging Face layout plus
    ids.npy     int64   [T]         token ids
    logits.npy  float32 [T][vocab]  what transformers computes for them

Every parameter is drawn anew, because the default initialisation hides bugs (norm weights are 1, biases are 0). The weights are
rounded to the dtype of the file first, and the logits come from those rounded weights in FP32 with eager attention. So an engine
that reads the file exactly and computes in FP32 should agree to about 1e-5. Sizes differ wherever the format lets them differ.
"""
import copy, json, pathlib, shutil, sys
import numpy as np
import torch
import transformers as T
from safetensors.torch import load_file, save_file

torch.set_grad_enabled(False)
T.utils.logging.disable_progress_bar()
torch.set_num_threads(1)  # one order of sums, whatever the machine
SEED = 20517
BASE = dict(vocab_size=128, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=None)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)


def rope(kind="default", theta=10000.0, **more):
    return dict(rope_type=kind, rope_theta=theta, **more)


def llama(**k):
    return T.LlamaForCausalLM, T.LlamaConfig(**{**BASE, "rms_norm_eps": 1e-5, **k})


def mistral(**k):
    return T.MistralForCausalLM, T.MistralConfig(**{**BASE, **k})


def qwen2(**k):
    return T.Qwen2ForCausalLM, T.Qwen2Config(**{**BASE, "rms_norm_eps": 1e-6, **k})


def qwen3(**k):
    return T.Qwen3ForCausalLM, T.Qwen3Config(**{**BASE, "rms_norm_eps": 1e-6, **k})


def sizes(hidden, inter, layers, nq, nk, hd=None):
    s = dict(hidden_size=hidden, intermediate_size=inter, num_hidden_layers=layers, num_attention_heads=nq, num_key_value_heads=nk)
    return s if hd is None else dict(s, head_dim=hd)


def released(cfg, drop=(), **more):
    """The spelling of files published before transformers 5: rope_theta and rope_scaling at the top, no layer_types, torch_dtype."""
    c = copy.deepcopy(cfg)
    r = c.pop("rope_parameters")
    c["rope_theta"] = r.pop("rope_theta")
    c["rope_scaling"] = None if r["rope_type"] == "default" else r
    c["torch_dtype"] = c.pop("dtype")
    c["transformers_version"] = "4.43.4"
    for k in ("layer_types", *drop):
        c.pop(k, None)
    c.update(more)
    return dict(sorted(c.items()))


NO_HD = lambda c: released(c, drop=["head_dim"])  # head_dim absent: it is hidden_size / num_attention_heads
YARN = dict(factor=4.0, original_max_position_embeddings=16)

# name -> how to build it; then options: dtype of the file, T, rewrite(config dict), shard (bytes a shard)
MODELS = {
    "llama": (lambda: llama(**sizes(54, 96, 2, 6, 2, 12), rope_parameters=dict(LLAMA3)), {}),
    "llama-old": (lambda: llama(**sizes(60, 88, 2, 6, 3), rope_parameters=dict(LLAMA3), attention_bias=True, mlp_bias=True),
                  dict(rewrite=NO_HD, shard=80_000)),
    # A large eps, so that a wrong or ignored one shows.
    "mistral": (lambda: mistral(**sizes(56, 96, 2, 4, 2, 20), sliding_window=8, rms_norm_eps=1e-2, rope_parameters=rope()), {}),
    "mistral-nowin": (lambda: mistral(**sizes(48, 80, 2, 4, 1), sliding_window=None, rms_norm_eps=1e-5,
                                      rope_parameters=rope(theta=1e6)), dict(rewrite=NO_HD, T=70)),
    "qwen2": (lambda: qwen2(**sizes(60, 96, 2, 6, 2), tie_word_embeddings=True, rope_parameters=rope(theta=1e6)), {}),
    "qwen2-window": (lambda: qwen2(**sizes(48, 72, 3, 4, 2), use_sliding_window=True, sliding_window=8, max_window_layers=1,
                                   rope_parameters=rope()), {}),
    # The same, where only max_window_layers says which layers slide.
    "qwen2-window-old": (lambda: qwen2(**sizes(48, 72, 3, 4, 2), use_sliding_window=True, sliding_window=8, max_window_layers=1,
                                       rope_parameters=rope()), dict(rewrite=released)),
    "qwen3": (lambda: qwen3(**sizes(32, 48, 2, 4, 2, 24), tie_word_embeddings=True, rope_parameters=rope(theta=1e6)),
              dict(dtype=torch.float32)),
    # The base of the quantized checkpoints that quant.py makes: linear inputs are multiples of 32.
    "qwen3-base": (lambda: qwen3(**sizes(64, 96, 2, 4, 2, 24), rope_parameters=rope(theta=1e6)), {}),
    "qwen3-yarn": (lambda: qwen3(**sizes(48, 64, 2, 4, 2, 24), rope_parameters=rope("yarn", **YARN)),
                   dict(dtype=torch.float16, rewrite=released)),
    "qwen3-yarn-factor": (lambda: qwen3(**sizes(48, 64, 2, 4, 2, 24), rope_parameters=rope(
        "yarn", **YARN, attention_factor=0.85, beta_fast=2.0, beta_slow=0.25, truncate=False)), dict(dtype=torch.float16)),
    "llama-yarn": (lambda: llama(**sizes(48, 80, 2, 6, 2, 12), rope_parameters=rope("yarn", **YARN)), {}),
    "llama-yarn-mscale": (lambda: llama(**sizes(40, 56, 2, 4, 2, 12), rope_parameters=rope(
        "yarn", **YARN, mscale=0.7, mscale_all_dim=1.0)), {}),
    "llama-linear": (lambda: llama(**sizes(48, 80, 2, 6, 2, 12), rope_parameters=rope("linear", factor=2.0)), {}),
    # As SmolLM2: tied, odd head counts, odd vocabulary, and keys that mean nothing to the forward pass.
    "smollm-like": (lambda: llama(**sizes(72, 96, 2, 9, 3), vocab_size=131, tie_word_embeddings=True,
                                  rope_parameters=rope(theta=1e5)),
                    dict(rewrite=lambda c: released(c, drop=["head_dim"], is_llama_config=True, rope_interleaved=False))),
}


def randomise(model, seed):
    g = torch.Generator().manual_seed(seed)
    tied = model.config.tie_word_embeddings
    for name, p in model.named_parameters():
        n = torch.randn(p.shape, generator=g)
        if p.dim() == 1:
            p.add_(0.3 * n)  # norms move off 1, biases off 0
        else:
            gain = (2.0 if tied else 4.0) if "embed" in name else 1.6
            p.copy_(n * gain * p.shape[-1] ** -0.5)


def logits_of(cls, folder, ids):
    m = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    assert all(p.dtype == torch.float32 for p in m.parameters())
    return m(input_ids=ids[None], use_cache=False).logits[0].float()


def dump_json(path, obj):
    path.write_text(json.dumps(obj, indent=2) + "\n")


def make(name, out):
    build, opt = MODELS[name]
    dtype = opt.get("dtype", torch.bfloat16)
    cls, cfg = build()
    model = cls(cfg).float().eval()
    # Twins get the same seed: they differ in the spelling of the config alone.
    randomise(model, SEED + list(MODELS).index(name.removesuffix("-old") if name == "qwen2-window-old" else name))
    for p in model.parameters():
        p.copy_(p.to(dtype).float())
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    # The copy is cast, not the model: a cast model would also round its rotary frequencies.
    copy.deepcopy(model).to(dtype).save_pretrained(folder, max_shard_size=opt.get("shard", "1GB"))
    if "rewrite" in opt:
        dump_json(folder / "config.json", opt["rewrite"](json.loads((folder / "config.json").read_text())))
    ids = torch.randint(6, cfg.vocab_size, (opt.get("T", 45),), generator=torch.Generator().manual_seed(SEED + 1))
    model.set_attn_implementation("eager")
    want = model(input_ids=ids[None], use_cache=False).logits[0]
    got = logits_of(cls, folder, ids)
    diff = (want - got).abs().max().item()
    assert diff < 1e-4, f"{name}: the file does not hold what was run ({diff})"
    np.save(folder / "ids.npy", ids.numpy())
    np.save(folder / "logits.npy", got.numpy())
    for f in folder.iterdir():
        f.chmod(0o644)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name:18} {size / 1024:6.0f} KiB  logit std {got.std():.3f}  reload diff {diff:.1e}", flush=True)


def make_nested(out):
    """qwen3 as a text model inside a multimodal release: nested config, longer tensor prefix, tensors to skip."""
    src, dst = out / "qwen3", out / "qwen3-nested"
    shutil.rmtree(dst, ignore_errors=True)
    dst.mkdir()
    cfg = json.loads((src / "config.json").read_text())
    top = {"architectures": cfg.pop("architectures"), "dtype": cfg.pop("dtype"), "model_type": "qwen3",
           "tie_word_embeddings": cfg["tie_word_embeddings"], "transformers_version": cfg.pop("transformers_version"),
           "text_config": cfg, "vision_config": {"depth": 1, "hidden_size": 32}}
    dump_json(dst / "config.json", top)
    w = {k.replace("model.", "model.language_model.", 1): v for k, v in load_file(src / "model.safetensors").items()}
    g = torch.Generator().manual_seed(SEED)
    w["model.visual.x.weight"] = torch.randn(4, 6, generator=g)
    w["mtp.layers.0.x.weight"] = torch.randn(5, 3, generator=g)
    save_file(w, dst / "model.safetensors", metadata={"format": "pt"})
    (dst / "model.safetensors").chmod(0o644)
    for f in ("ids.npy", "logits.npy"):
        shutil.copy(src / f, dst / f)


if __name__ == "__main__":
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "golden/models")
    only = sys.argv[2].split(",") if len(sys.argv) > 2 else list(MODELS)
    out.mkdir(parents=True, exist_ok=True)
    for n in only:
        if n in MODELS:
            make(n, out)
    if "qwen3" in only or "qwen3-nested" in only:
        make_nested(out)
