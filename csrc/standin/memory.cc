#include "memory.h"

#include <sys/mman.h>

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace es::standin {
namespace {

constexpr size_t kReserved = size_t{64} << 30;
constexpr size_t kPage = 4096, kAligned = 512;

std::mutex lock;
char* base;
size_t used;  // from `base`: what was ever given
bool closes;
int open_count;
std::map<size_t, std::vector<void*>> unused;  // by size
std::map<void*, size_t> sizes;

void protect(int how) {
  if (closes && used) TORCH_INTERNAL_ASSERT(mprotect(base, (used + kPage - 1) / kPage * kPage, how) == 0);
}

}

void* allocate(size_t bytes) {
  if (!bytes) return nullptr;
  std::lock_guard guard(lock);
  if (!base) {
    closes = !std::getenv("STAND_IN_OPEN");  // which takes half of a process's time: not all tests need it
    const int how = closes ? PROT_NONE : PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    base = static_cast<char*>(mmap(nullptr, kReserved, how, kind, -1, 0));
    TORCH_CHECK(base != MAP_FAILED, "the stand-in finds no addresses");
  }
  bytes = (bytes + kAligned - 1) / kAligned * kAligned;
  auto& same = unused[bytes];
  void* data;
  if (same.empty()) {
    TORCH_CHECK(used + bytes <= kReserved, "the stand-in's memory is full");
    data = base + used;
    used += bytes;
  } else {
    data = same.back();
    same.pop_back();
  }
  sizes[data] = bytes;
  protect(PROT_READ | PROT_WRITE);
  std::memset(data, 0xff, bytes);  // NaN: nobody may read what nobody has written
  if (!open_count) protect(PROT_NONE);
  return data;
}

void release(void* data) {
  if (!data) return;
  std::lock_guard guard(lock);
  auto found = sizes.find(data);
  unused[found->second].push_back(data);
  sizes.erase(found);
}

Open::Open() {
  std::lock_guard guard(lock);
  if (open_count++ == 0) protect(PROT_READ | PROT_WRITE);
}
Open::~Open() {
  std::lock_guard guard(lock);
  if (--open_count == 0) protect(PROT_NONE);
}

}

// For kernels: see cuda/shim.cc.
extern "C" __attribute__((visibility("default"))) void es_stand_in_opens(bool begins) {
  alignas(es::standin::Open) static char place[sizeof(es::standin::Open)];
  if (begins) new (place) es::standin::Open;
  else reinterpret_cast<es::standin::Open*>(place)->~Open();
}
