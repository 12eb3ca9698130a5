// Prints, as JSON, the order of the tiles: {"Q block", "head", "batch"} for each index. Arguments:
// Q blocks, heads, batch.
#include <cstdlib>
#include <iostream>

#include "flashsmith/attention/tile_order.cuh"

using namespace flashsmith;

namespace {

template <int kHeadsPerGroup, int kCluster, bool kPacked = false>
struct Order {
  using Sequence = DenseSequence;
  static constexpr int heads_per_group = kHeadsPerGroup, cluster_size = kCluster;
  static constexpr bool packed_heads = kPacked;
};

template <typename Traits>
void print(const char *name, const ProblemArgs &problem) {
  std::cout << "\"" << name << "\": [";
  for (int index = 0; index < n_tiles<Traits>(problem); index++) {
    const WorkTile tile = tile_at<Traits>(problem, index);
    std::cout << (index ? ", " : "") << "[" << tile.Q_block << ", " << tile.head << ", "
              << tile.batch << "]";
  }
  std::cout << "]";
}

}  // namespace

int main(int, char **arguments) {
  ProblemArgs problem{};
  problem.n_Q_blocks = std::atoi(arguments[1]);
  problem.n_heads = std::atoi(arguments[2]);
  problem.batch = std::atoi(arguments[3]);
  std::cout << "{";
  print<Order<0, 1>>("head by head", problem);
  std::cout << ", ";
  print<Order<2, 1>>("groups of 2", problem);
  std::cout << ", ";
  print<Order<2, 2>>("groups of 2, clusters", problem);
  std::cout << ", ";
  print<Order<16, 1>>("groups of 16", problem);
  std::cout << "}\n";
}
