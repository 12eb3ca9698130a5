// The loads from shared memory of a warp that may not have been performed yet.
#pragma once

#include <cstdint>
#include <vector>

namespace flashsmith::emulator {

// A load is issued, and performed later: it has certainly been performed only when an instruction
// has used its registers, or after a proxy fence of every lane. Registers are identified by their
// address in lane 0.
class LoadsInFlight {
 public:
  void start() { loads_.clear(); }

  void issue(const void *registers, unsigned bytes, uint32_t epoch) {
    // If registers are loaded again before they were used, the earlier load is in flight as well.
    for (Load &load : loads_) {
      if (load.registers == registers) {
        load.unfenced = kAllLanes;
        return;
      }
    }
    loads_.push_back({static_cast<const char *>(registers), bytes, epoch, kAllLanes});
  }

  // Marks the load of the register at this address as performed, with all other registers of the
  // load, because an instruction uses it.
  void use(const void *address) {
    const auto *byte = static_cast<const char *>(address);
    std::erase_if(loads_, [byte](const Load &load) {
      return byte >= load.registers && byte < load.registers + load.bytes;
    });
  }

  void fence(unsigned lane) {
    std::erase_if(loads_, [lane](Load &load) { return (load.unfenced &= ~(1u << lane)) == 0; });
  }

  // Returns the last epoch whose loads have all been performed; `now` if none is in flight.
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
    uint32_t unfenced;  // lanes without a fence
  };
  std::vector<Load> loads_;
};

}  // namespace flashsmith::emulator
