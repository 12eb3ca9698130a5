// The kernels compiled into this library. registry.cpp sees the generated maps; nothing else does.
#pragma once

#include <memory>
#include <string>

#include "host/from_fields.h"
#include "host/kernel.h"

namespace flashsmith {

// The kernel that the generated maps have for a configuration, the struct called `type`, and a
// variant, or null where they have none. `name` is for what the kernel says of calls: the fields
// alone decide which one it is.
//
// Throws ValueError for a struct of no family, and for fields that are none of the struct.
std::unique_ptr<Kernel> find_kernel(const std::string &name, const std::string &type, Fields config,
                                    Fields variant);

}  // namespace flashsmith
