"""Which operators exact mode can run, by what makes them exact. What is in no table is refused.

Names are those of PyTorch's operators without overload and without the underscore of the in-place variant: `add` stands
for `aten::add.Tensor`, `aten::add_.Scalar` and `aten::add.out`.
"""

from __future__ import annotations

# ---- exact by our kernels, by the family of csrc/ that has them

GEMM = frozenset({"mm"})
CONV: frozenset[str] = frozenset()
POINTWISE = frozenset({"exp"})
REDUCE: frozenset[str] = frozenset()
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
WAYS = ("", "_backward")

SCATTER = frozenset(
    {
        *("embedding", "embedding_backward", "embedding_dense_backward", "index_select", "index_select_backward"),
        *(
            "gather",
            "gather_backward",
            "index",
            "index_add",
            "index_copy",
            "index_put",
            "_index_put_impl",
            "put",
            "take",
        ),
        *("scatter", "scatter_add", "scatter_reduce"),
        *("max_pool1d", "max_pool2d", "max_pool3d", "max_pool1d_with_indices", "max_pool2d_with_indices"),
        *("max_pool2d_with_indices_backward", "max_pool3d_with_indices", "max_pool3d_with_indices_backward"),
        *("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool2d_backward"),
        *("adaptive_max_pool3d", "adaptive_max_pool3d_backward"),
        *("avg_pool1d", "avg_pool2d", "avg_pool2d_backward", "avg_pool3d", "avg_pool3d_backward"),
        *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward"),
        *("adaptive_avg_pool3d", "_adaptive_avg_pool3d", "_adaptive_avg_pool3d_backward"),
        *(
            f"{kind}{d}d{way}"
            for kind in ("upsample_nearest", "_upsample_nearest_exact")
            for d in "123"
            for way in WAYS
        ),
        *(f"upsample_{kind}{way}" for kind in ("linear1d", "bilinear2d", "trilinear3d") for way in WAYS),
        *(f"{kind}_pad{d}d{way}" for kind in ("reflection", "replication") for d in "123" for way in WAYS),
        *("im2col", "col2im", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle"),
    }
)

OURS = GEMM | CONV | POINTWISE | REDUCE | RANDOM | SCATTER

# ---- exact by IEEE-754: each result is one correctly rounded operation, whatever kernel computes it

IEEE: frozenset[str] = frozenset()

# ---- nothing is computed, or no order can be seen: views, copies, comparisons, integers

INSENSITIVE: frozenset[str] = frozenset()
