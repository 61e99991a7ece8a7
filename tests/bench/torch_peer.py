#!/usr/bin/env python3
"""What a user would write in PyTorch instead: the peer that the CUDA kernels are timed against.

Run beside the project's own benchmark (tests/bench/gpu.sh), so that both see the same card in the same state.
Prints one JSON object per line: name, milliseconds (median of CUDA-event timings), bytes that must move, GB/s.
Shapes follow GLM-5.3-Flash: 2,048-token windows, 154,880 tokens of vocabulary, hidden size 4,096.
Needs torch; the last part also needs transformers (skipped, with a line that says so, when absent).
"""
import json, statistics, sys, torch

dev = "cuda"
torch.manual_seed(0)
N, V, H = 2048, 154880, 4096


def ms(fn, reps=20, warm=3):
    for _ in range(warm):
        fn()
    torch.cuda.synchronize()
    out = []
    for _ in range(reps):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); fn(); b.record(); torch.cuda.synchronize()
        out.append(a.elapsed_time(b))
    return statistics.median(out)


def row(name, t, nbytes=None, flops=None, **kw):
    r = {"name": name, "ms": round(t, 4)}
    if nbytes: r["min_bytes"] = nbytes; r["GBps"] = round(nbytes / t / 1e6, 1)
    if flops: r["TFLOPs"] = round(flops / t / 1e9, 1)
    r.update(kw); print(json.dumps(r), flush=True)


def logits_like():
    h = torch.randn(N, 512, device=dev, dtype=torch.bfloat16)
    w = torch.randn(512, V, device=dev, dtype=torch.bfloat16) * 0.12
    return h @ w


p = logits_like()
q = (p.float() + 0.15 * torch.randn(N, V, device=dev)).bfloat16()
big = torch.empty(2**31, device=dev, dtype=torch.uint8); dst = torch.empty_like(big)
row("copy_2GiB", ms(lambda: dst.copy_(big)), 2 * big.numel()); del big, dst
h = torch.randn(N, H, device=dev, dtype=torch.bfloat16); w = torch.randn(V, H, device=dev, dtype=torch.bfloat16) * 0.02
row("lm_head_gemm_bf16", ms(lambda: h @ w.t()), flops=2 * N * V * H); del h, w


def topk_lse(x, k):
    x = x.float(); lse = torch.logsumexp(x, -1, keepdim=True)
    v, i = torch.topk(x, k, dim=-1)
    return v - lse, i, lse


def kl(p, q):
    lp = torch.log_softmax(p.float(), -1); lq = torch.log_softmax(q.float(), -1)
    return (lp.exp() * (lp - lq)).sum(-1)


def kl_plus(p, q):
    lp = torch.log_softmax(p.float(), -1); lq = torch.log_softmax(q.float(), -1)
    a, b = lp.exp(), lq.exp()
    lm = torch.log((a + b) * 0.5)
    js = 0.5 * ((a * (lp - lm)).sum(-1) + (b * (lq - lm)).sum(-1))
    return (a * (lp - lq)).sum(-1), (b * (lq - lp)).sum(-1), js, torch.minimum(a, b).sum(-1), lp.argmax(-1) == lq.argmax(-1)


one = N * V * 2
for k in (64, 256, 1024):
    row(f"eager_topk{k}_lse_bf16", ms(lambda: topk_lse(p, k), reps=8), one)
row("eager_full_kl", ms(lambda: kl(p, q), reps=8), 2 * one)
row("eager_kl_rev_js_tv_top1", ms(lambda: kl_plus(p, q), reps=8), 2 * one)
try:
    ckl, cklp = torch.compile(kl), torch.compile(kl_plus)
    row("compiled_full_kl", ms(lambda: ckl(p, q)), 2 * one)
    row("compiled_kl_rev_js_tv_top1", ms(lambda: cklp(p, q)), 2 * one)
    ct = torch.compile(lambda x: torch.logsumexp(x.float(), -1))
    row("compiled_lse_only", ms(lambda: ct(p)), one)
except Exception as e:  # the compiler may be missing on a machine
    print(json.dumps({"name": "compiled", "skipped": str(e)[:200]}))
del p, q
torch.cuda.empty_cache()
if "--no-model" in sys.argv:
    sys.exit()
try:
    import transformers
    from transformers import Qwen3Config, Qwen3ForCausalLM
    cfg = Qwen3Config(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32,
                      num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=False)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(dev):
        m = Qwen3ForCausalLM(cfg).eval()
    params = sum(x.numel() for x in m.parameters())
    for b in (1, 4):
        ids = torch.randint(0, 151936, (b, 2048), device=dev)
        with torch.inference_mode():
            body = ms(lambda: m.model(ids), reps=5, warm=2)
            full = ms(lambda: topk_lse(m(ids).logits[0], 256), reps=5, warm=2) if b == 1 else None
        row(f"transformers_{transformers.__version__}_qwen3_8b_shape_batch{b}_body", body, flops=2 * (params - 2 * 151936 * 4096) * b * 2048,
            tokens_per_s=round(b * 2048 / body * 1e3), with_head_and_top256_ms=full and round(full, 2))
except Exception as e:
    print(json.dumps({"name": "transformers", "skipped": str(e)[:300]}))
