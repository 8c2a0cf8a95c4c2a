// Adasum: adds gradients so that what they agree on is not counted twice.
//
// Two vectors a and b become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b: the sum if they are orthogonal, the
// mean if they are equal (Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020). More
// than two are added in a tree by position in the set: (0, 1), (2, 3), ..., then the results likewise,
// whoever has no partner going on alone. So any number of ranks works, and the order does not depend on
// hosts.
//
// Member i gets slice i of everybody's tensor (alltoall), adds up the tree on its slice, where the dot
// products of each level are made whole by an allreduce of a few numbers, and gives its slice of the result
// to all (allgather). Each byte travels as in an allreduce; there is one more small exchange per level.
// 16-bit floats are widened to 32 bits meanwhile, dot products add up in 64.
#ifndef SIRTAKI_ADASUM_H_
#define SIRTAKI_ADASUM_H_

#include <cstdint>
#include <vector>

#include "allreduce.h"
#include "alltoall.h"
#include "block_exchange.h"
#include "kernels.h"
#include "stage.h"
#include "topology.h"

namespace sirtaki {

class Adasum {
 public:
  Adasum(Alltoall* alltoall, Allreduce* allreduce, BlockExchange* blocks)
      : alltoall_(alltoall), allreduce_(allreduce), blocks_(blocks) {}

  // Adds one tensor. `sum` are the kernels of the type's Sum, `doubles` those of the Sum of float64. False:
  // the job has failed, and the output is undefined.
  bool run(Tickets* tickets, const SetLayout& layout, const Kernels& sum, const Kernels& doubles,
           const Scaling& scaling, const Piece& tensor);

 private:
  bool add_tree(Tickets* tickets, const SetLayout& layout, const Kernels& doubles, size_t partial_bytes,
                size_t num_elements);

  Alltoall* alltoall_;
  Allreduce* allreduce_;
  BlockExchange* blocks_;
  std::vector<char> slices_;   // of all members, as elements
  std::vector<char> widened_;  // the same, as partials
};

}  // namespace sirtaki

#endif  // SIRTAKI_ADASUM_H_
