// The key of the calls that one kernel serves.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace flashsmith {

// Returns the size that represents all sizes like `n` when a kernel is chosen: n, rounded up to
// four significant bits (flashsmith.problem.size_class).
inline int64_t size_class(int64_t n) {
  constexpr int kSignificantBits = 4;
  if (n <= int64_t{1} << kSignificantBits) return n;
  const int64_t step = int64_t{1} << (std::bit_width(static_cast<uint64_t>(n)) - kSignificantBits);
  return (n + step - 1) / step * step;
}

// Words in an order that each operation defines. Two calls with the same words have the same
// kernel.
class CallKey {
  static constexpr size_t kMaxWords = 16;
  std::array<uint64_t, kMaxWords> words_{};
  size_t size_ = 0;
  uint64_t hash_ = 0xcbf29ce484222325;  // FNV-1a, by words

 public:
  void add(int64_t word) {
    words_[size_++] = static_cast<uint64_t>(word);
    hash_ = (hash_ ^ static_cast<uint64_t>(word)) * 0x100000001b3;
    hash_ ^= hash_ >> 29;
  }
  // Adds two numbers of 32 bits each.
  void add(int64_t high, int64_t low) { add(high << 32 ^ low); }

  bool operator==(const CallKey &other) const {
    return hash_ == other.hash_ && size_ == other.size_ && words_ == other.words_;
  }
  size_t hash() const { return hash_; }
};

}  // namespace flashsmith
