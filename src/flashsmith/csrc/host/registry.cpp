#include "host/registry.h"

#include <iterator>

#include "flash_kernels.cuh"  // generated, in the library's build directory

namespace flashsmith {
namespace {

// The handle of a map's kernel, where `before` kernels come before the map's.
template <typename Map>
std::optional<int64_t> find_in(const Map &map, const typename Map::key_type &config,
                               size_t before) {
  const auto found = map.find(config);
  if (found == map.end()) return std::nullopt;
  return static_cast<int64_t>(before) + std::distance(map.begin(), found);
}

}  // namespace

std::optional<int64_t> find_kernel(const FlashForwardKernelConfig &config, ForwardVariant variant) {
  size_t before = 0;
  if (!variant.causal) return find_in(forward_kernels, config, before);
  before += forward_kernels.size();
  return find_in(forward_kernels_causal, config, before);
}

std::optional<int64_t> find_kernel(const Sm90ForwardKernelConfig &config, ForwardVariant variant) {
  size_t before = forward_kernels.size() + forward_kernels_causal.size();
  if (!variant.causal) return find_in(sm90_forward_kernels, config, before);
  before += sm90_forward_kernels.size();
  return find_in(sm90_forward_kernels_causal, config, before);
}

const std::vector<RegisteredKernel> &registered_kernels() {
  static const std::vector<RegisteredKernel> kernels = [] {
    std::vector<RegisteredKernel> all;
    const auto add = [&](const auto &map, bool causal) {
      for (const auto &[config, function] : map) {
        all.push_back({FamilyKernel{config, function}, ForwardVariant{.causal = causal}});
      }
    };
    add(forward_kernels, false);
    add(forward_kernels_causal, true);
    add(sm90_forward_kernels, false);
    add(sm90_forward_kernels_causal, true);
    return all;
  }();
  return kernels;
}

}  // namespace flashsmith
