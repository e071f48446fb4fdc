"""Which operators exact mode can run, by what makes them exact. What is in no table is refused.

Names are those of PyTorch's operators without overload and without the underscore of the in-place variant: `add` stands
for `aten::add.Tensor`, `aten::add_.Scalar` and `aten::add.out`.
"""

from __future__ import annotations

# ---- exact by our kernels, by the family of csrc/ that has them

GEMM = frozenset({"mm"})
CONV: frozenset[str] = frozenset()
POINTWISE = frozenset(
    ["_fused_adagrad", "_fused_adam", "_fused_adamw", "_fused_sgd", "acos", "acosh", "add", "addcdiv", "addcmul", "asin", "asinh", "atan", "atan2", "atanh", "binary_cross_entropy", "binary_cross_entropy_backward", "celu", "clamp", "clamp_max", "clamp_min", "cos", "cosh", "div", "elu", "elu_backward", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "fmax", "fmin", "gelu", "gelu_backward", "glu", "glu_backward", "hardsigmoid", "hardsigmoid_backward", "hardswish", "hardswish_backward", "hardtanh", "huber_loss", "huber_loss_backward", "hypot", "lerp", "log", "log10", "log1p", "log2", "log_sigmoid_backward", "log_sigmoid_forward", "logaddexp", "logaddexp2", "logit", "logit_backward", "maximum", "minimum", "mish", "mish_backward", "mse_loss_backward", "mul", "pow", "relu", "relu6", "rsqrt", "rsub", "selu", "sigmoid", "sigmoid_backward", "silu", "silu_backward", "sin", "sinc", "sinh", "smooth_l1_loss_backward", "softplus", "softplus_backward", "special_entr", "special_xlog1py", "sqrt", "square", "sub", "tan", "tanh", "tanh_backward", "xlogy"]
)
REDUCE: frozenset[str] = frozenset()
RANDOM: frozenset[str] = frozenset()
SCATTER: frozenset[str] = frozenset()

OURS = GEMM | CONV | POINTWISE | REDUCE | RANDOM | SCATTER

# ---- exact by IEEE-754: each result is one correctly rounded operation, whatever kernel computes it

IEEE: frozenset[str] = frozenset()

# ---- nothing is computed, or no order can be seen: views, copies, comparisons, integers

INSENSITIVE: frozenset[str] = frozenset()
