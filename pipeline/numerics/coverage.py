"""Which operators exact mode can run, by what makes them exact. What is in no table is refused.

Names are those of PyTorch's operators without overload and without the underscore of the in-place variant: `add` stands
for `aten::add.Tensor`, `aten::add_.Scalar` and `aten::add.out`.
"""

from __future__ import annotations

import enum
from functools import cache


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# ---- exact by our kernels, by the family of csrc/ that has them

# addbmm is made of our addmm_ and bmm alone
GEMM = _names("""
    _addmm_activation addbmm addmm addmv addr baddbmm bmm dot mm mv vdot
""")
CONV = _names("""
    _convolution convolution convolution_backward
""")
POINTWISE = _names("""
    _fused_adagrad _fused_adam _fused_adamw _fused_sgd acos acosh add addcdiv addcmul asin asinh atan atan2 atanh
    binary_cross_entropy binary_cross_entropy_backward clamp clamp_max clamp_min copysign cos cosh elu elu_backward
    erf erfc erfinv exp exp2 expm1 floor_divide fmax fmin fmod gelu gelu_backward glu glu_backward
    hardshrink_backward hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward
    huber_loss huber_loss_backward hypot lerp log log10 log1p log2 log_sigmoid_backward log_sigmoid_forward
    logaddexp logaddexp2 logit logit_backward maximum minimum mish mish_backward mse_loss mse_loss_backward pow relu
    relu6 remainder rsqrt rsub selu sigmoid sigmoid_backward silu silu_backward sin sinc sinh smooth_l1_loss
    smooth_l1_loss_backward softplus softplus_backward softshrink softshrink_backward special_entr special_xlog1py
    sqrt square sub tan tanh tanh_backward xlogy
""")
REDUCE = _names("""
    _aminmax _batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional _foreach_norm
    _log_softmax _log_softmax_backward_data _native_batch_norm_legit _native_batch_norm_legit_no_training _softmax
    _softmax_backward_data _weight_norm_interface _weight_norm_interface_backward amax amin aminmax
    batch_norm_backward cumprod cumsum linalg_vector_norm max mean min nansum native_batch_norm
    native_batch_norm_backward native_group_norm native_group_norm_backward native_layer_norm
    native_layer_norm_backward nll_loss2d_backward nll_loss2d_forward nll_loss_backward nll_loss_forward norm prod
    std std_mean sum trace var var_mean
""")
RANDOM = _names("""
    bernoulli cauchy exponential geometric log_normal multinomial native_dropout native_dropout_backward normal
    random randperm uniform
""")
SCATTER = _names("""
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
    _embedding_bag _embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_forward_only
    _embedding_bag_per_sample_weights_backward _index_put_impl
    _upsample_nearest_exact1d _upsample_nearest_exact1d_backward _upsample_nearest_exact2d
    _upsample_nearest_exact2d_backward _upsample_nearest_exact3d _upsample_nearest_exact3d_backward
    adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool2d_backward
    adaptive_max_pool3d adaptive_max_pool3d_backward avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward
    col2im embedding_backward embedding_dense_backward gather_backward index_add index_select_backward max_pool1d
    max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d
    max_pool3d_with_indices max_pool3d_with_indices_backward put reflection_pad1d_backward reflection_pad2d_backward
    reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward
    scatter scatter_add scatter_reduce upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d
    upsample_linear1d_backward upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d
    upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward upsample_trilinear3d
    upsample_trilinear3d_backward
""")

DATA = _names("arange linspace grid_sampler_2d")

OURS = GEMM | CONV | POINTWISE | REDUCE | RANDOM | SCATTER | DATA

DOUBLES = _names("""
    add sub rsub sum mean amax amin aminmax sqrt uniform exponential bernoulli multinomial random arange linspace
""")
"""Those of ours that take float64 too; with a factor (`alpha`) `add` and `sub` do not."""

# ---- exact by IEEE-754: each result is one correctly rounded operation, whatever kernel computes it. Not `sqrt`, which
# PyTorch gives to MKL, nor what shows the sign of a NaN, which is not specified: `copysign`, `signbit`.

IEEE = _names("""
    mul div reciprocal neg abs ceil floor trunc round frac frexp sign sgn nextafter threshold threshold_backward
    leaky_relu leaky_relu_backward hardshrink _prelu_kernel _prelu_kernel_backward
    _amp_foreach_non_finite_check_and_unscale _amp_update_scale
""")

# ---- nothing is computed, or no order can be seen: views, copies, comparisons, integers

VIEWS = _names("""
    alias as_strided detach diagonal expand permute select slice split split_with_sizes squeeze t transpose unbind
    unfold unsqueeze view view_as_real view_as_complex _reshape_alias _unsafe_view unsafe_split
    unsafe_split_with_sizes lift lift_fresh _fw_primal _make_dual _conj _neg_view set resize resize_as
""")

COPIES = frozenset(f"{view}_copy" for view in VIEWS) | _names("""
    narrow_copy _reshape_copy _reshape_alias_copy as_strided_scatter diagonal_scatter select_scatter slice_scatter
    slice_inverse select_backward slice_backward diagonal_backward conj_physical _conj_physical cat _chunk_cat stack
    _stack block_diag clone copy _to_copy _copy_from _lazy_clone _pin_memory constant_pad_nd reflection_pad1d
    reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d flip roll rot90 repeat
    repeat_interleave tril triu diag_embed pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle
    im2col _pack_padded_sequence
""")

SELECTIONS = _names("""
    index _unsafe_index index_select index_fill index_copy gather take where masked_select masked_fill masked_scatter
    masked_scatter_backward nonzero nonzero_static argmax argmin cummax cummin _cummax_helper _cummin_helper
    sort topk searchsorted bucketize
""")

FACTORIES = _names("""
    empty empty_like empty_permuted empty_strided new_empty new_empty_strided full full_like new_full new_ones
    new_zeros ones ones_like zeros zeros_like _efficientzerotensor scalar_tensor eye fill zero tril_indices
    triu_indices from_file _new_zeros_with_same_feature_meta
""")

COMPARISONS = _names("""
    eq ne lt le gt ge equal isnan isinf isposinf isneginf isin heaviside nan_to_num logical_and logical_not
    logical_or logical_xor bitwise_and bitwise_not bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift
    __lshift__ __rshift__ __ilshift__ __irshift__ all any _is_all_true _is_any_true count_nonzero gcd lcm
""")

QUESTIONS = _names("""
    _local_scalar_dense is_same_size is_set_to is_pinned is_coalesced dense_dim sparse_dim _has_same_storage_numel
    _resize_output _assert_async _functional_assert_async _assert_scalar _functional_assert_scalar
    _assert_tensor_metadata sym_constrain_range sym_constrain_range_for_size _functional_sym_constrain_range
    _functional_sym_constrain_range_for_size _print _make_dep_token _linalg_check_errors _fused_sdp_choice
""")

INSENSITIVE = VIEWS | COPIES | SELECTIONS | FACTORIES | COMPARISONS | QUESTIONS

# ---- exact for integers and bool, whose arithmetic has no order, and refused for others: see `integers_only`

INTEGERS = _names("""
    bincount _unique _unique2 unique_consecutive unique_dim unique_dim_consecutive
""")

# ---- made of other operators, which are judged one by one: their kernels only call PyTorch's dispatcher

COMPOSED = _names("""
    embedding index_put _unsafe_index_put _unsafe_masked_index _unsafe_masked_index_put_accumulate linear softmax
    log_softmax _safe_softmax deg2rad rad2deg celu dist allclose affine_grid_generator
    binary_cross_entropy_with_logits _trilinear _euclidean_dist adaptive_avg_pool1d avg_pool1d rand rand_like randint
    randint_like randn randn_like normal_functional logsumexp dropout gru gru_cell lstm lstm_cell rnn_relu
    rnn_relu_cell rnn_tanh rnn_tanh_cell
""")

EXCEPT = frozenset({"grid_sampler_2d.out", "round.decimals", "round.decimals_out"})
"""Overloads that are refused though others of their name are not; without the underscore of the in-place variant."""

PLUMBING = frozenset({"c10d", "_c10d_functional", "profiler", "debug_mode_ops", "easyscale"})
"""Namespaces of operators that are no part of a model."""


ROADS = OURS | _names("div sort topk _fused_rms_norm")
"""Operators whose results on a device would depend on PyTorch's kernels for it; beside all of `_foreach_`."""


ROADS_OF_ALL = RANDOM | _names("sort topk")
"""Those of them that are computed so even for integers: random numbers, and the choice among equals."""


def goes_by_the_cpu(name: str) -> bool:
    """Whether an operator on a device is computed as on the CPU, down to our kernels; by its full name."""
    base = base_name(name)
    return name.startswith("aten::") and (base in ROADS or base.startswith("_foreach_"))


KERNELS = ("CPU", "CUDA", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
"""Keys whose kernels compute on ordinary tensors, below autograd. What is composed above it is judged by its parts."""


class Class(enum.Enum):
    """Why an operator is exact, or that it is not. The values are for people."""

    IEEE = "exact by IEEE-754"
    OURS = "exact by our kernel"
    INSENSITIVE = "order-insensitive"
    INTEGERS = "exact for integers"
    COMPOSED = "made of others"
    UNCOVERED = "not covered"


def base_name(name: str) -> str:
    """`add` of `aten::add_.Tensor`."""
    base = name.partition("::")[2].partition(".")[0]
    return base[:-1] if base.endswith("_") and not base.endswith("__") else base


@cache
def classify(name: str) -> Class:
    """The class of an operator, by its full name: `aten::add.Tensor`."""
    space, _, rest = name.partition("::")
    if space in PLUMBING:
        return Class.INSENSITIVE
    if space != "aten":
        return Class.UNCOVERED
    base = base_name(name)
    if f"{base}.{rest.partition('.')[2]}" in EXCEPT:
        return Class.UNCOVERED
    tables = {
        Class.OURS: OURS, Class.IEEE: IEEE, Class.INSENSITIVE: INSENSITIVE, Class.INTEGERS: INTEGERS,
        Class.COMPOSED: COMPOSED,
    }  # fmt: skip
    found = next((kind for kind, names in tables.items() if base in names), Class.UNCOVERED)
    if found is Class.UNCOVERED and base.startswith("_foreach_"):
        return Class.COMPOSED  # on a CPU one operator after the other
    return found
