// Prints, as JSON, the order in which a persistent kernel of the sm90 family works on its tiles:
// {"Q block", "head", "batch"} for each index. Arguments: Q blocks, heads, batch.
#include <cstdlib>
#include <iostream>

#include "flashsmith/sm90/tile_order.cuh"

using namespace flashsmith;
using namespace flashsmith::sm90;

namespace {

template <int kHeadsPerGroup, int kCluster>
struct Order {
  struct {
    int heads_per_group;
  } static constexpr config = {kHeadsPerGroup};
  static constexpr int cluster_size = kCluster;
};

template <typename Traits>
void print(const char *name, const Sm90ForwardKernelArgs &args) {
  std::cout << "\"" << name << "\": [";
  for (int index = 0; index < n_tiles(args); index++) {
    const WorkTile tile = tile_at<Traits>(args, index);
    std::cout << (index ? ", " : "") << "[" << tile.Q_block << ", " << tile.head << ", "
              << tile.batch << "]";
  }
  std::cout << "]";
}

}  // namespace

int main(int, char **arguments) {
  Sm90ForwardKernelArgs args{};
  args.n_Q_blocks = std::atoi(arguments[1]);
  args.n_heads = std::atoi(arguments[2]);
  args.batch = std::atoi(arguments[3]);
  std::cout << "{";
  print<Order<0, 1>>("head by head", args);
  std::cout << ", ";
  print<Order<2, 1>>("groups of 2", args);
  std::cout << ", ";
  print<Order<2, 2>>("groups of 2, clusters", args);
  std::cout << ", ";
  print<Order<16, 1>>("groups of 16", args);
  std::cout << "}\n";
}
