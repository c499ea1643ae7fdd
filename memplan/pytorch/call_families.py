"""Which operators of PyTorch are one and the same call: ``linear`` in a model is ``addmm`` or
``mm`` where it runs. Needs no PyTorch."""

from __future__ import annotations

_FAMILIES = {
    "attention": (
        "scaled_dot_product_attention _scaled_dot_product_flash_attention "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable"
    ),
    "batch_norm": (
        "batch_norm instance_norm native_batch_norm cudnn_batch_norm miopen_batch_norm "
        "_native_batch_norm_legit _native_batch_norm_legit_functional _batch_norm_with_update"
    ),
    "convolution": (
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution "
        "_convolution cudnn_convolution miopen_convolution mkldnn_convolution"
    ),
    "convert": "to _to_copy",
    "group_norm": "group_norm native_group_norm",
    "layer_norm": "layer_norm native_layer_norm",
    "log_softmax": "log_softmax _log_softmax",
    "max_pool": (
        "max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d "
        "max_pool3d_with_indices"
    ),
    "product": "linear matmul einsum mm addmm bmm baddbmm addbmm mv addmv dot",
    "rms_norm": "rms_norm _fused_rms_norm",
    "softmax": "softmax _softmax",
}
"""The operators of each family, in a model and where it runs; any other is a family of its own."""

FAMILY_OF = {name: family for family, names in _FAMILIES.items() for name in names.split()}
"""The family of each operator that is in one."""


def family_of(operator: str) -> str:
    """The family of an operator."""
    return FAMILY_OF.get(operator, operator)
