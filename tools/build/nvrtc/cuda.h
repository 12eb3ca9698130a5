// The driver's tensor map, which kernels take and never look into.
#pragma once
struct alignas(64) CUtensorMap {
  unsigned long long opaque[16];
};
