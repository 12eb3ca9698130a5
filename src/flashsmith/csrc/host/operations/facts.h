// The facts of a plan for Python.
#pragma once

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>

#include "host/plan.h"

namespace flashsmith {

using Facts = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>;

// Returns the launches and the workspace of a plan.
Facts facts_of(const Plan &plan);

}  // namespace flashsmith
