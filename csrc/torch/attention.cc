// Attention as its parts, which are exact, and the same on every device.
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

#include "registry.h"

namespace es::glue {
namespace {

int64_t parts(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool,
              std::optional<double>, bool) {
  return static_cast<int64_t>(sdp::SDPBackend::math);
}
ES_STUB(_fused_sdp_choice_stub, &parts);

}
}
