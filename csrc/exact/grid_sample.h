// Where grid_sample reads, and with what weights: one coordinate at a time, in binary32.
#pragma once

#include "base.h"

ES_NAMESPACE {

enum class Padding { zeros, border, reflection };

// From -1 .. 1 to 0 .. size - 1 (`corners`), or to -0.5 .. size - 0.5.
ES_FN float to_pixels(float x, int64_t size, bool corners) {
  return corners ? (x + 1.0f) / 2.0f * (float)(size - 1) : ((x + 1.0f) * (float)size - 1.0f) / 2.0f;
}

// Into 0 .. size - 1; NaN becomes 0.
ES_FN float clip_pixel(float x, int64_t size) {
  float most = (float)(size - 1);
  return x > 0.0f ? (x < most ? x : most) : 0.0f;
}

constexpr int32_t kFar = -(1 << 30);

// The largest integer that is not above x, for |x| < 2^30; everything else, NaN too, is far outside of any picture.
ES_FN int32_t floor_pixel(float x) {
  if (!(x > -0x1p30f && x < 0x1p30f)) return kFar;
  int32_t whole = (int32_t)x;
  return whole - ((float)whole > x);
}

// Mirrored at the borders low / 2 and high / 2, again and again.
ES_FN float reflect_pixel(float x, int64_t low, int64_t high) {
  if (low == high) return 0.0f;
  float least = (float)low / 2.0f, span = (float)(high - low) / 2.0f;
  float distance = x - least;
  distance = distance < 0.0f ? -distance : distance;
  int32_t flips = floor_pixel(distance / span);
  if (flips < 0) return 0.0f;
  float rest = distance - (float)flips * span;
  return flips % 2 == 0 ? rest + least : span - rest + least;
}

ES_FN float source_pixel(float x, int64_t size, Padding padding, bool corners) {
  x = to_pixels(x, size, corners);
  if (padding == Padding::zeros) return x;
  if (padding == Padding::reflection) x = corners ? reflect_pixel(x, 0, 2 * (size - 1)) : reflect_pixel(x, -1, 2 * size - 1);
  return clip_pixel(x, size);
}

// Round to the nearest integer, of two the even one.
ES_FN int32_t nearest_pixel(float x) {
  int32_t below = floor_pixel(x);
  if (below == kFar) return kFar;
  float rest = x - (float)below;
  return below + (rest > 0.5f || (rest == 0.5f && (below & 1)));
}

// `at(row, column)` is the picture, and +0 outside of it. Four products, added from the upper left to the lower right.
template <class At>
ES_FN float bilinear(float x, float y, At at) {
  int32_t left = floor_pixel(x), top = floor_pixel(y);
  if (left == kFar || top == kFar) return 0.0f;
  float right_share = x - (float)left, left_share = (float)(left + 1) - x;
  float bottom_share = y - (float)top, top_share = (float)(top + 1) - y;
  float sum = at(top, left) * (left_share * top_share) + at(top, left + 1) * (right_share * top_share);
  sum = sum + at(top + 1, left) * (left_share * bottom_share);
  return sum + at(top + 1, left + 1) * (right_share * bottom_share);
}

}
ES_NAMESPACE_END
