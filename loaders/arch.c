#include "loaders/arch_rows.h"

#include <string.h>

const kld_arch *const kld_archs[] = {&kld_arch_llama,
                                     &kld_arch_mistral,
                                     &kld_arch_qwen2,
                                     &kld_arch_qwen3,
                                     &kld_arch_gemma3,
                                     &kld_arch_ministral3,
                                     &kld_arch_qwen3_moe,
                                     &kld_arch_mixtral,
                                     &kld_arch_glm4_moe,
                                     &kld_arch_minimax_m2,
                                     &kld_arch_mimo_v2,
                                     &kld_arch_gpt_oss,
                                     &kld_arch_deepseek_v3,
                                     &kld_arch_deepseek_v32,
                                     &kld_arch_kimi_k25,
                                     &kld_arch_glm4_moe_lite,
                                     &kld_arch_glm_moe_dsa,
                                     &kld_arch_mistral4,
                                     NULL};

const kld_tensor_row kld_model_rows[3] = {
    {KLD_SLOT_EMBED, "embed_tokens", KLD_DIM_VOCAB, KLD_DIM_HIDDEN, KLD_BIAS_NONE, true,
     KLD_WHEN_ALWAYS, false},
    {KLD_SLOT_FINAL_NORM, "norm", KLD_DIM_HIDDEN, KLD_DIM_ONE, KLD_BIAS_NONE, false,
     KLD_WHEN_ALWAYS, false},
    {KLD_SLOT_HEAD, NULL, KLD_DIM_VOCAB, KLD_DIM_HIDDEN, KLD_BIAS_NONE, true, KLD_WHEN_ALWAYS,
     false},
};

static bool listed(const char *const *list, const char *text) {
    for (; list && *list; list++)
        if (!strcmp(*list, text)) return true;
    return false;
}

const kld_arch *kld_arch_find(const char *architecture, bool wrapped, const char *text_type) {
    for (const kld_arch *const *row = kld_archs; *row; row++) {
        if (listed((*row)->architectures, architecture)) return *row;
        if (!wrapped || !listed((*row)->wrappers, architecture)) continue;
        if (text_type ? listed((*row)->text_types, text_type) : (*row)->text_default) return *row;
    }
    return NULL;
}

const char *const kld_config_ignored[] = {
    /* identity and bookkeeping */
    "_name_or_path", "architectures", "model_type", "dtype", "torch_dtype", "transformers_version",
    "transformers.js_config", "is_llama_config", "unsloth_fixed", "unsloth_version", "model_name",
    "_attn_implementation_autoset", "attn_implementation", "_attn_implementation",
    "tokenizer_class", "prefix", "task_specific_params", "finetuning_task", "problem_type",
    "id2label", "label2id", "num_labels", "pipeline_tag", "license",
    /* parts of a multimodal release that the text model does not use */
    "vision_config", "audio_config", "text_config", "image_token_id", "image_token_index",
    "video_token_id", "vision_start_token_id", "vision_end_token_id", "vision_token_id",
    "vision_model_type", "processor_config", "audio_token_id", "audio_start_token_id",
    "audio_end_token_id", "video_start_token_id", "video_end_token_id", "vision_feature_layer",
    "vision_feature_select_strategy", "multimodal_projector_bias", "projector_hidden_act",
    "spatial_merge_size",
    /* training and initialisation */
    "initializer_range", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop",
    "gradient_checkpointing", "neftune_noise_alpha", "router_aux_loss_coef", "output_router_logits",
    /* token ids and generation: the ids to score are given */
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "bos_token",
    "eos_token", "pad_token", "decoder_start_token_id", "forced_bos_token_id",
    "forced_eos_token_id", "begin_suppress_tokens", "suppress_tokens", "bad_words_ids", "use_cache",
    "return_dict", "return_dict_in_generate", "output_scores", "output_attentions",
    "output_hidden_states", "do_sample", "temperature", "top_k", "top_p", "typical_p", "max_length",
    "min_length", "max_new_tokens", "num_beams", "num_beam_groups", "num_return_sequences",
    "diversity_penalty", "early_stopping", "length_penalty", "repetition_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "remove_invalid_values",
    "exponential_decay_length_penalty",
    /* how other programs run it */
    "torchscript", "_flash_attn_2_enabled", "use_flash_attn", "cache_implementation",
    "num_logits_to_keep", "logits_to_keep", "router_jitter_noise", "num_nextn_predict_layers",
    "num_mtp_layers", "num_mtp_modules", "use_mtp", "mtp_transformer_layers", "ep_size", "auto_map",
    "seq_aux", "aux_loss_alpha", "attention_chunk_size", "ignore_index", "max_sequence_length",
    "trust_remote_code", "tf_legacy_loss", "use_bfloat16", "quantization_config",
    "compression_config", NULL};

const kld_assert_row kld_config_asserts[] = {
    {"is_encoder_decoder", "false"},  {"is_decoder", "false|true"},
    {"add_cross_attention", "false"}, {"cross_attention_hidden_size", "null"},
    {"tie_encoder_decoder", "false"}, {"pruned_heads", "{}"},
    {"chunk_size_feed_forward", "0"}, {"pretraining_tp", "1|null"},
    {"rope_interleaved", "false"},    {"partial_rotary_factor", "1.0|1|null"},
    {"use_mrope", "false"},           {"use_bidirectional_attention", "false|null"},

};
const size_t kld_n_config_asserts = sizeof kld_config_asserts / sizeof *kld_config_asserts;

const char *const kld_skip_prefixes[] = {"mtp.",
                                         "model.mtp.",
                                         "model.visual.",
                                         "visual.",
                                         "vision_tower.",
                                         "vision.",
                                         "mm_projector.",
                                         "multi_modal_projector.",
                                         "aligner.",
                                         "image_",
                                         "patch_merge_mlp.",
                                         "model.vision_tower.",
                                         "vision_model.",
                                         "audio_encoder.",
                                         "speech_embeddings.",
                                         "model.multi_modal_projector.",
                                         "language_model.mtp.",
                                         NULL};

/* KV-cache scales have many spellings; the cache is not quantized here, so they are known
 * and unused. */
const char *const kld_skip_suffixes[] = {".rotary_emb.inv_freq",
                                         ".k_scale",
                                         ".q_scale",
                                         ".v_scale",
                                         ".kv_scale",
                                         ".k_bias",
                                         ".v_bias",
                                         "k_proj.output_scale",
                                         "v_proj.output_scale",
                                         NULL};

const kld_prefix kld_prefixes[] = {
    {"model.", "layers.", "lm_head"},
    {"model.language_model.", "layers.", "lm_head"},
    {"language_model.model.", "layers.", "language_model.lm_head"},
    {"language_model.model.", "blocks.", "language_model.lm_head"}, /* Kimi, by transformers */
    {"language_model.", "layers.", "language_model.lm_head"},       /* repacks of Kimi */
    {"language_model.", "layers.", "lm_head"},
};
const size_t kld_n_prefixes = sizeof kld_prefixes / sizeof *kld_prefixes;
