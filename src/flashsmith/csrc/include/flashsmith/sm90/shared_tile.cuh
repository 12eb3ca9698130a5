// Tiles in shared memory: members of the structs by which traits lay it out, and the places of
// their chunks.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::sm90 {

// A tile, as boxes of a tensor map. Swizzles repeat every 1024 bytes; shared memory begins at a
// multiple of that, and so does each tile, because tiles come first in a struct.
template <int kBytes>
struct SharedTile {
  static_assert(kBytes % 1024 == 0, "tiles are 1024-byte aligned");
  unsigned char bytes[kBytes];
};

// Returns the swizzle's permutation of the 16-byte chunks in a row of a box, from the bits of the
// address above a line of 128 bytes: chunk i is at i ^ permutation.
template <int kRowBytes>
FLASHSMITH_DEVICE int chunk_permutation(int row) {
  return row * kRowBytes / 128 % (kRowBytes / 16);
}

// Members that some configurations lack: [[no_unique_address]] gives no memory to zero elements.
template <typename T, int kCount>
struct Several {
  T elements[kCount];
};
template <typename T>
struct Several<T, 0> {};

}  // namespace flashsmith::sm90
