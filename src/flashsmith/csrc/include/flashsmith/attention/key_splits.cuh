// Which keys of which requests a thread block visits.
//
// A work tile is B_r rows of Q of one head of the cache. Its keys are visited in rounds, of so many
// as the teams of a block have side by side. There are two ways to share the rounds out.
//
// Each work tile is split into the same number of parts, which blocks take in turn: a given number,
// so that the result of a request does not depend on the others, or one that keeps all blocks busy.
// Or all rounds of all work tiles are one line, request by request, which is cut into equal parts,
// one a block: of the work tiles in a part at most the first and the last are split. A line is as
// even as can be whatever the lengths are, but its blocks leave off and begin within work tiles.
#pragma once

#include <type_traits>

#include "flashsmith/attention/decode_sequence.cuh"
#include "flashsmith/attention/mask.cuh"
#include "flashsmith/ptx/shuffle.cuh"

namespace flashsmith {

// The keys that any query of a request sees, from a multiple of B_c on.
struct KeySpan {
  int begin, end;

  template <typename Traits>
  static FLASHSMITH_DEVICE KeySpan of(const DecodeProblem &problem,
                                      const typename Traits::Sequence &sequence) {
    using Mask = typename Traits::Mask;
    const int begin = Mask::first(problem, sequence, 0) / Traits::B_c * Traits::B_c;
    const int last = Mask::last(problem, sequence, problem.seq_len_q - 1, sequence.seq_len_k() - 1);
    return {begin, last >= begin ? last + 1 : begin};
  }
};

// Rounds from `begin` to before `end` of a work tile.
struct KeySplit {
  int batch, head, Q_block;
  int tile;  // the work tile's number
  int begin, end;
  int index, count;              // among the splits of the work tile
  int first_slot, rest, stride;  // where they leave their sums

  FLASHSMITH_DEVICE int slot(int i) const { return i == 0 ? first_slot : rest + i * stride; }
};

// Of what is not negative. Divisors are mostly 1, which spares the division.
FLASHSMITH_DEVICE int quotient(int value, int divisor) {
  if (divisor == 1) return value;
  return static_cast<int>(static_cast<uint32_t>(value) / static_cast<uint32_t>(divisor));
}
FLASHSMITH_DEVICE int quotient_up(int value, int divisor) {
  return quotient(value + divisor - 1, divisor);
}

// The sum over the lanes before this one, and over all of them in `total`.
FLASHSMITH_DEVICE int sum_before(int value, int lane, int &total) {
  int before = 0;
  total = value;
  const auto add = [&](auto mask) {
    constexpr int kMask = decltype(mask)::value;
    const float other = ptx::shuffle_xor<kMask>(ptx::bits_float(static_cast<uint32_t>(total)));
    const int of_others = static_cast<int>(ptx::float_bits(other));
    if (lane & kMask) before += of_others;
    total += of_others;
  };
  add(std::integral_constant<int, 1>());
  add(std::integral_constant<int, 2>());
  add(std::integral_constant<int, 4>());
  add(std::integral_constant<int, 8>());
  add(std::integral_constant<int, 16>());
  return before;
}

// A block's splits, one after the other. All warps find the same.
template <typename Traits>
class KeySplits {
  static constexpr int kRoundKeys = Traits::B_c * Traits::n_teams;
  // In rounds: what a work tile costs beside its own, and what a part of a line does beside it.
  static constexpr int kCharge = 1, kChargeOfLine = 2;
  static constexpr int kAbout = 32;  // what share of a part does not count
  // A block has so many rounds at least; more, up to a bound, where many blocks would share a work
  // tile: one of them adds up what all have summed, more slowly the longer rows are.
  static constexpr bool kLong = Traits::d_head > 128;
  static constexpr int kFewestRounds = 2 * Traits::row_warps, kManySplits = kLong ? 12 : 32;
  static constexpr int kFewestRoundsOfMany = (kLong ? 32 : 16) * Traits::row_warps;
  // Lengths that are on their way to a lane at a time.
  static constexpr int kLengthsAtOnce = 4;

  const DecodeProblem &problem_;
  const int tiles_of_request_;
  int splits_;    // of every work tile; 0: the line is cut
  int at_, end_;  // on the line; or the next part of all, and how many there are
  int part_ = 0;  // of the line, a block's
  int request_ = 0, request_begin_ = 0, rounds_ = 0;  // at_ is in this request

 public:
  explicit FLASHSMITH_DEVICE KeySplits(const DecodeProblem &problem)
      : problem_(problem),
        tiles_of_request_(problem.Q_blocks * problem.n_heads_kv),
        splits_(problem.split.splits) {
    if (splits_ == 0) share_out();
    if (splits_ > 0) {
      at_ = ptx::block_index_x();
      end_ = tiles() * splits_;
    } else if (at_ < end_) {
      find_request();
    }
  }

  // Whether there is one more.
  FLASHSMITH_DEVICE bool next(KeySplit &split) {
    return splits_ > 0 ? next_of_parts(split) : next_of_line(split);
  }

 private:
  FLASHSMITH_DEVICE int rounds_of(int request) const {
    const typename Traits::Sequence sequence(problem_, request);
    const auto keys = KeySpan::template of<Traits>(problem_, sequence);
    const int rounds = (keys.end - keys.begin + kRoundKeys - 1) / kRoundKeys;
    return rounds > 1 ? rounds : 1;  // so that every work tile is alike
  }
  FLASHSMITH_DEVICE int cost(int rounds) const { return rounds + kCharge; }
  // Of one of its work tiles.
  FLASHSMITH_DEVICE int cost_of_request(int request) const {
    return request < problem_.batch ? cost(rounds_of(request)) : 0;
  }

  FLASHSMITH_DEVICE int tiles() const { return problem_.batch * tiles_of_request_; }

  // Looks at all lengths, and chooses between a number of splits and the line.
  FLASHSMITH_DEVICE void share_out() {
    int most = 0, sum = 0;  // of the work tiles of a head
    const auto look_at = [&](int request) {
      const int own = cost_of_request(request);
      most = most > own ? most : own;
      sum += own;
    };
    const int lane = ptx::thread_index() % kWarpSize;
    if (problem_.batch <= kWarpSize) {  // little code is soon there
      look_at(lane);
    } else {
      for (int first = lane; first < problem_.batch + lane; first += kLengthsAtOnce * kWarpSize) {
#pragma unroll
        for (int i = 0; i < kLengthsAtOnce; i++) look_at(first + i * kWarpSize);
      }
    }
    most = ptx::max_of_lanes(most) - kCharge;
    const int total = ptx::sum_of_lanes(sum) * tiles_of_request_;
    const int fewest = fewest_rounds(most);
    part_ = quotient_up(total, ptx::grid_size_x());
    part_ = part_ > fewest ? part_ : fewest;
    const int of_blocks = problem_.split.splits_of_blocks, of_rounds = quotient(most, fewest);
    splits_ = of_blocks < of_rounds ? of_blocks : of_rounds;
    splits_ = splits_ > 1 ? splits_ : 1;
    // What is about as fast is so with whole work tiles: their blocks begin and end together.
    const int whole = problem_.split.tiles_of_block * cost(quotient_up(most, splits_));
    if (whole <= part_ + part_ / kAbout + kChargeOfLine) return;
    splits_ = 0;
    const int begin = ptx::block_index_x() * part_, end = begin + part_;
    at_ = begin;
    end_ = end < total ? end : total;
  }

  // That a block has of a work tile that has so many.
  static FLASHSMITH_DEVICE int fewest_rounds(int rounds) {
    int fewest = rounds / kManySplits;
    fewest = fewest < kFewestRoundsOfMany ? fewest : kFewestRoundsOfMany;
    return fewest > kFewestRounds ? fewest : kFewestRounds;
  }

  // That of at_.
  FLASHSMITH_DEVICE void find_request() {
    const int lane = ptx::thread_index() % kWarpSize;
    int begin = 0;
    for (int first = 0; first < problem_.batch; first += kWarpSize) {
      int total;
      const int own = cost_of_request(first + lane) * tiles_of_request_;
      const int own_begin = begin + sum_before(own, lane, total);
      if (begin + total > at_) {
        const bool here = own_begin <= at_ && at_ < own_begin + own;
        request_ = ptx::sum_of_lanes(here ? first + lane : 0);
        request_begin_ = ptx::sum_of_lanes(here ? own_begin : 0);
        rounds_ = rounds_of(request_);
        return;
      }
      begin += total;
    }
  }

  FLASHSMITH_DEVICE bool next_of_line(KeySplit &split) {
    while (at_ < end_) {
      while (at_ >= request_begin_ + cost(rounds_) * tiles_of_request_) {
        request_begin_ += cost(rounds_) * tiles_of_request_;
        rounds_ = rounds_of(++request_);
      }
      const int tile = quotient(at_ - request_begin_, cost(rounds_));
      const int first = request_begin_ + tile * cost(rounds_) + kCharge, last = first + rounds_;
      const int begin = at_ > first ? at_ : first, end = end_ < last ? end_ : last;
      at_ = end;
      if (begin >= end) continue;  // the charge alone
      const int first_block = quotient(first, part_);
      split = split_of(request_, tile);
      split.begin = begin - first;
      split.end = end - first;
      split.index = ptx::block_index_x() - first_block;
      split.count = quotient(last - 1, part_) - first_block + 1;
      // A block has at most one that began before it, and one that goes on behind it.
      split.first_slot = 2 * first_block + 1;
      split.rest = 2 * first_block;
      split.stride = 2;
      return true;
    }
    return false;
  }

  FLASHSMITH_DEVICE bool next_of_parts(KeySplit &split) {
    while (at_ < end_) {
      const int tile = quotient(at_, splits_), index = at_ - tile * splits_;
      const int request = quotient(tile, tiles_of_request_);
      at_ += ptx::grid_size_x();
      const int rounds = rounds_of(request), each = quotient_up(rounds, splits_);
      const int begin = index * each, end = begin + each < rounds ? begin + each : rounds;
      if (begin >= end) continue;
      split = split_of(request, tile - request * tiles_of_request_);
      split.begin = begin;
      split.end = end;
      split.index = index;
      split.count = splits_ == 1 ? 1 : quotient_up(rounds, each);
      split.first_slot = split.rest = tile * splits_;
      split.stride = 1;
      return true;
    }
    return false;
  }

  FLASHSMITH_DEVICE KeySplit split_of(int request, int tile) const {
    KeySplit split{};
    split.batch = request;
    split.head = quotient(tile, problem_.Q_blocks);
    split.Q_block = tile - split.head * problem_.Q_blocks;
    split.tile = request * tiles_of_request_ + tile;
    return split;
  }
};

}  // namespace flashsmith
