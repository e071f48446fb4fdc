"""Which operators exact mode can run, by what makes them exact. What is in no table is refused.

Names are those of PyTorch's operators without overload and without the underscore of the in-place variant: `add` stands
for `aten::add.Tensor`, `aten::add_.Scalar` and `aten::add.out`.
"""

from __future__ import annotations

# ---- exact by our kernels, by the family of csrc/ that has them

GEMM = frozenset({"mm"})
CONV: frozenset[str] = frozenset()
POINTWISE = frozenset({"exp"})
REDUCE = frozenset(
    {
        *("sum", "nansum", "mean", "prod", "amax", "amin", "max", "min", "aminmax", "_aminmax", "logsumexp", "trace"),
        *("var", "std", "var_mean", "std_mean", "linalg_vector_norm", "norm", "_foreach_norm", "dist", "renorm"),
        *("cumsum", "cumprod", "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
        *("native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward"),
        *("native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit", "batch_norm_backward"),
        *("_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_with_update_functional"),
        *("_batch_norm_no_update", "_weight_norm_interface", "_weight_norm_interface_backward"),
        *("_safe_softmax", "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"),
    }
)
RANDOM: frozenset[str] = frozenset()
SCATTER: frozenset[str] = frozenset()

OURS = GEMM | CONV | POINTWISE | REDUCE | RANDOM | SCATTER

# ---- exact by IEEE-754: each result is one correctly rounded operation, whatever kernel computes it

IEEE: frozenset[str] = frozenset()

# ---- nothing is computed, or no order can be seen: views, copies, comparisons, integers

INSENSITIVE: frozenset[str] = frozenset()
