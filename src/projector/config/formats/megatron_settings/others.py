"""Megatron-LM settings that are not taken over: the warning about each, if any."""

from typing import Any

from projector.config.formats.read_job import Unsupported

_OFFLOADED = "activation offload is set by training.activation_offload_fraction"
_FSDP_BUFFERS = "gathered weights are projected in buffers that are taken anew"
_PACKED = "every sequence is projected as one document"
_PADDED = "batches of experts are projected without padding"
_REGISTERED = "registered buffers are not modelled"
_ROLLOUTS = "only the training step is projected, without rollouts"
_WHERE_ON = {
    "cpu_offload": _OFFLOADED,
    "cpu_offloading": _OFFLOADED,
    "cpu_offloading_num_layers": _OFFLOADED,
    "defer_embedding_wgrad_compute": "the output layer's weight gradient is not deferred",
    "delay_wgrad_compute": "weight gradients are computed with the input gradients",
    "distribute_saved_activations": "saved activations are not divided over TP again",
    "enable_1f1b_v": "this schedule is not available",
    "enable_fused_linear_ce": "the loss is projected on logits that are written out",
    "enable_odc": "parameters and gradients are projected to travel in collectives",
    "enable_packed_sequences": _PACKED,
    "enable_turbo_attention_float8": "attention is projected in 16 bits",
    "fine_grained_activation_offloading": _OFFLOADED,
    "fp32_residual_connection": "the residual stream is projected in 16 bits",
    "fp8_dot_product_attention": "attention is projected in 16 bits",
    "fp8_multi_head_attention": "attention is projected in 16 bits",
    "fsdp_double_buffer": _FSDP_BUFFERS,
    "grpo_prompts_per_step": _ROLLOUTS,
    "keep_fp8_transpose_cache": "FSDP is projected without it",
    "mla_use_nope": "RoPE is projected on every layer",
    "moe_extended_tp": "use expert_tensor_parallel_size",
    "moe_router_fusion": "the router is projected as separate kernels",
    "moe_router_padding_for_fp8": _PADDED,
    "moe_router_padding_for_quantization": _PADDED,
    "moe_split_feature_routing": "the router is projected with one gate",
    "moe_upcycling_granularity": "training from the first step is projected",
    "moe_use_fused_router_with_aux_score": "the router is projected as separate kernels",
    "moe_use_legacy_grouped_gemm": "experts are projected with the current grouped GEMM",
    "nccl_ub": _REGISTERED,
    "no_rope_freq": "RoPE is projected on every layer",
    "no_persist_layer_norm": "norms are projected as one kernel",
    "offload_chunk_num": _OFFLOADED,
    "overlap_cpu_optimizer_d2h_h2d": "optimizer offload is projected without overlap",
    "overlap_p2p_comm_warmup_flush": "pipeline transfers follow the schedule",
    "overlap_param_gather_with_optimizer_step": "the gather starts after the optimizer step",
    "patch_moe_overlap": "use overlap_moe_expert_parallel_comm",
    "packing": _PACKED,
    "perform_rl_step": _ROLLOUTS,
    "qk_l2_norm": "the parameter-free norm of queries and keys is not projected",
    "standalone_embedding_stage": "use pipeline_model_parallel_layout",
    "turbo_fused_grouped_gemm": "experts are projected with separate grouped GEMMs",
    "use_checkpoint_args": "the checkpoint's arguments are not read",
    "use_nccl_ub": _REGISTERED,
    "use_packed_attention": _PACKED,
    "use_rocmoe": "experts are projected with grouped GEMMs",
    "use_sharp": "the network does not reduce",
    "use_turbo_mega_moe": "experts are projected with grouped GEMMs",
    "use_turbo_permute_padding": _PADDED,
    "use_turbo_rms_norm": "the norm's kernel is the device's usual one",
}
"""What is done where a switch is on, or a number is not 0."""

_WHERE_OFF = {
    "apply_rope_fusion": "RoPE is projected as one kernel",
    "async_tensor_model_parallel_allreduce": "input gradients are projected as Megatron's default",
    "bias_dropout_fusion": "bias and dropout are projected as fused",
    "bias_gelu_fusion": "the activation is projected as fused",
    "bias_swiglu_fusion": "the activation is projected as fused",
    "fp8_wgrad": "weight gradients are projected in FP8",
}
"""What is done where a switch is off."""

_WHERE_SEVERAL = {
    "num_seq_splits": "a sequence is not divided within the pipeline",
}
"""What is done where a number is not 1."""

_WHERE_OTHER_FORMAT = {
    "megatron_fsdp_main_params_dtype": "master weights are projected in FP32",
}
"""What is done where a number format is not the usual one."""

_WHERE_STATED = {
    "activation_func": "use swiglu, quick_geglu or squared_relu",
    "ddp_num_buckets": "use ddp_bucket_size",
    "decoder_pipeline_manual_split_list": "use pipeline_model_parallel_layout",
    "hierarchical_context_parallel_sizes": "context parallelism is projected on one level",
    "pipeline_model_parallel_split_rank": "encoders are not modelled",
    "rampup_batch_size": "the final global batch is projected",
    "step_batch_size_schedule": "the final global batch is projected",
    "te_precision_config_file": "all linear layers are projected in one precision",
    "yaml_cfg": "the settings inside it are not read",
}
"""What is done with any value."""

UNMODELLED: dict[str, tuple[tuple[Any, ...], str]] = {
    name: (without_effect, note)
    for without_effect, table in (
        ((False, 0), _WHERE_ON),
        ((True, 1), _WHERE_OFF),
        ((1, "1"), _WHERE_SEVERAL),
        (("auto", "fp32"), _WHERE_OTHER_FORMAT),
        ((), _WHERE_STATED),
    )
    for name, note in table.items()
}
"""Settings that change the result and are not modelled: values without effect, what is done."""


_ORDINARY = "softmax attention in every layer: MHA, GQA or MLA"
_RESIDUALS = "one residual stream, added to layer by layer"
_EXPERTS = "experts as wide as the model"
_DECODERS = "decoder-only models"
_UNSUPPORTED_GROUPS = (
    ("hybrid Mamba models are", "attention and MLP layers",
     ("is_hybrid_model hybrid_override_pattern hybrid_layer_pattern hybrid_attention_ratio "
      "hybrid_mlp_ratio mamba_state_dim mamba_head_dim mamba_num_groups mamba_num_heads")),
    ("encoders are", _DECODERS,
     ("encoder_num_layers encoder_tensor_model_parallel_size "
      "encoder_pipeline_model_parallel_size vision_pretraining")),
    ("vision-language models are", _DECODERS, "language_model_type vision_model_type"),
    ("models of this provider are", "Megatron's GPT models", "model_provider"),
    ("evaluations of a task are", "training", "task"),
    ("retrieval models are", _DECODERS, "retro_add_retriever"),
    ("models of convolution and attention layers are", _ORDINARY, "lfm_layer_types"),
    ("models whose layers all differ are", "layers of two kinds: dense and with experts",
     "heterogeneous_layers_config_path heterogeneous_layers_config_encoded_json"),
    ("linear attention is", _ORDINARY, "linear_attention_type linear_attention_freq"),
    ("compressed sparse attention is", _ORDINARY, "hybrid_attention_enabled compress_ratios"),
    ("sparse attention with an indexer is", _ORDINARY, "index_topk"),
    ("this variant of attention is", _ORDINARY, "experimental_attention_variant"),
    ("a low-rank output projection of attention is", "one output projection",
     "o_lora_rank o_groups"),
    ("a gate on the output of attention is", "attention without gates",
     "attention_output_gate mla_use_output_gate use_gated_attention"),
    ("hyper-connections are", _RESIDUALS, "hc_mult enable_hyper_connections"),
    ("residuals across blocks of layers are", _RESIDUALS, "attn_res_block_size"),
    ("memories of n-grams are", "one embedding of each token", "use_engram"),
    ("experts in a latent space are", _EXPERTS, "routed_expert_hidden_size moe_latent_size"),
    ("routing by a hash of the token is", "a router in every layer with experts",
     "num_hash_layers moe_n_hash_layers"),
    ("adapters by settings of their own are", "training.adapter, or lora of a Primus file",
     "lora_rank lora_r lora_dim lora_alpha lora_dropout lora_target_modules use_lora enable_lora"),
    ("models of this type are", "Megatron's GPT models", "model_type"),
)  # fmt: skip
_NOTHING_CHANGES = {
    "hc_mult": (1,),
    "o_groups": (1,),
    "model_type": ("gpt",),
    "model_provider": ("gpt",),
}
UNSUPPORTED = {
    name: Unsupported(what, instead, _NOTHING_CHANGES.get(name, ()))
    for what, instead, names in _UNSUPPORTED_GROUPS
    for name in names.split()
}
"""Settings without which the model would be another one, in the order in which they are told."""

_IGNORED_TEXT = """
activation_situ_beta activation_situ_linear_beta align_grad_reduce align_param_gather
allow_padding_num_layers apply_layernorm_1p apply_query_key_layer_scaling
apply_residual_connection_post_layernorm async_save attention_dropout attention_softmax_in_fp32
attn_logit_softcapping attn_sink attn_sliding_window auto_continue_train barrier_with_L1_time
batch_size calculate_per_token_loss check_for_large_grads check_for_nan_in_loss
check_for_nan_in_loss_and_grad check_for_spiky_loss clip_grad clone_scatter_output_in_embedding
compress_rope_theta conv_bias conv_L_cache create_attention_mask_in_dataloader
cross_entropy_fusion_impl cuda_graph_warmup_steps dataloader_type ddp_average_in_collective
DDP_impl ddp_pad_buckets_for_high_nccl_busbw decoder_seq_length decoupled_lr decoupled_min_lr
decrease_batch_size_if_needed delay_grad_reduce deprecated_use_mcore_models deterministic_mode
disable_bf16_reduced_precision_matmul disable_compile_dependencies disable_delayed_scaling_patches
disable_last_saving disable_mlflow disable_primus_topk_router
distrib_optim_fully_reshardable_mem_efficient distributed_backend dump_pp_data
empty_unused_memory_level enable_exactly_numeric_match enable_experimental enable_ft_package
enable_gloo_process_groups enable_odc_lb_mini enable_one_logger enable_zb_runtime end_weight_decay
eod_mask_loss error_injection_rate error_injection_type exit_duration_in_mins exit_interval
exit_on_missing_checkpoint exit_signal_handler export_force_local_attention
export_moe_apply_probs_on_input export_te_mcore_model file_sink_level final_logit_softcapping
finetune fp8_amax_compute_algo fp8_amax_history_len fp8_interval fp8_margin
fsdp_manual_registration full_validation glu_linear_offset gradient_reduce_div_fusion hf_path
hidden_dropout high_priority_stream_groups hysteresis inference_rng_tracker
init_model_with_meta_device initial_loss_scale iterations_to_skip latent_moe_use_norm
layernorm_epsilon lazy_mpu_init lb_mini_cost_model legacy_tokenizer local_rank loss_scale
loss_scale_window manual_gc manual_gc_eval manual_gc_interval mask_prob merge_file min_loss_scale
mmap_bin_files mock_data modelopt_enabled moe_apply_probs_on_input moe_aux_loss_coeff
moe_input_jitter_eps moe_per_layer_logging moe_router_bias_update_rate moe_router_dtype
moe_router_enable_expert_bias moe_router_load_balancing_type moe_router_pre_softmax
moe_router_score_function moe_router_topk_scaling_factor moe_token_drop_policy moe_token_dropping
moe_use_upcycling moe_z_loss_coeff mscale mscale_all_dim mtp_layer_type mtp_loss_scaling_factor
multiple_validation_sets multiprocessing_context norm_epsilon num_dataset_builder_threads
num_residual_streams num_workers nvtx_ranges one_logger_async onnx_safe openai_gelu
original_max_position_embeddings override_opt_param_scheduler per_split_data_args_path
perform_initialization pin_cpu_grads pin_cpu_params pp_warmup pre_communication_optimization
quick_gelu rampup_samples record_shapes rerun_mode reset_attention_mask reset_position_ids
result_rejected_tracker_filename router_logit_softcapping sample_rate save_retain_interval
scatter_gather_tensors_in_pipeline seed sft sgd_momentum short_seq_prob sink_level skip_train
split stage start_weight_decay stderr_sink_level suggested_communication_unit_size swiglu_limit
te_rng_tracker test_mode tiktoken_pattern train_sync_interval trainable trust_remote_code
turbo_grouped_gemm_without_padding use_checkpoint_opt_param_scheduler use_cpu_initialization
use_deprecated_20241209_moe_layer use_fused_weighted_squared_relu use_kimi_k3_attention_backend
use_legacy_models use_mcore_models use_mp_args_from_checkpoint_args use_nsys_profiler
use_persistent_ckpt_worker use_pytorch_profiler use_ring_exchange_p2p use_rocm_mem_info
use_rocm_mem_info_iters use_rope_scaling use_te_activation_func
use_tokenizer_model_from_checkpoint_args use_torch_optimizer_for_cpu_offload use_turbo_attention
use_turbo_autotune use_turbo_fused_act_with_probs use_turbo_gemm use_turbo_grouped_gemm
use_turbo_parallel_linear v4_grouped_experts_support_clamped_swiglu v4_indexer_distill_loss_coeff
vocab_extra_ids vocab_file weight_decay weight_decay_incr_style xavier_uniform
"""
IGNORED = frozenset(_IGNORED_TEXT.split())
"""Settings that cannot change memory or speed, that only choose a kernel library, or that size a
part of a model which `UNSUPPORTED` refuses where it is on."""

_PREFIX_TEXT = """
adam_ adlr_ app_tag_ auto_detect_ckpt bert_ ckpt_ config_logger csa_ data_ dataset_ decode_only_
dino_ disable_profiler disable_straggler disable_tensorboard disable_wandb dist_ckpt
distributed_timeout dsa_ enable_msc engram_ error_injection eval_ export_kd_ export_quant_
finetune_ grpo_ hc_ ict_ index_ inference_ init_method inprocess_ kda_ langrl_ linear_conv_
linear_key_ linear_num_ linear_value_ load log_ logging_ lr master_addr master_port max_restarts
memory_snapshot mhc_ min_lr mlflow_ monitor_interval msc muon_ mxfp4_ nccl_communicator no_load_
no_save_ node_rank non_persistent_ odc_ one_logger_ pretrained_checkpoint profile
pytorch_profiler_ quantile_balancing_ rdzv_ record_memory rerun_ retro_ rl_ rope_ rotary_ save
sft_ straggler_ swin_ tensorboard_ test_data tiktoken_ timing_ tokenizer_ torch_profiler tp_comm_
train_data train_iters train_samples turbo_deepep turbo_gemm_backend turbo_grouped_gemm_backend
use_dist_ckpt use_v4_ valid_data wandb_ warmup zero_bubble_adaptive zero_bubble_pipeline_timers
"""
IGNORED_PREFIXES = tuple(_PREFIX_TEXT.split())
"""Beginnings of names of further settings without consequence."""


def is_harmless(name: str) -> bool:
    """Whether a setting can change nothing; names in capitals are environment variables."""
    return name in IGNORED or name.startswith(IGNORED_PREFIXES) or name.isupper()
