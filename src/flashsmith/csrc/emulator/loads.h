// A warp's loads from shared memory that may not have read yet.
#pragma once

#include <cstdint>
#include <vector>

namespace flashsmith::emulator {

// A load is issued, and reads later: it has read for certain only when an instruction has taken its
// registers, or after a proxy fence of every lane. Registers are known by the address that lane 0
// has them at.
class LoadsInFlight {
 public:
  void start() { loads_.clear(); }

  void issue(const void *registers, unsigned bytes, uint32_t epoch) {
    // Registers that are loaded again before they were used: the earlier load is in flight as well.
    for (Load &load : loads_) {
      if (load.registers == registers) {
        load.unfenced = kAllLanes;
        return;
      }
    }
    loads_.push_back({static_cast<const char *>(registers), bytes, epoch, kAllLanes});
  }

  // An instruction takes the register at this address, which has arrived then with all others of
  // its load.
  void use(const void *address) {
    const auto *byte = static_cast<const char *>(address);
    std::erase_if(loads_, [byte](const Load &load) {
      return byte >= load.registers && byte < load.registers + load.bytes;
    });
  }

  void fence(unsigned lane) {
    std::erase_if(loads_, [lane](Load &load) { return (load.unfenced &= ~(1u << lane)) == 0; });
  }

  // The last epoch whose loads have all read; `now` if none is in flight.
  uint32_t arrived(uint32_t now) const {
    uint32_t last = now;
    for (const Load &load : loads_) last = load.epoch - 1 < last ? load.epoch - 1 : last;
    return last;
  }

 private:
  static constexpr uint32_t kAllLanes = ~0u;
  struct Load {
    const char *registers;
    unsigned bytes;
    uint32_t epoch;
    uint32_t unfenced;  // lanes
  };
  std::vector<Load> loads_;
};

}  // namespace flashsmith::emulator
