"""Group operators by name into families that take similar time for similar work."""

from __future__ import annotations

import re

MATMUL, CONVOLUTION, ATTENTION = "matmul", "convolution", "attention"
INDEXING = "indexing"
RECURRENT = "recurrent"
DISTANCE = "distance"
UNKNOWN = "unknown"
TRITON = "triton"
"""Triton kernels of the script or a library, whose bytes and products are counted as they run."""

_NAMES = {
    MATMUL: (
        "mm addmm bmm baddbmm addbmm matmul linear mv addmv dot vdot ger addr _addmm_activation _scaled_mm "
        "_int_mm _grouped_mm"
    ),
    CONVOLUTION: (
        "convolution _convolution cudnn_convolution cudnn_convolution_relu cudnn_convolution_transpose "
        "convolution_overrideable convolution_backward cudnn_convolution_backward conv_depthwise3d "
        "_conv_depthwise2d slow_conv_dilated2d slow_conv_transpose2d slow_conv_transpose3d "
        "mkldnn_convolution thnn_conv2d"
    ),
    ATTENTION: (
        "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math "
        "_flash_attention_forward _efficient_attention_forward _fused_sdp_choice "
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_cudnn_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward"
    ),
    RECURRENT: "_cudnn_rnn _cudnn_rnn_backward",
    "layer norm": (
        "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward "
        "_fused_rms_norm _fused_rms_norm_backward"
    ),
    "batch norm": (
        "native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward "
        "_native_batch_norm_legit _native_batch_norm_legit_no_training batch_norm_backward "
        "_batch_norm_with_update "
        "_batch_norm_with_update_functional batch_norm_stats batch_norm_elemt "
        "batch_norm_gather_stats_with_counts batch_norm_backward_reduce batch_norm_backward_elemt "
        "miopen_batch_norm miopen_batch_norm_backward"
    ),
    "softmax": (
        "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data _masked_softmax "
        "_safe_softmax logsumexp"
    ),
    "reduction": (
        "sum mean prod max min amax amin aminmax any all argmax argmin norm linalg_vector_norm var std "
        "var_mean std_mean nansum nanmean count_nonzero nll_loss_forward nll_loss_backward "
        "nll_loss2d_forward nll_loss2d_backward mse_loss binary_cross_entropy "
        "binary_cross_entropy_with_logits l1_loss smooth_l1_loss huber_loss kl_div trace median nanmedian "
        "mode dist _euclidean_dist histc _chunk_grad_outputs_efficient embedding_renorm "
        "_weight_norm_interface _weight_norm_interface_backward cross_entropy_loss"
    ),
    DISTANCE: "_cdist_forward _cdist_backward _pdist_forward _pdist_backward",
    "scan": ("cumsum cumprod cummax cummin logcumsumexp _cummax_helper _cummin_helper"),
    "sort": (
        "sort argsort topk unique _unique _unique2 unique_dim unique_consecutive unique_dim_consecutive "
        "kthvalue searchsorted bucketize msort randperm multinomial"
    ),
    "gather": (
        "index gather index_select embedding take take_along_dim masked_select _embedding_bag "
        "_embedding_bag_forward_only grid_sampler_2d nonzero argwhere upsample_nearest2d "
        "upsample_bilinear2d upsample_bicubic2d upsample_nearest2d_backward upsample_bilinear2d_backward "
        "grid_sampler_2d_backward _upsample_bilinear2d_aa repeat_interleave roll flip "
        "max_pool2d_with_indices avg_pool2d max_pool2d_with_indices_backward avg_pool2d_backward "
        "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward adaptive_max_pool2d "
        "adaptive_max_pool2d_backward avg_pool3d max_pool3d_with_indices im2col col2im pixel_shuffle "
        "pixel_unshuffle reflection_pad1d reflection_pad2d replication_pad2d reflection_pad1d_backward "
        "reflection_pad2d_backward replication_pad2d_backward avg_pool3d_backward one_hot bincount"
    ),
    INDEXING: "index_put index_put_ _index_put_impl_",
    "scatter": (
        "scatter scatter_ scatter_add scatter_add_ scatter_reduce "
        "index_add index_add_ index_copy index_copy_ index_fill index_fill_ put put_ masked_scatter "
        "masked_fill embedding_dense_backward _embedding_bag_dense_backward _embedding_bag_backward "
        "embedding_backward index_backward gather_backward slice_backward select_backward select_scatter "
        "slice_scatter value_selecting_reduction_backward unfold_backward diagonal_backward"
    ),
    "copy": (
        "copy _to_copy clone contiguous cat stack constant_pad_nd repeat tril triu expand_copy permute_copy "
        "view_copy _reshape_copy fill zero zeros ones full zeros_like ones_like full_like new_zeros "
        "new_ones new_full arange linspace eye tril_indices triu_indices scalar_tensor "
        "split_with_sizes_copy"
    ),
    "random": (
        "bernoulli dropout native_dropout native_dropout_backward _fused_dropout uniform normal randn rand "
        "randint random exponential rand_like randn_like randint_like geometric poisson cauchy log_normal "
        "_masked_scale"
    ),
    "pointwise": (
        "add sub mul div true_divide floor_divide remainder fmod pow exp exp2 expm1 log log2 log10 log1p "
        "sqrt rsqrt reciprocal neg abs sign sgn sin cos tan asin acos atan atan2 sinh cosh tanh sigmoid erf "
        "erfc erfinv relu relu_ relu6 leaky_relu elu gelu silu mish hardswish hardsigmoid hardtanh softplus "
        "softshrink hardshrink prelu _prelu_kernel celu selu threshold clamp clamp_min clamp_max clip where "
        "maximum minimum fmax fmin lerp addcmul addcdiv eq ne lt le gt ge logical_and logical_or "
        "logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor __and__ __or__ __xor__ "
        "isnan isinf isfinite isneginf isposinf floor ceil round trunc frac rsub hypot masked_fill_ "
        "nan_to_num logit logaddexp logaddexp2 square glu softmax_backward gelu_backward silu_backward "
        "threshold_backward tanh_backward sigmoid_backward elu_backward leaky_relu_backward "
        "hardtanh_backward hardswish_backward mish_backward softplus_backward glu_backward "
        "mse_loss_backward binary_cross_entropy_backward smooth_l1_loss_backward huber_loss_backward xlogy "
        "special_xlog1py heaviside copysign sinc lgamma digamma polygamma angle _amp_update_scale_ "
        "bitwise_left_shift bitwise_right_shift log_sigmoid_forward log_sigmoid_backward "
        "hardsigmoid_backward real imag complex polar conj_physical _prelu_kernel_backward "
        "_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell "
        "_thnn_fused_gru_cell_backward"
    ),
}
"""Operators of each family, without ``aten::`` and the underscore of their in-place forms."""

_FAMILY = {name: family for family, names in _NAMES.items() for name in names.split()}
_LISTS = ("_foreach_", "_amp_foreach_", "_fused_ad", "_fused_sgd")


_LIBRARIES = {
    ATTENTION: r"flash_attn(_interface)?::(_flash_attn|fwd_kvcache)|xformers::efficient_attention"
    "|transformer_engine::fused_attn",
    MATMUL: r"bitsandbytes::(gemm_4bit|int8_linear_matmul|int8_scaled_mm)",
    "foreach": r"\w+::multi_tensor_|bitsandbytes::optimizer_update|deepspeed::lamb",
    "layer norm": r"\w+::(dropout_add_)?_?(layer_?norm|rms_?norm|rms_(forward|backward))",
    "softmax": r"flash_attn::cross_entropy",
    "pointwise": r"flash_attn::rotary|transformer_engine::d?\w*(lu|gelu)$|causal_conv1d::|bitsandbytes::",
    "scan": r"mamba_ssm::",
    "scatter": r"xformers::(scaled_index_add|index_select_cat)",
    "gather": r"torchvision::",
}
"""Kernels of libraries that have stand-ins, by what their qualified names begin with."""
_LIBRARY_KERNEL = {family: re.compile(names) for family, names in _LIBRARIES.items()}


def family_of(name: str) -> str:
    """Return the family of ``aten::name``, or of a known library's operator; else `UNKNOWN`."""
    if not name.startswith("aten::"):
        if name.startswith("triton::"):
            return TRITON
        return next((family for family, names in _LIBRARY_KERNEL.items() if names.match(name)), UNKNOWN)
    stem = stem_of(name)
    if stem.startswith(_LISTS):
        return "foreach"
    return _FAMILY.get(stem) or _FAMILY.get(stem.rstrip("_")) or UNKNOWN


def stem_of(name: str) -> str:
    """``aten::add_.Tensor`` is ``add_``."""
    return name.split("::", 1)[-1].split(".", 1)[0]
