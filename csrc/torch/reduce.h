// From tensors to reductions: which axes are reduced, in their logical order, and which are kept.
#pragma once

#include <ATen/core/Tensor.h>

#include "../cpu/reduce.h"

namespace es::glue {

// `in` over the axes in which `out`, of as many axes, has size 1. Neighbouring axes that lie like one become one; kept
// ones are sorted, so that the contiguous one is the last.
Reduction reduction_of(const at::Tensor& out, const at::Tensor& in);

// The sum of a float tensor over axes; they stay, with size 1.
at::Tensor sum_over(const at::Tensor& in, at::IntArrayRef axes, void (*kernel)(const Reduction&) = nullptr);

}
