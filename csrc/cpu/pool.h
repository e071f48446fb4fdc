// Pools, nearest upsampling, padding's gradients and folding, in the order of exact/pool.h.
#pragma once

#include "../exact/pool.h"
#include "isa.h"

namespace es {

// Inputs, outputs and their gradients are volumes as Planes says, without gaps. Results are overwritten, and overlap
// nothing. All use threads inside.
struct Pool {
  void (*average)(const Planes&, const WindowMean&, const float* in, float* out);
  void (*average_backward)(const Planes&, const WindowMean&, const float* grad, float* grad_in);
  void (*adaptive)(const Planes&, const PartMean&, const float* in, float* out);
  void (*adaptive_backward)(const Planes&, const PartMean&, const float* grad, float* grad_in);

  // `where`: the number of the position of each maximum, in its plane. A gradient goes to where it says, and nowhere if
  // there is no such position; positions that the output does not see are right, but slow on a GPU.
  void (*maximum)(const Planes&, const Windows* axis, const float* in, float* out, int64_t* where);
  void (*maximum_backward)(const Planes&, const Windows* axis, const float* grad, const int64_t* where, float* grad_in);
  void (*adaptive_maximum)(const Planes&, const Parts* axis, const float* in, float* out, int64_t* where);
  void (*adaptive_maximum_backward)(const Planes&, const Parts* axis, const float* grad, const int64_t* where,
                                    float* grad_in);

  // Elements of 1, 2, 4 or 8 bytes.
  void (*nearest)(const Planes&, const Nearest* axis, int64_t bytes, const void* in, void* out);
  void (*nearest_backward)(const Planes&, const Copies<Nearest>&, const float* grad, float* grad_in);
  void (*pad_backward)(const Planes&, const Copies<Border>&, const float* grad, float* grad_in);
  void (*fold)(const Fold&, const float* columns, float* image);
};

}
ES_TABLE(Pool, pool_kernels)
