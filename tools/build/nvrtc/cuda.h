// The driver's tensor map, which kernels pass on without reading its content.
#pragma once
struct alignas(64) CUtensorMap {
  unsigned long long opaque[16];
};
