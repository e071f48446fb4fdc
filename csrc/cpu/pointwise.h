// The pointwise operators of exact/pointwise.h over strided elements of any of our types.
#pragma once

#include "../exact/pointwise.h"
#include "element.h"
#include "isa.h"

namespace es {

#define ES_POINTWISE_NAME(name, inputs, value) name,
enum class Point : int { ES_POINTWISE(ES_POINTWISE_NAME) count };
#undef ES_POINTWISE_NAME

// What is done to each element. types[0] is the result's.
struct PointJob {
  Point point;
  Element types[4];
  float numbers[4];
};

struct Pointwise {
  // Element i of operand o (the result first) is at data[o] + i * strides[o] bytes. The result may be one of the inputs.
  void (*strided)(const PointJob& job, char* const* data, const int64_t* strides, int64_t count);

  // Contiguous floats; `inputs` has as many as the operator takes.
  void (*contiguous)(Point point, float* out, const float* const* inputs, int64_t count, const float* numbers);

  int (*inputs)(Point point);
};

}
ES_TABLE(Pointwise, pointwise)
