// The sums of wgmma's e4m3 products: an addend keeps no bit more than 13 places behind the leading
// bit of the largest addend, and the sum keeps none more than 13 places behind its own.
#include <cmath>
#include <iostream>
#include <vector>

#include "cases.h"
#include "emulator/matrix_operand.h"

namespace cases {

namespace {

using namespace flashsmith::emulator;

// Returns c plus the products, all of them in row 0 and column 0 of a product with n = 8.
float sum(float c, const std::vector<float> &products) {
  constexpr int kN = 8;
  std::vector<float> all_c(kWgmmaM * kN), a(kWgmmaMaxK * kWgmmaM), b(kWgmmaMaxK * kN, 1.f);
  all_c[0] = c;
  for (size_t k = 0; k < products.size(); ++k) a[k * kWgmmaM] = products[k];
  multiply_add_e4m3(all_c.data(), a.data(), b.data(), kN);
  return all_c[0];
}

std::vector<float> large_and_one(float large, float other) {
  std::vector<float> products(kWgmmaMaxK, large);
  products[3] = other;
  return products;
}

}  // namespace

void sm90_rough_sums() {
  std::cout << "{\"kept\": [" << sum(0, {8192, 1, -1, 3}) << ", " << sum(16383, {1}) << ", "
            << sum(-0.25f, {0.5f, 0.125f}) << "], \"lost\": [" << sum(0, {8192, 0.75f, 0.75f})
            << ", " << sum(1.5f, {8192}) << ", " << sum(-1.5f, {8192}) << ", "
            << sum(16384, {1, 1, 1, 1}) << ", " << sum(1 + 0x1p-20f, {}) << ", "
            << sum(0, large_and_one(240, 0x1p-5f)) << "], \"not finite\": ["
            << std::isnan(sum(0, {NAN, 1})) << ", " << std::isinf(sum(INFINITY, {1})) << ", "
            << std::isnan(sum(INFINITY, {1, -INFINITY})) << "]}\n";
}

}  // namespace cases
