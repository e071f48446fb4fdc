// Search among things that ascend.
#pragma once

#include "base.h"

ES_NAMESPACE {

// The first i of 0 .. count - 1 for which `test(i)` holds, as it then does for all after it; `count`: for none.
template <class Test>
ES_FN int64_t first_that(int64_t count, Test test) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (test(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

}
ES_NAMESPACE_END
