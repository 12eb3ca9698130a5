// What Python is told of a plan.
#pragma once

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>

#include "host/plan.h"

namespace flashsmith {

using Facts = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>;

// Its launches, and its workspace.
Facts facts_of(const Plan &plan);

}  // namespace flashsmith
