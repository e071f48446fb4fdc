// Work in parallel, on PyTorch's own pool of threads where there is one. No order of accumulation may depend on it.
#pragma once

#include <cstdint>

namespace es {

using Body = void (*)(int64_t begin, int64_t end, void* context);

// Calls `body` for parts that cover 0 .. `items` exactly, perhaps at the same time; each of at least `grain` items, but
// for the last one. Set by whoever owns the threads; without an owner everything is done here.
extern void (*parallel)(int64_t items, int64_t grain, Body body, void* context);

// How many threads `parallel` may use, for deciding how to cut work up (never how to add it up).
extern int (*parallel_width)();

// `f(begin, end)` over 0 .. `items`.
template <class F>
static inline void parallel_for(int64_t items, int64_t grain, F&& f) {
  if (items <= 0) return;
  if (items <= grain) return f(int64_t(0), items);
  parallel(items, grain, [](int64_t begin, int64_t end, void* context) { (*static_cast<F*>(context))(begin, end); },
           const_cast<void*>(static_cast<const void*>(&f)));
}

}
