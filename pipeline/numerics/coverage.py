"""Which operators exact mode can run, by what makes them exact. What is in no table is refused.

Names are those of PyTorch's operators without overload and without the underscore of the in-place variant: `add` stands
for `aten::add.Tensor`, `aten::add_.Scalar` and `aten::add.out`.
"""

from __future__ import annotations

# ---- exact by our kernels, by the family of csrc/ that has them

GEMM = frozenset({"mm"})
CONV: frozenset[str] = frozenset()
# fmt: off
POINTWISE = frozenset({
    "_foreach_acos", "_foreach_add", "_foreach_addcdiv", "_foreach_addcmul", "_foreach_asin", "_foreach_atan",
    "_foreach_clamp_max", "_foreach_clamp_min", "_foreach_cos", "_foreach_cosh", "_foreach_div", "_foreach_erf",
    "_foreach_erfc", "_foreach_exp", "_foreach_expm1", "_foreach_lerp", "_foreach_log", "_foreach_log10",
    "_foreach_log1p", "_foreach_log2", "_foreach_maximum", "_foreach_minimum", "_foreach_mul", "_foreach_pow",
    "_foreach_rsqrt", "_foreach_sigmoid", "_foreach_sin", "_foreach_sinh", "_foreach_sqrt", "_foreach_sub",
    "_foreach_tan", "_foreach_tanh", "_fused_adagrad", "_fused_adam", "_fused_adamw", "_fused_sgd", "acos", "acosh",
    "add", "addcdiv", "addcmul", "asin", "asinh", "atan", "atan2", "atanh", "binary_cross_entropy",
    "binary_cross_entropy_backward", "celu", "clamp", "clamp_max", "clamp_min", "copysign", "cos", "cosh", "div",
    "elu", "elu_backward", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor_divide", "fmax", "fmin", "fmod",
    "gelu", "gelu_backward", "glu", "glu_backward", "hardshrink_backward", "hardsigmoid", "hardsigmoid_backward",
    "hardswish", "hardswish_backward", "hardtanh", "hardtanh_backward", "huber_loss", "huber_loss_backward", "hypot",
    "lerp", "log", "log10", "log1p", "log2", "log_sigmoid_backward", "log_sigmoid_forward", "logaddexp", "logaddexp2",
    "logit", "logit_backward", "maximum", "minimum", "mish", "mish_backward", "mse_loss", "mse_loss_backward", "mul",
    "pow", "relu", "relu6", "remainder", "rsqrt", "rsub", "selu", "sigmoid", "sigmoid_backward", "silu",
    "silu_backward", "sin", "sinc", "sinh", "smooth_l1_loss", "smooth_l1_loss_backward", "softplus",
    "softplus_backward", "softshrink", "softshrink_backward", "special_entr", "special_xlog1py", "sqrt", "square",
    "sub", "tan", "tanh", "tanh_backward", "xlogy",
})
# fmt: on
REDUCE: frozenset[str] = frozenset()
RANDOM: frozenset[str] = frozenset()
SCATTER: frozenset[str] = frozenset()

OURS = GEMM | CONV | POINTWISE | REDUCE | RANDOM | SCATTER

# ---- exact by IEEE-754: each result is one correctly rounded operation, whatever kernel computes it

# Under every ATEN_CPU_CAPABILITY, tests/numerics/test_pointwise_ieee.py. PyTorch's sqrt is not here: MKL computes it.
# fmt: off
IEEE = frozenset({
    "_amp_foreach_non_finite_check_and_unscale", "_amp_update_scale", "_foreach_abs", "_foreach_ceil",
    "_foreach_floor", "_foreach_frac", "_foreach_neg", "_foreach_reciprocal", "_foreach_round", "_foreach_sign",
    "_foreach_trunc", "_prelu_kernel", "_prelu_kernel_backward", "abs", "ceil", "eq", "floor", "frac", "frexp", "ge",
    "gt", "hardshrink", "heaviside", "isnan", "le", "leaky_relu", "leaky_relu_backward", "lt", "masked_fill",
    "nan_to_num", "ne", "neg", "nextafter", "reciprocal", "round", "sgn", "sign", "threshold", "threshold_backward",
    "trunc", "where",
})
# fmt: on

# ---- nothing is computed, or no order can be seen: views, copies, comparisons, integers

INSENSITIVE: frozenset[str] = frozenset()
