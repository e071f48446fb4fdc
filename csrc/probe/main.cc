// probe ISA [FAMILY...]: hashes of all families, or of these, under one instruction set. Exit code 3: this processor lacks
// it. probe kernels: what kernels for CUDA there are.
#include "../cpu/isa.h"
#include "probe.h"
#ifdef ES_WITH_CUDA
#include "../cuda/launch.h"
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

int main(int count, char** arguments) {
#ifdef ES_WITH_CUDA
  if (count == 2 && !strcmp(arguments[1], "kernels")) {
    for (auto* one : es::kernels()) std::puts(one->line().c_str());
    return 0;
  }
#endif
  if (!es::use_isa(count > 1 ? arguments[1] : "")) return 3;
  es::probe::Report report;
  for (auto& one : es::probe::families()) {
    bool asked = count <= 2;
    for (int i = 2; i < count; ++i) asked = asked || one.name == arguments[i];
    if (asked) one.family(report);
  }
  return 0;
}
