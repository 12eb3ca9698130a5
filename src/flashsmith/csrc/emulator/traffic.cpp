#include "emulator/traffic.h"

#include <algorithm>
#include <bit>

namespace flashsmith::emulator {

namespace {

constexpr unsigned kLanes = 32, kPhaseBytes = 128, kSectorBytes = 32;

// Returns the max number of distinct addresses in one group of banks. All are multiples of `bytes`,
// and a lane's `bytes` are one group, so the groups represent the banks.
unsigned conflict_degree(const uint32_t *offsets, unsigned lanes, unsigned bytes) {
  const int shift = std::countr_zero(bytes);
  uint32_t taken = 0;
  for (unsigned i = 0; i < lanes; ++i) taken |= 1u << (offsets[i] % kPhaseBytes >> shift);
  if (taken == ~0u >> (kLanes - lanes)) return 1;  // every lane has a group to itself
  unsigned worst = 0;
  for (unsigned i = 0; i < lanes; ++i) {
    unsigned earlier_in_group = 0;
    bool repeated = false;
    for (unsigned j = 0; j < i; ++j) {
      if (offsets[j] % kPhaseBytes != offsets[i] % kPhaseBytes) continue;
      bool first = true;  // of its address
      for (unsigned k = 0; k < j; ++k) first &= offsets[k] != offsets[j];
      repeated |= offsets[j] == offsets[i];
      earlier_in_group += first;
    }
    if (!repeated) worst = std::max(worst, earlier_in_group + 1);
  }
  return worst;
}

}  // namespace

Wavefronts shared_wavefronts(const uint32_t (&offsets)[kLanes], unsigned bytes) {
  const unsigned lanes = kPhaseBytes / bytes;
  Wavefronts total;
  for (unsigned first = 0; first < kLanes; first += lanes) {
    total.actual += conflict_degree(offsets + first, lanes, bytes);
    total.ideal += 1;
  }
  return total;
}

unsigned global_sectors(std::span<const void *const> addresses) {
  uintptr_t sectors[kLanes];
  unsigned count = 0;
  for (const void *address : addresses) {
    const uintptr_t sector = reinterpret_cast<uintptr_t>(address) / kSectorBytes;
    if (count == 0 || sectors[count - 1] != sector) sectors[count++] = sector;
  }
  std::sort(sectors, sectors + count);
  return static_cast<unsigned>(std::unique(sectors, sectors + count) - sectors);
}

}  // namespace flashsmith::emulator
