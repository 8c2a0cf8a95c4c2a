// The data plane of one rank: the algorithms that move a batch, over the slots of its host and over MPI.
#ifndef SIRTAKI_DATA_PLANE_H_
#define SIRTAKI_DATA_PLANE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "adasum.h"
#include "allreduce.h"
#include "alltoall.h"
#include "block_exchange.h"
#include "mpi_exchange.h"
#include "reduce_scatter.h"
#include "segment.h"
#include "stage.h"

namespace sirtaki {

struct DataPlane {
  // `mpi_table` may be null in a job on one host.
  DataPlane(Segment* segment, int64_t spin_ns, const LongWait* long_wait, const MpiTable* mpi_table)
      : stages(segment, spin_ns, long_wait),
        mpi(mpi_table == nullptr ? nullptr
                                 : std::make_unique<MpiExchange>(*mpi_table, segment, spin_ns, long_wait)),
        allreduce(segment->shape().slot_bytes, &stages, mpi.get()),
        reduce_scatter(segment->shape().slot_bytes, &stages, mpi.get()),
        blocks(segment->shape().slot_bytes, &stages, mpi.get()),
        alltoall(segment->shape().slot_bytes, &stages, mpi.get()),
        adasum(&alltoall, &allreduce, &blocks) {}
  DataPlane(const DataPlane&) = delete;
  DataPlane& operator=(const DataPlane&) = delete;

  StageBoard stages;
  std::unique_ptr<MpiExchange> mpi;
  Allreduce allreduce;
  ReduceScatter reduce_scatter;
  BlockExchange blocks;
  Alltoall alltoall;
  Adasum adasum;
};

}  // namespace sirtaki

#endif  // SIRTAKI_DATA_PLANE_H_
