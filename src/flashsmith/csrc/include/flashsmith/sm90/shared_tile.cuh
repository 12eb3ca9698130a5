// Tiles in shared memory: members of the structs by which traits lay it out, and where they have
// chunks.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::sm90 {

// A tile, as boxes of a tensor map. Swizzles repeat every 1024 bytes, where shared memory begins
// and, as tiles come first in a struct, each of them.
template <int kBytes>
struct SharedTile {
  static_assert(kBytes % 1024 == 0, "tiles are 1024-byte aligned");
  unsigned char bytes[kBytes];
};

// How the swizzle permutes the 16-byte chunks of a row of a box, by the bits of the address above a
// line of 128 bytes: number i is where i ^ this is.
template <int kRowBytes>
FLASHSMITH_DEVICE int chunk_permutation(int row) {
  return row * kRowBytes / 128 % (kRowBytes / 16);
}

// What some configurations lack: [[no_unique_address]] gives no memory to no elements.
template <typename T, int kCount>
struct Several {
  T elements[kCount];
};
template <typename T>
struct Several<T, 0> {};

}  // namespace flashsmith::sm90
