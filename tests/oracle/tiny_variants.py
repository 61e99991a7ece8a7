"""Layouts that released checkpoints have and transformers does not write: what tiny_moe.py does to tensors after the run, and
checkpoints that hold the weights of another one in another layout (COPIES: same ids, same logits)."""
import json, re, shutil
import torch
from safetensors.torch import load_file, save_file
from tiny import SEED, dump_json

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def finish(folder):
    for f in folder.iterdir():
        f.chmod(0o644)
    return sum(f.stat().st_size for f in folder.iterdir())


def add_extra(w, g, shapes):
    """Tensors that a reader must skip. Their values are as large as the others', so that using one by mistake shows."""
    return {**w, **{n: torch.randn(s, generator=g).to(torch.bfloat16) for n, s in shapes.items()}}


def add_prefix(w, g, prefix, shapes):
    return add_extra({prefix + n: t for n, t in w.items()}, g, shapes)


def add_mtp(w, g, n):
    """The layer for multi-token prediction: it looks like layer n of the model, and is stored under that number. Two experts are
    enough: a reader skips it by its number, whatever it holds."""
    last, new = f"model.layers.{n - 1}.", f"model.layers.{n}."
    extra = {new + k[len(last):]: tuple(t.shape) for k, t in w.items() if k.startswith(last) and not re.search(r"experts\.[2-9]\.", k)}
    vocab, hidden = w["model.embed_tokens.weight"].shape
    extra |= {new + "embed_tokens.weight": (vocab, hidden), new + "eh_proj.weight": (hidden, 2 * hidden),
              new + "enorm.weight": (hidden,), new + "hnorm.weight": (hidden,), new + "shared_head.norm.weight": (hidden,),
              new + "shared_head.head.weight": (vocab, hidden)}
    return add_extra(w, g, extra)


def fuse_mimo_qkv(w, shards):
    """One matrix a layer, of `shards` pieces one after the other, each with its share of q, then of k, then of v. The number of
    pieces is num_key_value_heads in every layer, also where a sliding layer has more key heads than that."""
    out = {n: t for n, t in w.items() if not re.search(r"model\.layers\.\d+\.self_attn\.[qkv]_proj", n)}
    for n in w:
        if m := re.fullmatch(r"(model\.layers\.\d+\.self_attn\.)q_proj\.weight", n):
            parts = [w[m[1] + f"{x}_proj.weight"].chunk(shards) for x in "qkv"]
            out[m[1] + "qkv_proj.weight"] = torch.cat([p for shard in zip(*parts) for p in shard])
    return out


def mxfp4(x):
    """Blocks of 32 along the last dimension -> codes, scale exponents (bias 127) and the values they stand for."""
    b = x.reshape(*x.shape[:-1], -1, 32)
    e = torch.floor(torch.log2(b.abs().amax(-1).clamp_min(2.0 ** -126))) - 2  # the largest of a block lands in 4..8
    y = b / torch.exp2(e)[..., None]
    # Nearest value, ties to the code with the even mantissa: 8 codes in rising order, so that is the even code.
    a = y.abs().clamp(max=6)
    mid = (E2M1[1:] + E2M1[:-1]) / 2
    up = torch.searchsorted(mid, a.contiguous(), right=True)
    down = torch.searchsorted(mid, a.contiguous(), right=False)
    code = torch.where(down % 2 == 0, down, up)
    val = (E2M1[code] * torch.sign(y) * torch.exp2(e)[..., None]).reshape(x.shape)
    code = (code + 8 * (y < 0)).to(torch.uint8)
    return code[..., 0::2] | code[..., 1::2] << 4, (e + 127).to(torch.uint8), val


def quantize_gpt_oss(model):
    """The experts of the model become what MXFP4 can hold; returns the released tensors, whose rows are outputs."""
    out = {}
    for name, p in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales, val = mxfp4(p.transpose(1, 2).contiguous())
            out[name + "_blocks"], out[name + "_scales"] = blocks, scales
            p.copy_(val.transpose(1, 2))
    return out


def nested(cfg, w, g, cls, model_type, wrapper_keys):
    """A text model inside a multimodal release: nested config, a longer prefix and tensors of the vision tower."""
    text = {k: v for k, v in cfg.items() if k not in ("architectures", "dtype", "transformers_version")}
    top = dict(architectures=[cls], model_type=model_type, dtype="bfloat16", transformers_version="5.0.0.dev0", text_config=text,
               vision_config=dict(model_type="pixtral", hidden_size=8, num_hidden_layers=1), **wrapper_keys)
    return top, add_prefix(w, g, "language_model.", {
        "vision_tower.transformer.layers.0.attention.q_proj.weight": (8, 8), "vision_tower.ln_pre.weight": (8,),
        "multi_modal_projector.linear_1.weight": (6, 8)})


def mistral3(cfg, w, g):
    return nested(cfg, w, g, "Mistral3ForConditionalGeneration", "mistral3", dict(
        image_token_index=10, multimodal_projector_bias=False, projector_hidden_act="gelu", spatial_merge_size=2,
        vision_feature_layer=-1, tie_word_embeddings=False))


def fuse_experts(cfg, w, g):
    """All experts of a layer in two tensors: gate rows before up rows, names without .weight."""
    out = {n: t for n, t in w.items() if ".mlp.experts." not in n}
    for layer in {n.split(".mlp.experts.")[0] for n in w if ".mlp.experts." in n}:
        get = lambda x: torch.stack([w[f"{layer}.mlp.experts.{e}.{x}_proj.weight"] for e in range(cfg["num_experts"])])
        out[layer + ".mlp.experts.gate_up_proj"] = torch.cat([get("gate"), get("up")], 1)
        out[layer + ".mlp.experts.down_proj"] = get("down")
    return cfg, out


def unchanged(cfg, w, g):
    return cfg, w


# name -> source, change of (config, tensors), number of files
COPIES = {
    "qwen3_moe-fused": ("qwen3_moe", fuse_experts, 1),
    "deepseek_v3-shards": ("deepseek_v3", unchanged, 2),
    "mistral3": ("ministral3", mistral3, 1),
    "mistral3-moe": ("mistral4", mistral3, 1),
}


def copy(name, out):
    source, change, files = COPIES[name]
    src, dst = out / source, out / name
    shutil.rmtree(dst, ignore_errors=True)
    dst.mkdir()
    g = torch.Generator().manual_seed(SEED + 2000 + list(COPIES).index(name))
    cfg, w = change(json.loads((src / "config.json").read_text()), load_file(src / "model.safetensors"), g)
    dump_json(dst / "config.json", cfg)
    names = sorted(w)
    if files == 1:
        save_file(w, dst / "model.safetensors", metadata={"format": "pt"})
    else:
        where = {n: f"model-{i * files // len(names) + 1:05}-of-{files:05}.safetensors" for i, n in enumerate(names)}
        for f in sorted(set(where.values())):
            save_file({n: w[n] for n in names if where[n] == f}, dst / f, metadata={"format": "pt"})
        size = sum(t.numel() * t.element_size() for t in w.values())
        dump_json(dst / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": where})
    for f in ("ids.npy", "logits.npy"):
        shutil.copy(src / f, dst / f)
    print(f"{name:22} {finish(dst) / 1024:6.0f} KiB  as {source}", flush=True)
