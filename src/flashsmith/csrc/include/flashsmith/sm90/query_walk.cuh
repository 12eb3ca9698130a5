// The walk of a consumer over the queries that see a tile of keys, and what depends on their head.
#pragma once

#include "flashsmith/sm90/key_tile.cuh"

namespace flashsmith::sm90 {

template <typename Traits>
struct QueryWalk {
  QueryVisit visit;
  typename Traits::Dropout dropout;

  FLASHSMITH_DEVICE QueryWalk(const ProblemArgs &problem, const KeyTile<Traits> &tile)
      : visit(tile.first_visit()), dropout(problem, {visit.head, tile.batch}) {}

  FLASHSMITH_DEVICE int row() const { return visit.block * Traits::B_r; }  // the first query

  FLASHSMITH_DEVICE void advance(const ProblemArgs &problem, const KeyTile<Traits> &tile) {
    const int head = visit.head;
    visit = tile.after(visit);
    if (visit.head == head) return;
    dropout = typename Traits::Dropout(problem, {visit.head, tile.batch});
  }
};

}  // namespace flashsmith::sm90
