// The types that kernels take: computed in binary32, see exact/half.h.
#pragma once

namespace es {

enum class Element { f32, bf16, fp16 };

}
