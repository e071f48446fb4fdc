// probe ISA: hashes of all families under one instruction set. Exit code 3: this processor lacks it.
#include "../cpu/isa.h"
#include "probe.h"

namespace es::probe {

static std::vector<Family>& families() {
  static std::vector<Family> all;
  return all;
}

Registered::Registered(Family family) { families().push_back(family); }

}

int main(int count, char** arguments) {
  if (!es::use_isa(count > 1 ? arguments[1] : "")) return 3;
  es::probe::Report report;
  for (auto family : es::probe::families()) family(report);
  return 0;
}
