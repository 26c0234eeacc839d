"""Which operators CUDA's autocast casts, and how: facts of torch's ``ATen/autocast_mode.h`` (2.4 to 2.15).

Only names for which the running torch has an autocast kernel are used, so every version keeps its own list
(named dimensions, for example, ended with 2.12).
"""

from __future__ import annotations

LOWER_PRECISION = "lower_precision"
"""Every eligible argument is cast to the autocast dtype; casts of weights are cached."""
FP32 = "fp32"
"""Every eligible argument is cast to float32."""
FP32_SET_DTYPE = "fp32_set_dtype"
"""Where the first argument is eligible and no `dtype` was given, `dtype` becomes float32."""
FP32_APPEND_DTYPE = "fp32_append_dtype"
"""The overload with a `dtype` is called in place of the one without."""
PROMOTE = "promote"
"""Every eligible argument is cast to the widest dtype among them."""
BANNED = "banned"
"""The call raises an error."""
CUDNN_RNN = "cudnn_rnn"
"""Whole recurrent layers: CUDA's builds cast inside cuDNN's operator, which always runs in float16."""
FP32_AND_BACK = "fp32_and_back"
"""Every eligible argument is cast to float32, and the result to the dtype of the first argument."""

POLICIES: dict[str, str] = {
    LOWER_PRECISION: """
        _convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d
        conv_transpose2d.input conv_transpose3d.input convolution cudnn_convolution
        cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm
        baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell
        gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention
    """,
    FP32: """
        acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
        pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm
        frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
        cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss
        huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
        multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
        upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d
        upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
        _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa
        linalg_matrix_sqrth
    """,
    FP32_SET_DTYPE: """
        prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
        linalg_matrix_norm.str_ord sum sum.dim_IntList prod.dim_Dimname softmax.Dimname log_softmax.Dimname
        cumprod.dimname cumsum.dimname sum.dim_DimnameList
    """,
    FP32_APPEND_DTYPE: "norm.Scalar norm.ScalarOpt_dim norm.names_ScalarOpt_dim",
    PROMOTE: "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add",
    BANNED: "binary_cross_entropy",
}

WITH_DTYPE: dict[str, str] = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
    "norm.names_ScalarOpt_dim": "norm.names_ScalarOpt_dim_dtype",
}
"""The overload that `FP32_APPEND_DTYPE` calls."""

RECURRENT = """
    lstm.input lstm.data gru.input gru.data rnn_tanh.input rnn_tanh.data rnn_relu.input rnn_relu.data
"""
"""Layers that become one cuDNN operator on CUDA and a loop of small operators on the CPU."""

TORCHVISION: dict[str, str] = {
    FP32: "nms",
    FP32_AND_BACK: "roi_align roi_pool ps_roi_align ps_roi_pool deform_conv2d",
}
"""torchvision's own autocast kernels (``csrc/ops/autocast``)."""

BANNED_MESSAGE = """\
torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.
Many models use a sigmoid layer right before the binary cross entropy layer.
In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits
or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are
safe to autocast."""


def aten_policies() -> dict[str, str]:
    """Operator (``name`` or ``name.overload``, without ``aten::``) → policy."""
    return {name: policy for policy, names in POLICIES.items() for name in names.split()}
