// What TensorFlow is told about the operations: inputs, outputs, attributes, shapes.
#ifndef SIRTAKI_TENSORFLOW_OP_DEFINITIONS_H_
#define SIRTAKI_TENSORFLOW_OP_DEFINITIONS_H_

#include <string>

namespace sirtaki::tensorflow {

inline constexpr char kAllreduceOp[] = "SirtakiAllreduce";
inline constexpr char kGroupedAllreduceOp[] = "SirtakiGroupedAllreduce";
inline constexpr char kAllgatherOp[] = "SirtakiAllgather";
inline constexpr char kBroadcastOp[] = "SirtakiBroadcast";
inline constexpr char kAlltoallOp[] = "SirtakiAlltoall";
inline constexpr char kReducescatterOp[] = "SirtakiReducescatter";
inline constexpr char kBarrierOp[] = "SirtakiBarrier";
inline constexpr char kJoinOp[] = "SirtakiJoin";
inline constexpr char kPositionOp[] = "SirtakiPosition";

// Returns an empty text, or TensorFlow's reason for refusing a definition.
std::string register_op_definitions();

}  // namespace sirtaki::tensorflow

#endif  // SIRTAKI_TENSORFLOW_OP_DEFINITIONS_H_
