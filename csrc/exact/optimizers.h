// One step of an optimizer for one element. The fused optimizers are defined as what PyTorch's loops of single operators
// compute, rounded to the parameter's type after each of them.
#pragma once

#include "functions.h"
#include "half.h"

ES_NAMESPACE {

// To the precision of T and back.
template <class T>
ES_FN float as(float x) {
  return widen(narrow<T>(x));
}

// base^exponent for exponent >= 0, by squaring, from the lowest bit. Of doubles.
ES_FN double integer_power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = result * base;
    base = base * base;
  }
  return result;
}

// What all of them begin with: the gradient (unscaled before, in its place), turned, and with the parameter's weight decay.
struct Gradient {
  float scale;         // it is divided by this; 1: it is not
  bool maximize;
  float weight_decay;  // 0: none
};
template <class T>
ES_FN float prepared(const Gradient& g, float grad, float param) {
  grad = grad * (g.maximize ? -1.0f : 1.0f);
  return g.weight_decay != 0 ? as<T>(fma(g.weight_decay, param, grad)) : grad;
}

struct Adam {
  Gradient gradient;
  float shrink;         // of the parameter, before anything else (AdamW); 1: none
  float beta1_rest;     // 1 - beta1
  float beta2, beta2_rest;
  float root;           // sqrt(1 - beta2^step)
  float eps, step_size; // step_size = -lr / (1 - beta1^step)
  bool amsgrad;
};
template <class T>
ES_FN void adam(const Adam& a, float grad, float& param, float& mean, float& square, float& largest) {
  param = as<T>(param * a.shrink);
  grad = prepared<T>(a.gradient, grad, param);
  bool near = absolute(a.beta1_rest) < 0.5f;  // as `lerp`
  mean = as<T>(fma(near ? a.beta1_rest : a.beta1_rest - 1.0f, grad - mean, near ? mean : grad));
  square = as<T>(fma(a.beta2_rest * grad, grad, as<T>(square * a.beta2)));
  float of = square;
  if (a.amsgrad) {
    largest = maximum(largest, square);
    of = largest;
  }
  float root = as<T>(divide(as<T>(square_root(of)), a.root));
  param = as<T>(param + divide(a.step_size * mean, as<T>(root + as<T>(a.eps))));
}

struct Sgd {
  Gradient gradient;
  float momentum;       // 0: no buffer
  float rest;           // 1 - dampening
  float step_size;      // -lr
  bool nesterov, first; // first: the buffer becomes the gradient
};
template <class T>
ES_FN void sgd(const Sgd& s, float grad, float& param, float& buffer) {
  grad = prepared<T>(s.gradient, grad, param);
  if (s.momentum != 0) {
    float moved = as<T>(fma(s.rest, grad, as<T>(buffer * s.momentum)));
    buffer = s.first ? grad : moved;
    grad = s.nesterov ? as<T>(fma(s.momentum, buffer, grad)) : buffer;
  }
  param = as<T>(fma(s.step_size, grad, param));
}

struct Adagrad {
  Gradient gradient;
  float eps, step_size; // step_size = -lr / (1 + (step - 1) lr_decay)
};
template <class T>
ES_FN void adagrad(const Adagrad& a, float grad, float& param, float& sum) {
  grad = prepared<T>(a.gradient, grad, param);
  sum = as<T>(fma(grad, grad, sum));
  float root = as<T>(as<T>(square_root(sum)) + as<T>(a.eps));
  param = as<T>(param + divide(a.step_size * grad, root));
}

}
ES_NAMESPACE_END
