// The 16 lanes of a block of elements (exact/order.h), one to a thread.
#pragma once

#include "../exact/order.h"
#include "device.h"

ES_NAMESPACE {

// Joins the lanes of all blocks that a warp has; the first thread of each 16 gets what they come to.
template <class Op, class T>
static ES_DEVICE T join_lanes(T total) {
  const int thread = (int)threadIdx.x;
  for (int half = (int)kLanes / 2; half > 0; half /= 2) {  // the whole warp must ask
    T other = from_lane(total, (thread + half) % kWarp);
    if (thread % (int)kLanes < half) total = Op::combine(total, other);
  }
  return total;
}

}
ES_NAMESPACE_END
