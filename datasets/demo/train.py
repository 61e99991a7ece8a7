#!/usr/bin/env python3
"""Make the demo checkpoints: a 2 M parameter reference (ref/) and its NVFP4 distillation (qad/).

    train.py --tokenizer --text train.jsonl[.xz] --out DIR      BPE tokenizer, on the CPU, about two minutes
    train.py             --text train.jsonl[.xz] --out DIR      everything else, on one GPU

DIR/ref must hold the tokenizer before the second step. Training stops by the clock (--train-seconds and
--qad-seconds), so figures move slightly with the machine; figures.json records what was reached.
"""
import argparse
import functools
import json
import lzma
import math
import pathlib
import platform
import time

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
EOT, VOCAB = "<|endoftext|>", 4096
HIDDEN, INTER, LAYERS, HEADS, HEAD_DIM, THETA, EPS, CONTEXT = 128, 384, 8, 4, 32, 10000.0, 1e-6, 2048
# name here -> (name in the checkpoint, out, in); one KV head, so k and v are a single head wide
LINEAR = {"q": ("self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN), "k": ("self_attn.k_proj", HEAD_DIM, HIDDEN),
          "v": ("self_attn.v_proj", HEAD_DIM, HIDDEN), "o": ("self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM),
          "gate": ("mlp.gate_proj", INTER, HIDDEN), "up": ("mlp.up_proj", INTER, HIDDEN),
          "down": ("mlp.down_proj", HIDDEN, INTER)}
NORM = {"n1": ("input_layernorm", HIDDEN), "n2": ("post_attention_layernorm", HIDDEN),
        "qn": ("self_attn.q_norm", HEAD_DIM), "kn": ("self_attn.k_norm", HEAD_DIM)}
FUSED = [("q", "k", "v"), ("o",), ("gate", "up"), ("down",)]        # engines run these as one GEMM: one global scale


def read_text(path):
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as f:
        return [json.loads(line)["text"] for line in f]


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


# ---------------------------------------------------------------- tokenizer

def train_tokenizer(texts, folder):
    """The Qwen2/Qwen3 recipe at a vocabulary of 4096: 256 bytes, 3839 merges, one special token with the last id."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    split = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
             r"\s*[\r\n]+|\s+(?!\S)|\s+")
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(split), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB - 1, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    tok.add_special_tokens([AddedToken(EOT, special=True, normalized=False)])
    assert tok.get_vocab_size() == VOCAB and tok.token_to_id(EOT) == VOCAB - 1
    folder.mkdir(parents=True, exist_ok=True)
    data = json.loads(tok.to_str())
    bytelevel = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    data["pre_tokenizer"]["pretokenizers"][1] = data["decoder"] = bytelevel      # all flags as Qwen's files have them
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
    write_json(folder / "tokenizer_config.json", {
        "add_bos_token": False, "add_prefix_space": False,
        "added_tokens_decoder": {str(VOCAB - 1): {"content": EOT, "lstrip": False, "normalized": False,
                                                  "rstrip": False, "single_word": False, "special": True}},
        "bos_token": None, "clean_up_tokenization_spaces": False, "eos_token": EOT, "errors": "replace",
        "model_max_length": CONTEXT, "pad_token": EOT, "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None})


# ---------------------------------------------------------------- model: Qwen3, weights of all layers stacked

def init(device):
    g = torch.Generator().manual_seed(1)
    p = {"embed": torch.randn(VOCAB, HIDDEN, generator=g) * 0.02, "norm": torch.ones(HIDDEN)}
    for n, (_, rows, cols) in LINEAR.items():
        std = cols ** -0.5 * ((2 * LAYERS) ** -0.5 if n in ("o", "down") else 1.0)
        p[n] = torch.randn(LAYERS, rows, cols, generator=g) * std
    for n, (_, size) in NORM.items():
        p[n] = torch.ones(LAYERS, size)
    return {n: t.to(device) for n, t in p.items()}


def rms(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def logits(p, ids, dtype, tap=None):
    """[B][T] ids -> [B][T][VOCAB]. Products in `dtype`, residual stream and norms FP32. tap: amax of each input."""
    def lin(name, x):
        if tap is not None:
            tap[name][i] = max(tap[name][i], x.abs().max().item())
        return F.linear(x.to(dtype), p[name][i].to(dtype))

    (b, t), half = ids.shape, HEAD_DIM // 2
    angle = torch.arange(t, device=ids.device)[:, None] * \
        THETA ** (-torch.arange(half, device=ids.device, dtype=torch.float32) / half)
    cos, sin = (torch.cat([f(angle)] * 2, -1) for f in (torch.cos, torch.sin))

    def rope(x):
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    x = p["embed"][ids].float()
    for i in range(LAYERS):
        h = rms(x, p["n1"][i])
        q, k, v = (lin(n, h).view(b, t, -1, HEAD_DIM).transpose(1, 2) for n in "qkv")
        q, k = rope(rms(q.float(), p["qn"][i])).to(dtype), rope(rms(k.float(), p["kn"][i])).to(dtype)
        a = F.scaled_dot_product_attention(q, k.expand(-1, HEADS, -1, -1), v.expand(-1, HEADS, -1, -1), is_causal=True)
        x = x + lin("o", a.transpose(1, 2).reshape(b, t, -1))
        h = rms(x, p["n2"][i])
        x = x + lin("down", F.silu(lin("gate", h)) * lin("up", h))
    return F.linear(rms(x, p["norm"]).to(dtype), p["embed"].to(dtype))


# ---------------------------------------------------------------- NVFP4

def global_scales(p):
    """FP32 amax / (6 * 448) a layer, the maximum over the linears that engines fuse."""
    out = {}
    for group in FUSED:
        amax = torch.stack([p[n].detach().abs().amax((1, 2)) for n in group]).amax(0)
        out.update({n: amax / (6 * 448) for n in group})
    return out


def encode(w, g):
    """w [L][out][in], g [L] -> sign and magnitude of every element as E2M1 values, and E4M3 scales of blocks of 16."""
    g = g[:, None, None]
    block = w.unflatten(-1, (-1, 16))
    scale = (block.abs().amax(-1) / 6 / g).clamp(2.0 ** -9, 448).to(torch.float8_e4m3fn)
    a = block.abs() / (scale.float() * g)[..., None]
    # nearest value of 0 .5 1 1.5 2 3 4 6; at the midpoints > or >= picks the even code
    value = 0.5 * ((a > 0.25) + 0.0 + (a >= 0.75) + (a > 1.25) + (a >= 1.75)) + \
        ((a > 2.5) + 0.0 + (a >= 3.5)) + 2.0 * (a > 5)
    return torch.copysign(value, block), scale


def decode(value, scale, g):
    """Element times block scale is exact in FP32; the one rounding is the product with the FP32 global."""
    return ((value * scale.float()[..., None]) * g[:, None, None, None]).flatten(-2)


def fake_quantize(p):
    """The weights as NVFP4 represents them; the gradient passes straight through to the latent weights."""
    out, g = dict(p), global_scales(p)
    for n in LINEAR:
        w = p[n].detach()
        out[n] = p[n] + (decode(*encode(w, g[n]), g[n]) - w) if p[n].requires_grad else decode(*encode(w, g[n]), g[n])
    return out


# ---------------------------------------------------------------- optimization

def orthogonalize(m):
    """Newton-Schulz iteration of Muon, on a stack of matrices."""
    x = m.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if tall else x).float()


class Muon:
    """Muon for the stacked matrices: momentum, orthogonalized update, decoupled weight decay."""
    def __init__(self, params, decay):
        self.params, self.decay = params, decay
        self.momentum = [torch.zeros_like(w) for w in params]
        self.update = compiled(lambda grad, mom: orthogonalize(grad + 0.95 * mom))
        with torch.no_grad():
            for m in self.momentum:                                  # compiles, outside the budget
                self.update(m, m)

    @torch.no_grad()
    def step(self, lr):
        for w, m in zip(self.params, self.momentum):
            m.mul_(0.95).add_(w.grad)
            scale = max(1, w.shape[-2] / w.shape[-1]) ** 0.5
            w.mul_(1 - lr * self.decay).sub_(self.update(w.grad, m), alpha=lr * scale)
            w.grad = None


def batches(stream, rows, length, seed):
    """Endless epochs over the token stream: windows in random order, at a new offset each epoch."""
    g = torch.Generator().manual_seed(seed)
    span = torch.arange(length + 1, device=stream.device)
    while True:
        shift = int(torch.randint(length, (1,), generator=g))
        starts = torch.randperm((len(stream) - shift - 1) // length, generator=g) * length + shift
        starts = starts.to(stream.device)                            # once an epoch: a copy a step would stall the GPU
        for at in range(0, len(starts) - rows + 1, rows):
            yield stream[starts[at:at + rows, None] + span].long()


def run(label, loss_of, step, data, seconds):
    """Steps until the clock says stop; step(progress 0..1) applies the gradients. -> number of steps."""
    loss_of(next(data)).backward()                                   # compiles, outside the budget
    sync()
    start, n, mean = time.time(), 0, 0.0
    while (done := (time.time() - start) / seconds) < 1:
        loss = loss_of(next(data))
        loss.backward()
        step(done)
        n += 1
        mean = mean + loss.detach()
        if n % ARGS.log == 0:
            print(f"{label}: step {n}  {100 * done:.0f} %  loss {mean.item() / ARGS.log:.4f}", flush=True)
            mean = 0.0
    sync()
    return n


def train_reference(stream):
    p = {n: t.requires_grad_() for n, t in init(DEVICE).items()}
    matrices = [p[n] for n in LINEAR]
    muon = Muon(matrices, decay=0.02)
    adam = torch.optim.AdamW([p[n] for n in p if n not in LINEAR], lr=1, betas=(0.9, 0.95), weight_decay=0.0)

    @compiled
    def loss_of(ids):
        return F.cross_entropy(logits(p, ids[:, :-1], DTYPE).flatten(0, 1).float(), ids[:, 1:].flatten())

    def step(done):
        shape = min(1, done / 0.01, (1 - done) / 0.6)                # warm up, hold, then fall to nothing
        muon.step(ARGS.lr * shape)
        for group in adam.param_groups:
            group["lr"] = 0.2 * ARGS.lr * shape
        adam.step()
        adam.zero_grad(set_to_none=True)

    steps = run("train", loss_of, step, batches(stream, ARGS.rows, ARGS.length, 2), ARGS.train_seconds)
    return {n: t.detach().bfloat16().float() for n, t in p.items()}, steps       # what the file will hold


def distil(ref, stream):
    student = {n: t.clone().requires_grad_(n != "embed") for n, t in ref.items()}
    params = [t for t in student.values() if t.requires_grad]
    adam = torch.optim.AdamW(params, lr=1, betas=(0.9, 0.95), weight_decay=0.0)

    @compiled
    def loss_of(ids):
        ids = ids[:, :-1]
        with torch.no_grad():
            want = logits(ref, ids, DTYPE).float().log_softmax(-1)
        got = logits(fake_quantize(student), ids, DTYPE).float().log_softmax(-1)
        return (want.exp() * (want - got)).sum(-1).mean()

    def step(done):
        for group in adam.param_groups:
            group["lr"] = ARGS.qad_lr * min(1, done / 0.01) * 0.5 * (1 + math.cos(math.pi * done))
        adam.step()
        adam.zero_grad(set_to_none=True)

    steps = run("qad", loss_of, step, batches(stream, ARGS.rows // 2, ARGS.length, 3), ARGS.qad_seconds)
    out = {n: t.detach() for n, t in student.items()}
    for n in [*NORM, "norm"]:
        out[n] = out[n].bfloat16().float()
    return out, steps


# ---------------------------------------------------------------- evaluation and export

@torch.no_grad()
def evaluate(ref, candidates, tok):
    """Held-out text, each document in windows of 512 tokens, FP32. -> tokens, nll, {name: mean KL(ref||candidate)}"""
    count, nll, kl = 0, 0.0, dict.fromkeys(candidates, 0.0)
    for line in (HERE / "heldout.jsonl").read_text().splitlines():
        ids = tok.encode(json.loads(line)["text"]).ids
        for at in range(0, len(ids) - 1, 512):
            window = torch.tensor([ids[at:at + 512]], device=DEVICE)
            if window.shape[1] < 2:
                continue
            want = logits(ref, window[:, :-1], torch.float32).double().log_softmax(-1)
            nll -= want.gather(-1, window[:, 1:, None]).sum().item()
            count += window.shape[1] - 1
            for name, p in candidates.items():
                got = logits(p, window[:, :-1], torch.float32).double().log_softmax(-1)
                kl[name] += (want.exp() * (want - got)).sum().item()
    return count, nll / count, {name: s / count for name, s in kl.items()}


@torch.no_grad()
def calibrate(p, stream):
    """amax of every linear's input over 64 training windows of 512 tokens."""
    tap = {n: [0.0] * LAYERS for n in LINEAR}
    data = batches(stream, 8, 512, 4)
    for _ in range(8):
        logits(p, next(data)[:, :-1], torch.float32, tap)
    return tap


def named(p):
    """The unquantized tensors under their checkpoint names."""
    out = {"model.embed_tokens.weight": p["embed"], "model.norm.weight": p["norm"]}
    for i in range(LAYERS):
        out.update({f"model.layers.{i}.{full}.weight": p[n][i] for n, (full, _) in NORM.items()})
    return {k: t.bfloat16() for k, t in out.items()}


def config():
    """Keys as Qwen3 checkpoints on the Hub spell them; transformers_version is the one that spelling belongs to."""
    return {"architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": VOCAB - 1, "eos_token_id": VOCAB - 1, "head_dim": HEAD_DIM, "hidden_act": "silu",
            "hidden_size": HIDDEN, "initializer_range": 0.02, "intermediate_size": INTER,
            "max_position_embeddings": CONTEXT, "max_window_layers": LAYERS, "model_type": "qwen3",
            "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "num_key_value_heads": 1,
            "rms_norm_eps": EPS, "rope_scaling": None, "rope_theta": THETA, "sliding_window": None,
            "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
            "use_cache": True, "use_sliding_window": False, "vocab_size": VOCAB}


def save(folder, tensors, conf):
    from safetensors.torch import save_file
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: t.contiguous().cpu() for k, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    write_json(folder / "config.json", conf)
    write_json(folder / "generation_config.json", {"bos_token_id": VOCAB - 1, "eos_token_id": VOCAB - 1,
                                                   "transformers_version": conf["transformers_version"]})


def export_reference(folder, p):
    tensors = named(p)
    for i in range(LAYERS):
        tensors.update({f"model.layers.{i}.{full}.weight": p[n][i].bfloat16() for n, (full, _, _) in LINEAR.items()})
    save(folder, tensors, config())


def export_nvfp4(folder, p, amax_in):
    """ModelOpt's layout: packed codes (low nibble = even element), block scales, one weight and one input global."""
    tensors, g = named(p), global_scales(p)
    for n, (full, _, _) in LINEAR.items():
        value, scale = encode(p[n], g[n])
        steps = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=value.device)
        code = torch.searchsorted(steps, value.abs().contiguous()).to(torch.uint8)
        code = (code | (value.signbit().to(torch.uint8) << 3)).flatten(-2)
        for i in range(LAYERS):
            x = f"model.layers.{i}.{full}."
            tensors[x + "weight"] = code[i, :, 0::2] | (code[i, :, 1::2] << 4)
            tensors[x + "weight_scale"] = scale[i]
            tensors[x + "weight_scale_2"] = g[n][i].float()
            tensors[x + "input_scale"] = torch.tensor(amax_in[n][i], dtype=torch.float32) / (6 * 448)
    group = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    producer = {"name": "modelopt", "version": "0.39.0"}                 # whose layout this is
    save(folder, tensors, config() | {"quantization_config": {
        "config_groups": {"group_0": {"input_activations": group, "weights": group, "targets": ["Linear"]}},
        "ignore": ["lm_head"], "quant_algo": "NVFP4", "producer": producer, "quant_method": "modelopt"}})
    write_json(folder / "hf_quant_config.json", {"producer": producer, "quantization": {
        "quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": ["lm_head"]}})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(f"../ref/{name}")


def check_export(folder, used):
    """Decode the written file on its own terms and require the very bits of the weights that were evaluated."""
    from safetensors.torch import load_file
    t = load_file(folder / "model.safetensors")
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    for n, (full, rows, cols) in LINEAR.items():
        for i in range(LAYERS):
            x = f"model.layers.{i}.{full}."
            code = torch.stack([t[x + "weight"] & 15, t[x + "weight"] >> 4], -1).flatten(-2).long()
            w = (table[code].unflatten(-1, (-1, 16)) * t[x + "weight_scale"].float()[..., None]).flatten(-2)
            w = w * t[x + "weight_scale_2"]
            assert w.shape == (rows, cols) and torch.equal(w.view(torch.int32), used[n][i].cpu().view(torch.int32)), x
    for k, v in named(used).items():
        assert torch.equal(t[k].view(torch.int16), v.cpu().view(torch.int16)), k


@torch.no_grad()
def check_transformers(folder, p, ids):
    """The model above is Qwen3: Transformers computes the same logits from the written files."""
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(DEVICE).eval()
    diff = (model(ids).logits - logits(p, ids, torch.float32)).abs().max().item()
    print(f"largest logit difference from Transformers: {diff:.2e}")
    assert diff < 1e-3


def main():
    import transformers
    from tokenizers import Tokenizer
    began = time.time()
    texts = read_text(ARGS.text)
    tok = Tokenizer.from_file(str(ARGS.out / "ref/tokenizer.json"))
    flat = [i for e in tok.encode_batch_fast(texts, add_special_tokens=False) for i in (*e.ids, VOCAB - 1)]
    size = sum(len(t.encode()) for t in texts)
    stream = torch.tensor(flat, dtype=torch.int16, device=DEVICE)
    print(f"{size} bytes, {len(flat)} tokens, ready after {time.time() - began:.0f} s", flush=True)

    ref, train_steps = train_reference(stream)
    export_reference(ARGS.out / "ref", ref)
    rtn = fake_quantize(ref)
    count, nll, kl = evaluate(ref, {"rtn": rtn}, tok)
    print(f"held out: {count} positions, nll {nll:.4f}, KL(ref||rtn) {kl['rtn']:.5f}", flush=True)

    latent, qad_steps = distil(ref, stream)
    qad = fake_quantize(latent)
    amax_in = calibrate(qad, stream)
    export_nvfp4(ARGS.out / "qad", latent, amax_in)
    check_export(ARGS.out / "qad", qad)
    check_transformers(ARGS.out / "ref", ref, stream[None, :256].long())
    count, nll, kl = evaluate(ref, {"rtn": rtn, "qad": qad}, tok)
    figures = {
        "parameters": sum(t.numel() for t in ref.values()),
        "train": {"bytes": size, "tokens": len(flat), "steps": train_steps, "tokens_a_step": ARGS.rows * ARGS.length,
                  "epochs": round(train_steps * ARGS.rows * ARGS.length / len(flat), 1)},
        "qad": {"steps": qad_steps, "tokens_a_step": ARGS.rows // 2 * ARGS.length},
        "heldout": {"positions": count, "window": 512, "nll_ref": round(nll, 5),
                    "perplexity_ref": round(math.exp(nll), 3),
                    "kl_ref_rtn": round(kl["rtn"], 6), "kl_ref_qad": round(kl["qad"], 6),
                    "qad_over_rtn": round(kl["qad"] / kl["rtn"], 4)},
        "wall_seconds": round(time.time() - began),
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else platform.processor() or "cpu",
        "versions": {"python": platform.python_version(), "torch": torch.__version__,
                     "transformers": transformers.__version__, "tokenizers": __import__("tokenizers").__version__,
                     "safetensors": __import__("safetensors").__version__, "cuda": torch.version.cuda}}
    write_json(ARGS.out / "figures.json", figures)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    cli.add_argument("--text", type=pathlib.Path, required=True)
    cli.add_argument("--out", type=pathlib.Path, default=HERE)
    cli.add_argument("--tokenizer", action="store_true", help="train the tokenizer and stop")
    cli.add_argument("--train-seconds", type=float, default=250)
    cli.add_argument("--qad-seconds", type=float, default=120)
    cli.add_argument("--rows", type=int, default=64, help="windows a training step")
    cli.add_argument("--length", type=int, default=CONTEXT, help="tokens a training window")
    cli.add_argument("--lr", type=float, default=0.02, help="Muon; AdamW for the rest takes a fifth of it")
    cli.add_argument("--qad-lr", type=float, default=1e-3)
    cli.add_argument("--log", type=int, default=100, help="steps between progress lines")
    cli.add_argument("--eager", action="store_true", help="no torch.compile")
    ARGS = cli.parse_args()
    if ARGS.tokenizer:
        train_tokenizer(read_text(ARGS.text), ARGS.out / "ref")
        raise SystemExit
    DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
    DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    compiled = (lambda f: f) if ARGS.eager else functools.partial(torch.compile, dynamic=False)
    sync = torch.cuda.synchronize if DEVICE == "cuda" else (lambda: None)
    main()
