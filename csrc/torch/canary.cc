// Does this process compute as IEEE-754 says? A library that was linked with -ffast-math, or a call, may have told its
// threads to take subnormals for zero, or to round otherwise. Each thread has a control register of its own, so all of
// PyTorch's pool are looked at now and then, and the one that trains often.
#include <atomic>

#include "../cpu/parallel.h"
#include "registry.h"

namespace es::glue {
namespace {

bool computes_as_it_should() {
  volatile float least = 0x1p-149f, smallest_normal = 0x1p-126f, half = 0.5f, one = 1.0f, below_half_ulp = 0x1.8p-25f;
  float taken = least + least, given = smallest_normal * half;  // as an input, as a result
  bool kept = taken == 0x1p-148f && given != 0 && given == smallest_normal - given;
  bool nearest = one + below_half_ulp == 1.0f && -one - below_half_ulp == -1.0f && one - below_half_ulp / 2 == 1.0f;
  return kept && nearest;
}

bool arithmetic_is_ieee(bool everywhere) {
  std::atomic<bool> fine = computes_as_it_should();
  if (!everywhere) return fine;
  int64_t threads = parallel_width();
  parallel_for(threads, 1, [&](int64_t, int64_t) {
    if (!computes_as_it_should()) fine = false;
  });
  return fine;
}

TORCH_LIBRARY_FRAGMENT(easyscale, m) { m.def("arithmetic_is_ieee(bool everywhere) -> bool", &arithmetic_is_ieee); }

}
}
