// What device.h promises those who start kernels.
#include "device.h"

#include <cstdlib>

namespace es {

static int64_t asked_for(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : 0;
}

Settings& settings() {
  static Settings all = {(int)asked_for("ES_TILE"), (int)asked_for("ES_SEGMENT"), asked_for("ES_BLOCKS")};
  return all;
}

int64_t blocks_for(int64_t tasks) {
  const int64_t most = settings().blocks ? settings().blocks : 1 << 16;
  return tasks < most ? tasks : most;
}

Memory::Memory(size_t bytes) : data_(bytes ? owner.allocate(bytes) : nullptr), bytes_(bytes) {}
Memory::~Memory() {
  if (data_) owner.release(data_, bytes_);
}

}
