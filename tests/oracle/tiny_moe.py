#!/usr/bin/env python3
"""Tiny random checkpoints of the mixture-of-experts, MLA and multimodal families, with their logits.

    tiny_moe.py [OUT_DIR] [NAME,NAME...]      (default OUT_DIR: tests/golden/models)

The files are as in tiny.py: a checkpoint in the Hugging Face layout, ids.npy and logits.npy, every parameter drawn anew, rounded
to the dtype of the file and then run in FP32 with eager attention and eager experts. What differs: config.json and the tensor
names are those of the released checkpoints, not those that transformers writes, because released files are what users have.
Where transformers can read the released config, the reload check reads it from the file, which proves that both spellings say
the same; where it cannot (`given`), the config of the run is handed in.
"""
import pathlib, re, shutil, sys, tempfile
from dataclasses import dataclass, field
import numpy as np
import torch
import transformers as T
from safetensors.torch import load_file, save_file
from tiny import SEED, dump_json, rope, sizes
import tiny_variants

T.utils.logging.set_verbosity_error()  # tensors to skip are meant to be there
V = 96
BASE = dict(vocab_size=V, max_position_embeddings=256, bos_token_id=1, eos_token_id=2)
RUN = dict(pad_token_id=None)  # a padding id would zero its row of the embedding
KEEP32 = r"e_score_correction_bias$"
MLA = dict(q_lora_rank=20, kv_lora_rank=14, qk_nope_head_dim=10, qk_rope_head_dim=8, v_head_dim=12)
MOE = dict(moe_intermediate_size=16, num_experts_per_tok=3, n_shared_experts=1, norm_topk_prob=True)
YARN = dict(factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0)
OLD = dict(torch_dtype="bfloat16", transformers_version="4.46.3", use_cache=True, attention_dropout=0.0, initializer_range=0.02,
           hidden_act="silu")
NEW = dict(dtype="bfloat16", transformers_version="5.4.0", use_cache=True, attention_dropout=0.0, initializer_range=0.02,
           hidden_act="silu")


@dataclass
class Case:
    cls: type
    cfg: object
    file: dict  # config.json
    keep32: str = KEEP32  # names that the file holds in F32
    edit: object = None  # tensors, generator -> tensors: released names, and tensors that a reader must skip
    given: bool = False
    reader: tuple = ()  # class and config for the reload check, where the released wrapper is not the class of the run
    quantize: object = None  # model -> tensors by released name, run after the rounding
    twin: str = ""  # takes the seed of this case
    shards: list = field(default_factory=list)  # file names; tensors are dealt in halves
    index: dict = field(default_factory=dict)


def moe_layers(first, layers, name="moe_layer_freq"):
    return {name: [0] * first + [1] * (layers - first)}


def qwen3_moe():
    s = dict(BASE, **sizes(36, 60, 2, 6, 3, 14), num_experts=7, num_experts_per_tok=3, moe_intermediate_size=16,
             norm_topk_prob=True, rms_norm_eps=1e-6, decoder_sparse_step=1, mlp_only_layers=[], tie_word_embeddings=False,
             attention_bias=False)
    return Case(T.Qwen3MoeForCausalLM, T.Qwen3MoeConfig(**s, **RUN, rope_parameters=rope(theta=1e6)), dict(
        s, **OLD, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", rope_theta=1000000.0, rope_scaling=None,
        sliding_window=None, use_sliding_window=False, max_window_layers=2, output_router_logits=False,
        router_aux_loss_coef=0.001))


def qwen3_moe_mixed():
    """Layers of both kinds by both rules, and weights that are not normalised."""
    s = dict(BASE, **sizes(32, 44, 4, 4, 2, 12), num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12,
             norm_topk_prob=False, rms_norm_eps=1e-6, decoder_sparse_step=2, mlp_only_layers=[3], tie_word_embeddings=False)
    r = rope(theta=1e4)
    return Case(T.Qwen3MoeForCausalLM, T.Qwen3MoeConfig(**s, **RUN, rope_parameters=r), dict(
        s, **NEW, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", rope_parameters=r))


def glm4_moe():
    s = dict(BASE, **sizes(32, 72, 2, 6, 2, 20), **MOE, n_routed_experts=6, first_k_dense_replace=1, n_group=1, topk_group=1,
             routed_scaling_factor=2.5, use_qk_norm=True, attention_bias=True, rms_norm_eps=1e-5, tie_word_embeddings=False)
    return Case(T.Glm4MoeForCausalLM, T.Glm4MoeConfig(**s, **RUN, rope_parameters=rope(theta=1e6, partial_rotary_factor=0.5)), dict(
        s, **OLD, architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", partial_rotary_factor=0.5, rope_scaling=None,
        rope_theta=1000000, num_nextn_predict_layers=1), edit=lambda w, g: tiny_variants.add_mtp(w, g, 2))


def glm4_moe_air():
    """The small size of the family: no qk-norm, no scaling of the weights; here in the new spelling of the config."""
    s = dict(BASE, **sizes(36, 56, 2, 4, 2, 12), **MOE, n_routed_experts=7, first_k_dense_replace=1, n_group=1, topk_group=1,
             routed_scaling_factor=1.0, use_qk_norm=False, attention_bias=True, rms_norm_eps=1e-5, tie_word_embeddings=False)
    r = rope(theta=1e6, partial_rotary_factor=0.5)
    return Case(T.Glm4MoeForCausalLM, T.Glm4MoeConfig(**s, **RUN, rope_parameters=r), dict(
        s, **NEW, architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", partial_rotary_factor=0.5, rope_parameters=r,
        num_nextn_predict_layers=1))


def mla_sizes(hidden, inter, layers, heads, **more):
    return dict(BASE, **sizes(hidden, inter, layers, heads, heads), **{**MLA, **MOE, **more}, tie_word_embeddings=False,
                attention_bias=False)


def glm4_moe_lite():
    s = mla_sizes(36, 68, 2, 3, n_routed_experts=6, n_group=1, topk_group=1, routed_scaling_factor=1.8, rms_norm_eps=1e-5)
    return Case(T.Glm4MoeLiteForCausalLM, T.Glm4MoeLiteConfig(**s, **RUN, rope_parameters=rope(theta=1e6)), dict(
        s, **OLD, architectures=["Glm4MoeLiteForCausalLM"], model_type="glm4_moe_lite", first_k_dense_replace=1,
        num_nextn_predict_layers=1, partial_rotary_factor=1.0, rope_scaling=None, rope_theta=1000000, topk_method="noaux_tc"))


def deepseek(**more):
    return mla_sizes(36, 64, 2, 3, n_routed_experts=8, n_group=4, topk_group=2, first_k_dense_replace=1,
                     routed_scaling_factor=2.5, rms_norm_eps=1e-6, **more)


def deepseek_file(s, name, cls, theta=10000, **more):
    return dict(s, **OLD, architectures=[cls], model_type=name, rope_theta=theta, rope_scaling=dict(YARN, type="yarn"),
                moe_layer_freq=1, ep_size=1, num_nextn_predict_layers=1, scoring_func="sigmoid", topk_method="noaux_tc", **more)


def deepseek_v3():
    s = deepseek()
    remote = {"AutoConfig": "configuration_deepseek.DeepseekV3Config",
              "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"}
    return Case(T.DeepseekV3ForCausalLM, T.DeepseekV3Config(**s, **RUN, rope_parameters=rope("yarn", **YARN)),
                deepseek_file(s, "deepseek_v3", "DeepseekV3ForCausalLM", auto_map=remote),
                edit=lambda w, g: tiny_variants.add_mtp(w, g, 2))


def deepseek_v32():
    # More top-k than tokens: every key is chosen, so the attention is dense and the indexer's tensors have no say.
    s = deepseek(index_topk=64, index_head_dim=12, index_n_heads=16)
    return Case(T.DeepseekV32ForCausalLM, T.DeepseekV32Config(**s, **RUN, rope_parameters=rope("yarn", **YARN)),
                deepseek_file(s, "deepseek_v32", "DeepseekV32ForCausalLM"), keep32=KEEP32 + r"|indexer\.k_norm")


def glm_moe_dsa():
    """Four layers: the indexer of the third is shared by the fourth, which has none of its own in the file."""
    s = mla_sizes(32, 52, 4, 3, n_routed_experts=6, n_group=1, topk_group=1, first_k_dense_replace=2, moe_intermediate_size=12,
                  routed_scaling_factor=2.5, rms_norm_eps=1e-5, index_topk=64, index_head_dim=12, index_n_heads=16,
                  index_topk_freq=4, index_skip_topk_offset=3)
    r = rope(theta=1e6)
    return Case(T.GlmMoeDsaForCausalLM, T.GlmMoeDsaConfig(**s, **RUN, rope_parameters=r), dict(
        s, **NEW, architectures=["GlmMoeDsaForCausalLM"], model_type="glm_moe_dsa", rope_parameters=r, head_dim=18,
        qk_head_dim=18, rope_interleave=True, indexer_rope_interleave=True, moe_layer_freq=1, num_nextn_predict_layers=1,
        indexer_types=["full", "full", "full", "shared"], ep_size=1, pretraining_tp=1, scoring_func="sigmoid",
        topk_method="noaux_tc"), edit=lambda w, g: tiny_variants.add_mtp(w, g, 4))


def kimi_k25():
    s = mla_sizes(40, 60, 2, 3, n_routed_experts=7, n_group=1, topk_group=1, first_k_dense_replace=1,
                  routed_scaling_factor=2.827, rms_norm_eps=1e-5)
    s["max_position_embeddings"] = 512
    yarn = dict(YARN, beta_fast=1.0, original_max_position_embeddings=128)  # as some releases have it: the ramp is a step
    text = deepseek_file(s, "kimi_k2", "DeepseekV3ForCausalLM", 50000.0, pad_token_id=0)
    text.update(rope_scaling=dict(yarn, type="yarn"), num_nextn_predict_layers=0, seq_aux=True)
    vision = dict(hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=1)
    wrapper = T.Kimi_K25Config(text_config=text | RUN, vision_config=vision, projection_hidden_size=8, tie_word_embeddings=False)
    return Case(T.DeepseekV3ForCausalLM, T.DeepseekV3Config(**s, **RUN, rope_parameters=rope("yarn", theta=50000.0, **yarn)), dict(
        architectures=["KimiK25ForConditionalGeneration"], model_type="kimi_k25", bos_token_id=1, eos_token_id=2, dtype="bfloat16",
        ignore_index=-100, media_placeholder_token_id=95, pad_token_id=0, tie_word_embeddings=False, use_unified_vision_chunk=True,
        auto_map={"AutoConfig": "configuration_kimi_k25.KimiK25Config"}, text_config=text,
        vision_config=dict(mm_projector_type="patchmerger", vt_hidden_size=8, vt_num_hidden_layers=1, text_hidden_size=40)),
        edit=lambda w, g: tiny_variants.add_prefix(w, g, "language_model.", {
            "vision_tower.encoder.blocks.7.mlp.fc0.weight": (8, 6), "vision_tower.encoder.blocks.7.norm0.bias": (6,),
            "mm_projector.proj.9.weight": (10, 4)}),
        reader=(T.Kimi_K25ForConditionalGeneration, wrapper))


def minimax_m2():
    s = dict(BASE, **sizes(36, 16, 2, 6, 2, 16), num_local_experts=7, num_experts_per_tok=3, rms_norm_eps=1e-6,
             tie_word_embeddings=False)
    # transformers knows nothing of rotary_dim; without the factor it would rotate the whole head.
    cfg = T.MiniMaxM2Config(**s, **RUN, rope_parameters=rope(theta=5e6, partial_rotary_factor=0.5))
    return Case(T.MiniMaxM2ForCausalLM, cfg, dict(
        s, **OLD, architectures=["MiniMaxM2ForCausalLM"], model_type="minimax_m2", rope_theta=5000000, rotary_dim=8,
        attn_type_list=[1, 1], qk_norm_type="per_layer", use_qk_norm=True, scoring_func="sigmoid", use_routing_bias=True,
        shared_intermediate_size=0, use_mtp=True, num_mtp_modules=3, mtp_transformer_layers=1, router_jitter_noise=0.0,
        router_aux_loss_coef=0.001, output_router_logits=False), keep32=KEEP32 + r"|(mlp|block_sparse_moe)\.gate\.weight$",
        given=True)


def mimo_v2_flash():
    s = dict(BASE, **sizes(32, 56, 3, 4, 2, 24), v_head_dim=16, sliding_window=8, moe_intermediate_size=16, n_routed_experts=6,
             num_experts_per_tok=3, norm_topk_prob=True, n_group=1, topk_group=1, attention_value_scale=0.707,
             tie_word_embeddings=False, attention_bias=False)
    part = dict(partial_rotary_factor=0.334)
    cfg = T.MiMoV2FlashConfig(**s, **RUN, rms_norm_eps=1e-5, layer_types=["full_attention", "sliding_attention", "full_attention"],
                              rope_parameters=dict(full_attention=rope(theta=5e6, **part), sliding_attention=rope(**part)))
    return Case(T.MiMoV2FlashForCausalLM, cfg, dict(
        s, **OLD, architectures=["MiMoV2FlashForCausalLM"], model_type="mimo_v2_flash", hybrid_layer_pattern=[0, 1, 0],
        hybrid_block_size=None, layernorm_epsilon=1e-5, rope_theta=5000000, swa_rope_theta=10000, **part, swa_head_dim=24,
        swa_v_head_dim=16, swa_num_attention_heads=4, swa_num_key_value_heads=4, sliding_window_size=8, attention_chunk_size=8,
        add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False, routed_scaling_factor=None, n_shared_experts=None,
        scoring_func="sigmoid", topk_method="noaux_tc", **moe_layers(1, 3)), given=True,
        edit=lambda w, g: tiny_variants.add_extra(w, g, {
            "model.mtp.layers.0.eh_proj.weight": (32, 64), "model.mtp.layers.0.self_attn.q_proj.weight": (96, 32),
            "model.mtp.layers.0.hnorm.weight": (32,)}))


def mimo_v2():
    """The same weights with q, k and v in one matrix, as MiMo-V2.5 stores them, in files that only the index names."""
    c = mimo_v2_flash()
    c.file.update(architectures=["MiMoV2ForCausalLM"], model_type="mimo_v2", attention_projection_layout="fused_qkv")
    skip = c.edit
    c.edit = lambda w, g: tiny_variants.fuse_mimo_qkv(skip(w, g), shards=2)
    c.twin, c.reader = "mimo_v2_flash", None
    c.shards, c.index = ["model_pp0_ep0_shard0.safetensors", "model_pp0_ep0_shard1.safetensors"], dict(tp_size=2)
    return c


def gpt_oss():
    s = dict(BASE, **sizes(32, 64, 2, 6, 2, 12), num_local_experts=5, num_experts_per_tok=3, sliding_window=8, rms_norm_eps=1e-5,
             attention_bias=True, tie_word_embeddings=False, layer_types=["sliding_attention", "full_attention"])
    yarn = dict(factor=32.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0, truncate=False)
    return Case(T.GptOssForCausalLM, T.GptOssConfig(**s, **RUN, rope_parameters=rope("yarn", theta=150000.0, **yarn)), dict(
        s, **OLD, architectures=["GptOssForCausalLM"], model_type="gpt_oss", rope_theta=150000,
        rope_scaling=dict(yarn, rope_type="yarn"), swiglu_limit=7.0, experts_per_token=3, initial_context_length=64,
        output_router_logits=False, router_aux_loss_coef=0.9))


def gpt_oss_mxfp4():
    c = gpt_oss()
    c.file["quantization_config"] = dict(quant_method="mxfp4", modules_to_not_convert=[
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"])
    c.quantize, c.twin, c.reader = tiny_variants.quantize_gpt_oss, "gpt_oss", None
    return c


def gemma3():
    s = dict(BASE, **sizes(36, 60, 3, 3, 1, 14), query_pre_attn_scalar=20, sliding_window=8, rms_norm_eps=1e-6,
             final_logit_softcapping=3.0, attn_logit_softcapping=None, attention_bias=False)
    r = dict(full_attention=rope(theta=1e6), sliding_attention=rope())
    cfg = T.Gemma3TextConfig(**s, **RUN, rope_parameters=r, layer_types=["sliding_attention"] * 2 + ["full_attention"])
    file = dict(s, **OLD, architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", cache_implementation="hybrid",
                hidden_activation="gelu_pytorch_tanh", rope_local_base_freq=10000, rope_scaling=None, rope_theta=1000000,
                sliding_window_pattern=3)
    del file["hidden_act"]
    return Case(T.Gemma3ForCausalLM, cfg, file)


def gemma3_mm():
    """As the 4B release: its text_config leaves the norm's eps, both thetas, the activation and the pattern of six unsaid."""
    s = dict(vocab_size=V, **sizes(32, 40, 6, 4, 2, 10), query_pre_attn_scalar=14, sliding_window=8)
    r = dict(full_attention=rope("linear", 1e6, factor=8.0), sliding_attention=rope())
    text = dict(s, model_type="gemma3_text", rope_scaling=dict(factor=8.0, rope_type="linear"))
    vision = dict(hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=1, image_size=28, patch_size=14,
                  model_type="siglip_vision_model", vision_use_head=False)
    wrapper = T.Gemma3Config(text_config=text | RUN, vision_config=vision, mm_tokens_per_image=4)
    return Case(T.Gemma3ForCausalLM, T.Gemma3TextConfig(**s, **RUN, rope_parameters=r), dict(
        architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", boi_token_index=90, eoi_token_index=91,
        eos_token_id=[1, 2], image_token_index=92, initializer_range=0.02, mm_tokens_per_image=4, text_config=text,
        torch_dtype="bfloat16", transformers_version="4.50.0.dev0", vision_config=vision),
        edit=lambda w, g: tiny_variants.add_prefix(w, g, "language_model.", {
            "vision_tower.vision_model.encoder.layers.7.mlp.fc1.weight": (6, 8), "vision_tower.vision_model.post_layernorm.bias": (8,),
            "multi_modal_projector.mm_soft_emb_norm.weight": (8,)}),
        reader=(T.Gemma3ForConditionalGeneration, wrapper))


def ministral3():
    s = dict(BASE, **sizes(40, 72, 2, 6, 2, 12), rms_norm_eps=1e-5, sliding_window=None, tie_word_embeddings=False)
    r = dict(rope("yarn", 1e6, **dict(YARN, factor=16.0)), llama_4_scaling_beta=0.1, type="yarn")
    return Case(T.Ministral3ForCausalLM, T.Ministral3Config(**s, **RUN, rope_parameters=r), dict(
        s, **NEW, architectures=["Ministral3ForCausalLM"], model_type="ministral3", rope_parameters=r))


def mistral4():
    s = mla_sizes(36, 64, 2, 3, n_routed_experts=6, n_group=1, topk_group=1, first_k_dense_replace=0, routed_scaling_factor=1.5,
                  rms_norm_eps=1e-6, rope_interleave=True)
    r = dict(rope("yarn", 1e4, **YARN), llama_4_scaling_beta=0.1, type="yarn", max_position_embeddings=256,
             partial_rotary_factor=8 / 18)
    return Case(T.Mistral4ForCausalLM, T.Mistral4Config(**s, **RUN, rope_parameters=r), dict(
        s, **NEW, architectures=["Mistral4ForCausalLM"], model_type="mistral4", rope_parameters=r, head_dim=18, qk_head_dim=18,
        pretraining_tp=1))


def mixtral():
    s = dict(BASE, **sizes(40, 20, 2, 5, 1), num_local_experts=6, num_experts_per_tok=2, rms_norm_eps=1e-5, sliding_window=None,
             tie_word_embeddings=False)
    return Case(T.MixtralForCausalLM, T.MixtralConfig(**s, **RUN, rope_parameters=rope(theta=1e6)), dict(
        s, **OLD, architectures=["MixtralForCausalLM"], model_type="mixtral", rope_theta=1000000.0, router_aux_loss_coef=0.02,
        output_router_logits=False))


MODELS = {
    "qwen3_moe": qwen3_moe, "qwen3_moe-mixed": qwen3_moe_mixed, "glm4_moe": glm4_moe, "glm4_moe-air": glm4_moe_air,
    "glm4_moe_lite": glm4_moe_lite, "glm_moe_dsa": glm_moe_dsa, "deepseek_v3": deepseek_v3, "deepseek_v32": deepseek_v32,
    "kimi_k25": kimi_k25, "minimax_m2": minimax_m2, "mimo_v2_flash": mimo_v2_flash, "mimo_v2": mimo_v2, "gpt_oss": gpt_oss,
    "gpt_oss-mxfp4": gpt_oss_mxfp4, "gemma3": gemma3, "gemma3-mm": gemma3_mm, "ministral3": ministral3, "mistral4": mistral4,
    "mixtral": mixtral,
}


def randomise(model, seed):
    """Every parameter and every buffer that is stored: correction biases are buffers, and zero unless drawn."""
    g = torch.Generator().manual_seed(seed)
    oss = model.config.model_type == "gpt_oss"
    tied = model.config.tie_word_embeddings
    for name, p in sorted([*model.named_parameters(), *model.named_buffers()]):
        if "inv_freq" in name or name.endswith("embed_scale"):
            continue
        n = torch.randn(p.shape, generator=g)
        if "norm" in name:
            p.add_(0.3 * n)  # off 1, or off 0 where the weight is 1 + w
        elif p.dim() == 1 or name.endswith("_bias"):
            p.copy_(0.3 * n)
        else:
            gain = (2.0 if tied else 4.0) if "embed" in name else 1.6
            if oss and name.endswith("gate_up_proj"):
                gain = 3.0  # so that the clamp at 7 bites
            p.copy_(n * gain * p.shape[1 if oss and p.dim() == 3 else -1] ** -0.5)  # gpt_oss: experts are [in, out]


def eager(model):
    model.set_attn_implementation("eager")
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model.float().eval()


def logits_of(model, ids):
    assert all(p.dtype == torch.float32 for p in model.parameters())
    return model(input_ids=ids[None], use_cache=False).logits[0].float()


def save(case, tensors, folder):
    """One file, or the files of case.shards with an index; half of the tensors in each, cut in the middle of a layer."""
    if not case.shards:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(tensors)
    cut = len(names) // 2
    where = {}
    for file, part in zip(case.shards, (names[:cut], names[cut:])):
        save_file({n: tensors[n] for n in part}, folder / file, metadata={"format": "pt"})
        where.update({n: file for n in part})
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    dump_json(folder / "model.safetensors.index.json", {"metadata": {**case.index, "total_size": size}, "weight_map": where})


def hub_tensors(model, case):
    """What save_pretrained writes, which has hub names; each tensor in the dtype of the file, without loss."""
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)
        w = load_file(pathlib.Path(tmp) / "model.safetensors")
    out = {}
    for name, t in w.items():
        out[name] = t.clone() if re.search(case.keep32, name) else t.to(torch.bfloat16)
        assert torch.equal(out[name].float(), t), f"{name} is not rounded"
    return out


def reload_diff(case, folder, ids, want):
    """None where transformers has no reader for the layout: another checkpoint with the same weights is checked instead."""
    if case.reader is None:
        return None
    cls, cfg = case.reader or (case.cls, case.cfg if case.given else None)
    model = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **({"config": cfg} if cfg else {}))
    return (logits_of(eager(model), ids) - want).abs().max().item()


def make(name, out):
    case = MODELS[name]()
    model = eager(case.cls(case.cfg))
    seed = SEED + 100 + list(MODELS).index(case.twin or name)
    randomise(model, seed)
    for n, p in [*model.named_parameters(), *model.named_buffers()]:
        if not re.search(case.keep32 + "|inv_freq|embed_scale", n):
            p.copy_(p.to(torch.bfloat16).float())
    packed = case.quantize(model) if case.quantize else {}
    tensors = hub_tensors(model, case)
    for n in packed:
        tensors.pop(re.sub("_(blocks|scales)$", "", n), None)
    tensors.update(packed)
    if case.edit:
        tensors = case.edit(tensors, torch.Generator().manual_seed(seed + 1000))
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    dump_json(folder / "config.json", dict(sorted(case.file.items())))
    save(case, {n: t.contiguous() for n, t in tensors.items()}, folder)
    ids = torch.randint(6, V, (45,), generator=torch.Generator().manual_seed(SEED + 1))
    want = logits_of(model, ids)
    diff = reload_diff(case, folder, ids, want)
    assert diff is None or diff < 1e-4, f"{name}: the file does not hold what was run ({diff})"
    np.save(folder / "ids.npy", ids.numpy())
    np.save(folder / "logits.npy", want.numpy())
    size = tiny_variants.finish(folder)
    print(f"{name:22} {size / 1024:6.0f} KiB  logit std {want.std():.3f}  reload diff "
          + ("none" if diff is None else f"{diff:.1e}"), flush=True)


if __name__ == "__main__":
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "golden/models")
    only = sys.argv[2].split(",") if len(sys.argv) > 2 else [*MODELS, *tiny_variants.COPIES]
    out.mkdir(parents=True, exist_ok=True)
    for n in only:
        if n in MODELS:
            make(n, out)
    for n in only:
        if n in tiny_variants.COPIES:
            tiny_variants.copy(n, out)
