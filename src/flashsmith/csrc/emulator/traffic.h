// The number of cycles and sectors that a warp-wide memory access takes.
#pragma once

#include <cstdint>
#include <span>

namespace flashsmith::emulator {

struct Wavefronts {
  unsigned actual = 0, ideal = 0;
};

// Counts wavefronts. Shared memory has 32 banks of 4 bytes; a bank serves one word a wavefront, to
// any number of lanes. The access is issued in phases of 128 bytes: 32 lanes of 4, 16 of 8 or 8 of
// 16 bytes.
Wavefronts shared_wavefronts(const uint32_t (&offsets)[32], unsigned bytes);

// Returns the number of distinct 32-byte sectors of the accesses of up to 32 lanes, aligned to at
// most 16 bytes.
unsigned global_sectors(std::span<const void *const> addresses);

}  // namespace flashsmith::emulator
