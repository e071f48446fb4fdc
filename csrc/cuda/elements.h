// Elements of a type that is known at run time: read as binary32, rounded once when they are written.
#pragma once

#include "../cpu/element.h"
#include "../exact/half.h"

ES_NAMESPACE {

ES_FN int64_t size_of(Element type) { return type == Element::f32 ? 4 : 2; }

ES_FN float load(Element type, const char* at) {
  if (type == Element::f32) return *(const float*)at;
  if (type == Element::bf16) return widen(*(const bf16*)at);
  return widen(*(const fp16*)at);
}

ES_FN void store(Element type, char* at, float x) {
  if (type == Element::f32) *(float*)at = x;
  else if (type == Element::bf16) *(bf16*)at = narrow<bf16>(x);
  else *(fp16*)at = narrow<fp16>(x);
}

}
ES_NAMESPACE_END
