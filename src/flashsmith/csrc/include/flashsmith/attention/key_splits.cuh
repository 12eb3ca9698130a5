// Which keys of which requests a thread block visits.
//
// A work tile is B_r rows of Q of one head of the cache. Its keys are visited in rounds, of so many
// as the teams of a block have side by side. All rounds of all work tiles are one line,
// request by request, which is cut into equal parts, one a block: of the work tiles in a part at
// most the first and the last are split. Or each work tile is split into a given number of parts,
// so that the result of a request does not depend on the others.
#pragma once

#include <type_traits>

#include "flashsmith/attention/decode_sequence.cuh"
#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/tile_table.cuh"

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
  static constexpr int kCharge = 1;  // what a work tile costs beside its rounds
  // A block has so many rounds at least; more, up to a bound, where many blocks would share a work
  // tile: one of them adds up what all have summed.
  static constexpr int kFewestRounds = 2 * Traits::row_warps, kManySplits = 64;
  static constexpr int kFewestRoundsOfMany = 16 * Traits::row_warps;

  const DecodeProblem &problem_;
  const int Q_blocks_, tiles_of_request_;
  int at_, end_;  // on the line; or the next part of all, and how many there are
  int part_ = 0;  // of the line, a block's
  int request_ = 0, request_begin_ = 0, rounds_ = 0;  // at_ is in this request

 public:
  explicit FLASHSMITH_DEVICE KeySplits(const DecodeProblem &problem)
      : problem_(problem),
        Q_blocks_((problem.seq_len_q * (problem.n_heads / problem.n_heads_kv) + Traits::B_r - 1) /
                  Traits::B_r),
        tiles_of_request_(Q_blocks_ * problem.n_heads_kv) {
    if (problem_.split.splits > 0) {
      at_ = ptx::block_index_x();
      end_ = problem_.batch * tiles_of_request_ * problem_.split.splits;
      return;
    }
    const int total = cost_of_all(), blocks = ptx::grid_size_x();
    const int tiles = tiles_of_request_ * problem_.batch;
    int fewest = total / tiles / kManySplits;
    fewest = fewest < kFewestRoundsOfMany ? fewest : kFewestRoundsOfMany;
    fewest = fewest > kFewestRounds ? fewest : kFewestRounds;
    part_ = (total + blocks - 1) / blocks;
    part_ = part_ > fewest ? part_ : fewest;
    const int begin = ptx::block_index_x() * part_, end = begin + part_;
    at_ = begin;
    end_ = end < total ? end : total;
    if (at_ < end_) find_request();
  }

  // Whether there is one more.
  FLASHSMITH_DEVICE bool next(KeySplit &split) {
    return problem_.split.splits > 0 ? next_of_given(split) : next_of_line(split);
  }

 private:
  FLASHSMITH_DEVICE int rounds_of(int request) const {
    const typename Traits::Sequence sequence(problem_, request);
    const auto keys = KeySpan::template of<Traits>(problem_, sequence);
    const int rounds = (keys.end - keys.begin + kRoundKeys - 1) / kRoundKeys;
    return rounds > 1 ? rounds : 1;  // so that every work tile is alike
  }
  FLASHSMITH_DEVICE int cost(int rounds) const { return rounds + kCharge; }
  FLASHSMITH_DEVICE int cost_of_request(int request) const {
    return request < problem_.batch ? cost(rounds_of(request)) * tiles_of_request_ : 0;
  }

  FLASHSMITH_DEVICE int cost_of_all() const {
    int sum = 0;
    for (int first = 0; first < problem_.batch; first += kWarpSize) {
      sum += sum_of_warp(cost_of_request(first + ptx::thread_index() % kWarpSize));
    }
    return sum;
  }

  // That of at_.
  FLASHSMITH_DEVICE void find_request() {
    const int lane = ptx::thread_index() % kWarpSize;
    int begin = 0;
    for (int first = 0; first < problem_.batch; first += kWarpSize) {
      int total;
      const int own = cost_of_request(first + lane);
      const int own_begin = begin + sum_before(own, lane, total);
      if (begin + total > at_) {
        const bool here = own_begin <= at_ && at_ < own_begin + own;
        request_ = sum_of_warp(here ? first + lane : 0);
        request_begin_ = sum_of_warp(here ? own_begin : 0);
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
      const int tile = (at_ - request_begin_) / cost(rounds_);
      const int first = request_begin_ + tile * cost(rounds_) + kCharge, last = first + rounds_;
      const int begin = at_ > first ? at_ : first, end = end_ < last ? end_ : last;
      at_ = end;
      if (begin >= end) continue;  // the charge alone
      const int first_block = first / part_;
      split = split_of(request_, tile);
      split.begin = begin - first;
      split.end = end - first;
      split.index = ptx::block_index_x() - first_block;
      split.count = (last - 1) / part_ - first_block + 1;
      // A block has at most one that began before it, and one that goes on behind it.
      split.first_slot = 2 * first_block + 1;
      split.rest = 2 * first_block;
      split.stride = 2;
      return true;
    }
    return false;
  }

  FLASHSMITH_DEVICE bool next_of_given(KeySplit &split) {
    const int splits = problem_.split.splits;
    while (at_ < end_) {
      const int tile = at_ / splits, index = at_ - tile * splits,
                request = tile / tiles_of_request_;
      at_ += ptx::grid_size_x();
      const int rounds = rounds_of(request), each = (rounds + splits - 1) / splits;
      const int begin = index * each, end = begin + each < rounds ? begin + each : rounds;
      if (begin >= end) continue;
      split = split_of(request, tile - request * tiles_of_request_);
      split.begin = begin;
      split.end = end;
      split.index = index;
      split.count = (rounds + each - 1) / each;
      split.first_slot = split.rest = tile * splits;
      split.stride = 1;
      return true;
    }
    return false;
  }

  FLASHSMITH_DEVICE KeySplit split_of(int request, int tile) const {
    KeySplit split{};
    split.batch = request;
    split.head = tile / Q_blocks_;
    split.Q_block = tile - split.head * Q_blocks_;
    split.tile = request * tiles_of_request_ + tile;
    return split;
  }
};

}  // namespace flashsmith
