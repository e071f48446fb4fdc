"""Which operators exact mode can run, by what makes them exact. What is in no table is refused.

Names are those of PyTorch's operators without overload and without the underscore of the in-place variant: `add` stands
for `aten::add.Tensor`, `aten::add_.Scalar` and `aten::add.out`.
"""

from __future__ import annotations

# ---- exact by our kernels, by the family of csrc/ that has them

GEMM = frozenset(
    {"mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot", "vdot", "addr", "_addmm_activation"}
    | {"addbmm", "_trilinear"}  # ATen's, from addmm_ and bmm alone
)
CONV = frozenset({"convolution", "_convolution", "convolution_backward"})
POINTWISE = frozenset({"exp"})
REDUCE = frozenset(
    {
        *("sum", "nansum", "mean", "prod", "amax", "amin", "max", "min", "aminmax", "_aminmax", "logsumexp", "trace"),
        *("var", "std", "var_mean", "std_mean", "linalg_vector_norm", "norm", "_foreach_norm", "dist", "renorm"),
        *("cumsum", "cumprod", "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
        *("_safe_softmax", "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"),
    }
)
RANDOM = frozenset(
    {
        *(
            "bernoulli",
            "cauchy",
            "exponential",
            "geometric",
            "log_normal",
            "multinomial",
            "normal",
            "random",
            "uniform",
        ),
        *("native_dropout", "native_dropout_backward", "normal_functional", "randperm"),
        *("rand", "rand_like", "randint", "randint_like", "randn", "randn_like"),
    }
)
SCATTER: frozenset[str] = frozenset()

OURS = GEMM | CONV | POINTWISE | REDUCE | RANDOM | SCATTER

# ---- exact by IEEE-754: each result is one correctly rounded operation, whatever kernel computes it

IEEE: frozenset[str] = frozenset()

# ---- nothing is computed, or no order can be seen: views, copies, comparisons, integers

INSENSITIVE: frozenset[str] = frozenset()
