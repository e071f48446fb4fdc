// Pools, nearest upsampling, padding's gradients and folding: a thread has an element. For a gradient it visits the
// outputs that see the element, in the order in which the CPU's loops come to them.
#include "../cpu/pool.h"

#include "each.h"

ES_NAMESPACE {

// An element of a volume (outer, size[0], size[1], size[2], inner).
struct Element3 {
  int64_t outer, at[3], inner;
  ES_FN Element3(int64_t number, const int64_t* size, int64_t last) {
    int64_t rest = quotient(number, last);
    inner = number - rest * last;
    for (int d = 2; d >= 0; --d) {
      outer = quotient(rest, size[d]);
      at[d] = rest - outer * size[d];
      rest = outer;
    }
  }
};

// Where a plane's elements lie.
struct Layout3 {
  int64_t size[3], inner;
  ES_FN int64_t volume() const { return size[0] * size[1] * size[2]; }
  ES_FN int64_t in_plane(int64_t d, int64_t h, int64_t w) const { return (d * size[1] + h) * size[2] + w; }
  ES_FN int64_t plane(const Element3& e) const { return e.outer * volume() * inner + e.inner; }
};
template <class Axis>
static ES_FN Layout3 inputs_of(const Axis* a, int64_t inner) {
  return {{a[0].in, a[1].in, a[2].in}, inner};
}
template <class Axis>
static ES_FN Layout3 outputs_of(const Axis* a, int64_t inner) {
  return {{a[0].out, a[1].out, a[2].out}, inner};
}

template <class Mean>
struct MeanForward {
  Planes p;
  Mean m;
  const float* in;
  float* out;
  ES_FN void operator()(int64_t number) const {
    const Layout3 from = inputs_of(m.axis, p.inner), to = outputs_of(m.axis, p.inner);
    const Element3 e(number, to.size, p.inner);
    const float* x = in + from.plane(e);
    out[number] =
        mean_of(m, e.at, [&](int64_t d, int64_t h, int64_t w) { return x[from.in_plane(d, h, w) * from.inner]; });
  }
};

template <class Mean>
struct MeanBackward {
  Planes p;
  Mean m;
  const float* grad;
  float* grad_in;
  ES_FN void operator()(int64_t number) const {
    const Layout3 from = outputs_of(m.axis, p.inner), to = inputs_of(m.axis, p.inner);
    const Element3 e(number, to.size, p.inner);
    const float* y = grad + from.plane(e);
    grad_in[number] =
        mean_gradient(m, e.at, [&](int64_t d, int64_t h, int64_t w) { return y[from.in_plane(d, h, w) * from.inner]; });
  }
};

template <class Axis>
struct Axes {
  Axis axis[3];
};

template <class Axis>
struct MaximumForward {
  Planes p;
  Axes<Axis> a;
  const float* in;
  float* out;
  int64_t* where;
  ES_FN void operator()(int64_t number) const {
    const Layout3 from = inputs_of(a.axis, p.inner), to = outputs_of(a.axis, p.inner);
    const Element3 e(number, to.size, p.inner);
    const float* x = in + from.plane(e);
    const Largest most = largest_of(
        a.axis, e.at, [&](int64_t d, int64_t h, int64_t w) { return x[from.in_plane(d, h, w) * from.inner]; });
    out[number] = most.value;
    where[number] = most.at;
  }
};

struct Clear {
  unsigned char* flags;
  ES_FN void operator()(int64_t i) const { flags[i] = 0; }
};

// Marks the planes of which an output points to what it does not see. Whoever writes writes the same.
template <class Axis>
struct MarkStrays {
  Planes p;
  Axes<Axis> a;
  const int64_t* where;
  unsigned char* strays;
  ES_FN void operator()(int64_t number) const {
    const Element3 e(number, outputs_of(a.axis, p.inner).size, p.inner);
    if (!sees_number(a.axis, e.at, where[number])) strays[e.outer * p.inner + e.inner] = 1;
  }
};

template <class Axis>
struct MaximumBackward {
  Planes p;
  Axes<Axis> a;
  const float* grad;
  const int64_t* where;
  const unsigned char* strays;
  float* grad_in;
  ES_FN void operator()(int64_t number) const {
    const Layout3 from = outputs_of(a.axis, p.inner), to = inputs_of(a.axis, p.inner);
    const Element3 e(number, to.size, p.inner);
    const float* y = grad + from.plane(e);
    const int64_t *at = where + from.plane(e), mine = to.in_plane(e.at[0], e.at[1], e.at[2]);
    float sum = 0;
    auto add = [&](int64_t output) {
      if (at[output * from.inner] == mine) sum = sum + y[output * from.inner];
    };
    if (strays[e.outer * p.inner + e.inner])
      for (int64_t output = 0; output < from.volume(); ++output) add(output);
    else
      visit_outputs(a.axis, e.at, [&](int64_t d, int64_t h, int64_t w) { add(from.in_plane(d, h, w)); });
    grad_in[number] = sum;
  }
};

template <class Word>
struct NearestForward {
  Planes p;
  Axes<Nearest> a;
  const Word* in;
  Word* out;
  ES_FN void operator()(int64_t number) const {
    const Layout3 from = inputs_of(a.axis, p.inner), to = outputs_of(a.axis, p.inner);
    const Element3 e(number, to.size, p.inner);
    const int64_t place =
        from.in_plane(a.axis[0].source(e.at[0]), a.axis[1].source(e.at[1]), a.axis[2].source(e.at[2]));
    out[number] = in[from.plane(e) + place * from.inner];
  }
};

struct FoldOf {
  Fold s;
  const float* columns;
  float* image;
  ES_FN void operator()(int64_t number) const {
    const Windows &down = s.axis[0], &right = s.axis[1];
    const int64_t size[3] = {1, down.in, right.in};
    const Element3 e(number, size, 1);
    image[number] = folded(s, e.at[1], e.at[2], [&](int64_t k, int64_t l, int64_t h, int64_t w) {
      const int64_t tap = (e.outer * down.kernel + k) * right.kernel + l;
      return columns[(tap * down.out + h) * right.out + w];
    });
  }
};

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

template <class Axis>
static int64_t outputs(const Planes& p, const Axis* axis) {
  return p.outer * outputs_of(axis, p.inner).volume() * p.inner;
}
template <class Axis>
static int64_t inputs(const Planes& p, const Axis* axis) {
  return p.outer * inputs_of(axis, p.inner).volume() * p.inner;
}

template <class Axis>
static Axes<Axis> axes(const Axis* axis) {
  return {{axis[0], axis[1], axis[2]}};
}

template <class Mean>
static void mean(const Planes& p, const Mean& m, const float* in, float* out) {
  for_each(outputs(p, m.axis), MeanForward<Mean>{p, m, in, out});
}

template <class Mean>
static void mean_backward(const Planes& p, const Mean& m, const float* grad, float* grad_in) {
  for_each(inputs(p, m.axis), MeanBackward<Mean>{p, m, grad, grad_in});
}

template <class Axis>
static void maximum(const Planes& p, const Axis* axis, const float* in, float* out, int64_t* where) {
  for_each(outputs(p, axis), MaximumForward<Axis>{p, axes(axis), in, out, where});
}

template <class Axis>
static void maximum_backward(const Planes& p, const Axis* axis, const float* grad, const int64_t* where,
                             float* grad_in) {
  const int64_t count = inputs(p, axis), planes = p.outer * p.inner;
  if (!count) return;
  Memory memory((size_t)planes);
  unsigned char* strays = memory.as<unsigned char>();
  for_each(planes, Clear{strays});
  for_each(outputs(p, axis), MarkStrays<Axis>{p, axes(axis), where, strays});
  for_each(count, MaximumBackward<Axis>{p, axes(axis), grad, where, strays, grad_in});
}

template <class Word>
static void copies(const Planes& p, const Nearest* axis, const void* in, void* out) {
  for_each(outputs(p, axis), NearestForward<Word>{p, axes(axis), (const Word*)in, (Word*)out});
}

static void nearest(const Planes& p, const Nearest* axis, int64_t bytes, const void* in, void* out) {
  if (bytes == 1) return copies<uint8_t>(p, axis, in, out);
  if (bytes == 2) return copies<uint16_t>(p, axis, in, out);
  if (bytes == 4) return copies<uint32_t>(p, axis, in, out);
  copies<uint64_t>(p, axis, in, out);
}

static void fold(const Fold& s, const float* columns, float* image) {
  for_each(s.planes * s.axis[0].in * s.axis[1].in, FoldOf{s, columns, image});
}

static const Pool kTable = {mean<WindowMean>,
                            mean_backward<WindowMean>,
                            mean<PartMean>,
                            mean_backward<PartMean>,
                            maximum<Windows>,
                            maximum_backward<Windows>,
                            maximum<Parts>,
                            maximum_backward<Parts>,
                            nearest,
                            mean_backward<Copies<Nearest>>,
                            mean_backward<Copies<Border>>,
                            fold};

}
ES_NAMESPACE_END

ES_TABLE_IS(Pool, pool_kernels, kTable)
#endif
