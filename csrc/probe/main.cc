// probe ISA [FAMILY...]: hashes of all families, or of these, under one instruction set; "" is this processor's best.
// `probe families` prints their names. With CUDA's kernels: `probe gpu MANIFEST [FAMILY...]` runs these on a GPU (see
// gpu.h), `probe kernels` prints their names.
//
// Exit codes: 3, this processor lacks the instruction set, or it was not built; 4, a result is not as it is defined; 5,
// what is told, as what a GPU's driver refuses.
#include <exception>

#include "../cpu/isa.h"
#include "probe.h"
#ifdef ES_WITH_CUDA
#include "../cuda/launch.h"
#include "gpu.h"
#endif

namespace es::probe {

struct Named {
  std::string name;
  Family family;
};
static std::vector<Named>& families() {
  static std::vector<Named> all;
  return all;
}

Registered::Registered(const char* name, Family family) { families().push_back({name, family}); }

}

using namespace es::probe;

static void run(const std::vector<std::string>& asked) {
  for (auto& one : families()) {
    bool found = asked.empty();
    for (auto& name : asked) found = found || name == one.name;
    if (!found) continue;
    Report report(one.name);
    one.family(report);
    std::fflush(stdout);  // so that a kernel which ends the program takes no other family's hashes along
  }
}

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
#ifdef ES_WITH_CUDA
  if (what == "kernels") {
    for (auto* one : es::kernels()) std::puts(one->line().c_str());
    return 0;
  }
#endif
  if (what == "families") {
    for (auto& one : families()) std::puts(one.name.c_str());
    return 0;
  }
  try {
#ifdef ES_WITH_CUDA
    if (what == "gpu" && count > 2) {
      es::probe::use_gpu(arguments[2]);
      es::use_isa("cuda");
      run({arguments + 3, arguments + count});
      return 0;
    }
#endif
    if (!es::use_isa(what.c_str())) return 3;
    run({arguments + (count > 1 ? 2 : 1), arguments + count});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 5;
  }
}
