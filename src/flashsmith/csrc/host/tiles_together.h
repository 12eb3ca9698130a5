// The tiles of a backward that start together, and fill the GPU.
#pragma once

#include <algorithm>
#include <cmath>

namespace flashsmith {

// Returns the number of tiles that fill the GPU if they start together.
inline int tiles_that_fill(int num_sms) {
  constexpr double kFull = 0.95;
  return static_cast<int>(std::ceil(kFull * num_sms));
}

// Returns the number of heads, at least `minimum`, that start together if the tiles of a head take
// different times: their tiles fill the GPU, and groups have the same size. With fewer heads, the
// longest tiles of the last group start too late to end with the others; with more, less of the
// data that they read and accumulate is in L2.
inline int heads_that_fill(int num_sms, int tiles_per_head, int n_heads, int minimum = 1) {
  const int tiles = std::max(tiles_per_head, 1),
            enough = (tiles_that_fill(num_sms) + tiles - 1) / tiles;
  int heads = std::min(std::max(enough, minimum), n_heads);
  while (heads < n_heads && n_heads % heads) heads++;
  return heads;
}

}  // namespace flashsmith
