// Softmax, log-softmax and their gradients: a block has a row; where the axis is not the last, a thread has a column.
#include "../cpu/softmax.h"

#include "../exact/softmax.h"
#include "rows.h"

ES_NAMESPACE {

template <bool kLogarithms>
ES_KERNEL void ES_THREADS(kThreads) rows_kernel(SoftmaxForward job) {
  ES_SHARED(float, place, kTogether);
  for (int64_t row = blockIdx.x; row < job.outer; row += gridDim.x) {
    const float* x = job.in + row * job.length;
    const float most = largest_of_row(job.length, place, [&](int64_t i) { return x[i]; });
    float sum;
    sum_row<1>(job.length, place, [&](float* total, int64_t i) { *total = *total + exponential(x[i] - most); }, &sum);
    if (kLogarithms) sum = logarithm(sum);
    for (int64_t i = threadIdx.x; i < job.length; i += kThreads)
      job.out[row * job.length + i] = kLogarithms ? log_softmax(x[i], most, sum) : softmax(x[i], most, sum);
  }
}

template <bool kLogarithms>
ES_KERNEL void ES_THREADS(kThreads) columns_kernel(SoftmaxForward job) {
  ES_EACH(at, job.outer * job.inner) {
    const int64_t first = at / job.inner * job.length * job.inner + at % job.inner;
    auto x = [&](int64_t i) { return job.in[first + i * job.inner]; };
    const float most = largest(job.length, x);
    float sum;
    sum_alone<1>(job.length, [&](float* total, int64_t i) { *total = *total + exponential(x(i) - most); }, &sum);
    if (kLogarithms) sum = logarithm(sum);
    for (int64_t i = 0; i < job.length; ++i)
      job.out[first + i * job.inner] = kLogarithms ? log_softmax(x(i), most, sum) : softmax(x(i), most, sum);
  }
}

// Its sum is of the gradients, or of their products with the output.
template <bool kLogarithms>
static ES_FN void add_gradient(float* total, float gradient, float output) {
  *total = kLogarithms ? *total + gradient : fma(gradient, output, *total);
}
template <bool kLogarithms>
static ES_FN float gradient_of(float gradient, float output, float sum) {
  return kLogarithms ? log_softmax_gradient(gradient, output, sum) : softmax_gradient(gradient, output, sum);
}

template <bool kLogarithms>
ES_KERNEL void ES_THREADS(kThreads) gradient_rows_kernel(SoftmaxBackward job) {
  ES_SHARED(float, place, kTogether);
  for (int64_t row = blockIdx.x; row < job.outer; row += gridDim.x) {
    const float *g = job.gradient + row * job.length, *y = job.output + row * job.length;
    float sum;
    sum_row<1>(job.length, place, [&](float* total, int64_t i) { add_gradient<kLogarithms>(total, g[i], y[i]); }, &sum);
    for (int64_t i = threadIdx.x; i < job.length; i += kThreads)
      job.out[row * job.length + i] = gradient_of<kLogarithms>(g[i], y[i], sum);
  }
}

template <bool kLogarithms>
ES_KERNEL void ES_THREADS(kThreads) gradient_columns_kernel(SoftmaxBackward job) {
  ES_EACH(at, job.outer * job.inner) {
    const int64_t first = at / job.inner * job.length * job.inner + at % job.inner;
    const float *g = job.gradient + first, *y = job.output + first;
    const int64_t apart = job.inner;
    float sum;
    sum_alone<1>(
        job.length, [&](float* total, int64_t i) { add_gradient<kLogarithms>(total, g[i * apart], y[i * apart]); },
        &sum);
    for (int64_t i = 0; i < job.length; ++i)
      job.out[first + i * apart] = gradient_of<kLogarithms>(g[i * apart], y[i * apart], sum);
  }
}

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

// By rows where the axis is the last, else by columns.
template <auto rows, auto columns, class Job>
static void along(const Job& job) {
  if (job.outer * job.length * job.inner == 0) return;
  if (job.inner == 1)
    ES_LAUNCH(blocks_for(job.outer), kThreads, rows, job);
  else
    ES_LAUNCH(blocks_for_threads(job.outer * job.inner), kThreads, columns, job);
}

template <bool kLogarithms>
static void forward(const SoftmaxForward& job) {
  along<rows_kernel<kLogarithms>, columns_kernel<kLogarithms>>(job);
}

template <bool kLogarithms>
static void backward(const SoftmaxBackward& job) {
  along<gradient_rows_kernel<kLogarithms>, gradient_columns_kernel<kLogarithms>>(job);
}

static const Softmax kTable = {forward<false>, forward<true>, backward<false>, backward<true>};

}
ES_NAMESPACE_END

ES_TABLE_IS(Softmax, softmax_kernels, kTable)
#endif
