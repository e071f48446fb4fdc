// The kernel of what a thread does alone: `f(i)` for each i < count, where f is a struct that NVRTC can name, with all
// that it needs.
#pragma once

#include "device.h"

ES_NAMESPACE {

template <class F>
ES_KERNEL void ES_THREADS(kThreads) each_kernel(int64_t count, F f) {
  ES_EACH(i, count) f(i);
}

#if ES_HOST

template <class F>
static void for_each(int64_t count, F f) {
  if (count) ES_LAUNCH(blocks_for_threads(count), kThreads, each_kernel<F>, count, f);
}

#endif

}
ES_NAMESPACE_END
