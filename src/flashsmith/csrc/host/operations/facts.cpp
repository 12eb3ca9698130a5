#include "host/operations/facts.h"

#include <tvm/ffi/container/array.h>

namespace flashsmith {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Map;
using tvm::ffi::String;

Map<String, int64_t> facts_of(const Launch &launch) {
  return {{"grid_x", launch.grid.x},   {"grid_y", launch.grid.y},
          {"grid_z", launch.grid.z},   {"cluster", launch.cluster},
          {"threads", launch.threads}, {"shared_memory_bytes", launch.shared_memory_bytes}};
}

}  // namespace

Facts facts_of(const Plan &plan) {
  Array<Map<String, int64_t>> launches;
  for (const Launch &launch : plan.launches) launches.push_back(facts_of(launch));
  return {{"launches", launches},
          {"workspace_bytes", plan.workspace_bytes},
          {"zeroed_bytes", plan.zeroed_bytes},
          {"counter_bytes", plan.counter_bytes},
          {"n_parts", plan.n_parts}};
}

}  // namespace flashsmith
