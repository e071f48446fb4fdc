// The memory of the stand-in: a part of this process's, which the host may touch only while it is open.
#pragma once

#include <cstddef>

namespace es::standin {

void* allocate(size_t bytes);
void release(void* data);

// While one of these lives, in whatever thread, the memory can be read and written: a kernel or a copy runs.
class Open {
 public:
  Open();
  ~Open();
  Open(const Open&) = delete;
};

}
