// Fibers, and the two barriers.
#include "device.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// es_switch(from, to): goes on where `to` was left, having kept in *from where this one is.
extern "C" void es_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl es_switch
es_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
constexpr int kKept = 6;
#elif defined(__aarch64__)
asm(R"(
.text
.globl es_switch
es_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#endif

// Of csrc/standin, where that is there: memory that only kernels may touch.
extern "C" __attribute__((weak, visibility("default"))) void es_stand_in_opens(bool);

namespace es::shim {

Index thread_index, block_index, block_size, grid_size;

namespace {

constexpr int kMostThreads = 1024;
constexpr size_t kStack = 256 << 10;

enum class State { runs, at_block, at_warp, ended };

struct Fiber {
  std::unique_ptr<char[]> stack{new char[kStack]};
  void* place = nullptr;
  State state = State::ended;
  uint64_t given = 0;
};

std::vector<Fiber> fibers;
void* scheduler;
int current;
const std::function<void()>* body;
struct Registered {
  void* data;
  size_t bytes;
};
std::vector<Registered>& shared_memory() {
  static std::vector<Registered> all;
  return all;
}

bool backwards() {
  static const char* order = std::getenv("ES_SHIM_ORDER");
  return order && *order == '1';
}

#if defined(__SANITIZE_ADDRESS__)
const void* scheduler_stack;
size_t scheduler_size;
#endif

void to_scheduler(bool for_ever) {
  Fiber& mine = fibers[current];
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(for_ever ? nullptr : &fake, scheduler_stack, scheduler_size);
#endif
  (void)for_ever;
  es_switch(&mine.place, scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, &scheduler_stack, &scheduler_size);
#endif
}

void begin() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_size);
#endif
  (*body)();
  fibers[current].state = State::ended;
  to_scheduler(true);
  std::abort();
}

void prepare(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(fiber.stack.get(), kStack);  // the last thread on it never returned from `begin`
#endif
  char* top = fiber.stack.get() + kStack;
  top -= (uintptr_t)top % 16;
#if defined(__x86_64__)
  void** at = (void**)(top - 8);  // as after a call
  *--at = (void*)&begin;
  for (int i = 0; i < kKept; ++i) *--at = nullptr;
  fiber.place = at;
#else
  void** at = (void**)(top - 160);
  std::memset(at, 0, 160);
  at[11] = (void*)&begin;  // x30
  fiber.place = at;
#endif
  fiber.state = State::runs;
}

void resume(int number) {
  current = number;
  thread_index.x = (unsigned)number;
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, fibers[number].stack.get(), kStack);
#endif
  es_switch(&scheduler, fibers[number].place);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

// Let those go on that have all come to a barrier.
bool release(int first, int last, State barrier) {
  int waiting = 0;
  for (int i = first; i < last; ++i) waiting += fibers[i].state == barrier;
  if (waiting != last - first) return false;
  for (int i = first; i < last; ++i) fibers[i].state = State::runs;
  return true;
}

void run_block(int threads) {
  for (const auto& one : shared_memory()) std::memset(one.data, 0xff, one.bytes);
  for (int i = 0; i < threads; ++i) prepare(fibers[i]);
  for (;;) {
    for (int i = 0; i < threads; ++i) {
      int number = backwards() ? threads - 1 - i : i;
      if (fibers[number].state == State::runs) resume(number);
    }
    bool moved = release(0, threads, State::at_block), ended = true;
    for (int first = 0; first < threads; first += kWarp)
      moved |= release(first, first + kWarp < threads ? first + kWarp : threads, State::at_warp);
    for (int i = 0; i < threads; ++i) ended &= fibers[i].state == State::ended;
    if (ended) return;
    if (!moved) fail("threads of a block do not meet at a barrier");
  }
}

}

void launch(int64_t blocks, int threads, const std::function<void()>& kernel) {
  static std::mutex one_at_a_time;
  std::lock_guard guard(one_at_a_time);
  if (es_stand_in_opens) es_stand_in_opens(true);
  if (blocks < 1 || threads < 1 || threads > kMostThreads) fail("a launch without blocks or threads, or with too many");
  if (threads % kWarp) fail("a block is not made of whole warps");
  if ((int)fibers.size() < threads) fibers.resize(threads);
  body = &kernel;
  block_size.x = (unsigned)threads, grid_size.x = (unsigned)blocks;
  for (int64_t i = 0; i < blocks; ++i) {
    block_index.x = (unsigned)(backwards() ? blocks - 1 - i : i);
    run_block(threads);
  }
  if (es_stand_in_opens) es_stand_in_opens(false);
}

void wait_for_block() {
  fibers[current].state = State::at_block;
  to_scheduler(false);
}

static void wait_for_warp() {
  fibers[current].state = State::at_warp;
  to_scheduler(false);
}

uint64_t exchange(uint64_t word, int lane) {
  fibers[current].given = word;
  wait_for_warp();
  uint64_t found = fibers[current / kWarp * kWarp + lane % kWarp].given;
  wait_for_warp();
  return found;
}

void fail(const char* what) {
  std::fprintf(stderr, "shim: block %u, thread %u: %s\n", block_index.x, thread_index.x, what);
  std::abort();
}

void registered(void* data, size_t bytes) {
  std::memset(data, 0xff, bytes);
  shared_memory().push_back({data, bytes});
}

}
