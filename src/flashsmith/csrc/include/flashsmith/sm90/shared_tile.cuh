// Members of the structs by which traits lay out shared memory.
#pragma once

namespace flashsmith::sm90 {

// A tile, as boxes of a tensor map. Swizzles repeat every 1024 bytes, where shared memory begins
// and, as tiles come first in a struct, each of them.
template <int kBytes>
struct SharedTile {
  static_assert(kBytes % 1024 == 0, "tiles are 1024-byte aligned");
  unsigned char bytes[kBytes];
};

// What some configurations lack: [[no_unique_address]] gives no memory to no elements.
template <typename T, int kCount>
struct Several {
  T elements[kCount];
};
template <typename T>
struct Several<T, 0> {};

}  // namespace flashsmith::sm90
