// The C ABI between the engine (inside sirtaki._native) and a framework's op library.
//
// An op library is a shared object of its own: it knows TensorFlow and not Python, the engine knows
// neither. They meet here and nowhere else. The op library gets the address of one `sirtaki_engine_api`
// (from `sirtaki._native.engine_api_address()`), valid as long as the process lives; calls made while
// no engine is initialised end in `done` with SIRTAKI_NOT_INITIALIZED.
//
// Guarantees of `submit`:
//   * It never blocks on a peer and never takes Python's GIL.
//   * `done` is called exactly once, possibly before `submit` returns, on any thread, with no engine
//     lock held.
//   * Everything that the request points to, except the tensors' buffers and `context`, may be freed as
//     soon as `submit` returns. Buffers must stay valid until `done`.
#ifndef SIRTAKI_ENGINE_ABI_H_
#define SIRTAKI_ENGINE_ABI_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIRTAKI_ABI_VERSION 3

typedef enum sirtaki_kind {
  SIRTAKI_ALLREDUCE = 0,
  SIRTAKI_ALLGATHER = 1,
  SIRTAKI_BROADCAST = 2,
  SIRTAKI_BARRIER = 3,
  SIRTAKI_ALLTOALL = 4,
  SIRTAKI_REDUCESCATTER = 5,
  SIRTAKI_JOIN = 6,
  SIRTAKI_ADD_PROCESS_SET = 7,     // by all ranks of the job
  SIRTAKI_REMOVE_PROCESS_SET = 8,  // by all ranks of the job
} sirtaki_kind;

// Horovod's numbers.
typedef enum sirtaki_reduce_op {
  SIRTAKI_AVERAGE = 0,
  SIRTAKI_SUM = 1,
  SIRTAKI_ADASUM = 2,
  SIRTAKI_MIN = 3,
  SIRTAKI_MAX = 4,
  SIRTAKI_PRODUCT = 5,
} sirtaki_reduce_op;

typedef enum sirtaki_dtype {
  SIRTAKI_BOOL = 0,
  SIRTAKI_UINT8 = 1,
  SIRTAKI_INT8 = 2,
  SIRTAKI_UINT16 = 3,
  SIRTAKI_INT16 = 4,
  SIRTAKI_UINT32 = 5,
  SIRTAKI_INT32 = 6,
  SIRTAKI_UINT64 = 7,
  SIRTAKI_INT64 = 8,
  SIRTAKI_FLOAT16 = 9,
  SIRTAKI_BFLOAT16 = 10,
  SIRTAKI_FLOAT32 = 11,
  SIRTAKI_FLOAT64 = 12,
  SIRTAKI_COMPLEX64 = 13,
  SIRTAKI_COMPLEX128 = 14,
} sirtaki_dtype;

typedef enum sirtaki_error {
  SIRTAKI_OK = 0,
  SIRTAKI_INVALID_ARGUMENT = 1,  // wrong on the caller's side, nothing was sent
  SIRTAKI_MISMATCH = 2,          // ranks disagree about shape, type, operation, root, ...
  SIRTAKI_RANKS_FAILED = 3,      // a rank died or announced an uncaught exception
  SIRTAKI_RANK_LEFT = 4,         // a rank that is needed has shut down normally
  SIRTAKI_DUPLICATE_NAME = 5,    // the name is already in flight in this process
  SIRTAKI_NOT_INITIALIZED = 6,   // no engine: init() was not called, or shutdown() was
  SIRTAKI_OUT_OF_MEMORY = 7,     // an output could not be allocated
  SIRTAKI_INTERNAL = 8,          // a broken invariant of the engine: a defect to report
  SIRTAKI_STALLED = 9,           // tensors have waited too long for ranks that do not submit them
  SIRTAKI_UNRESPONSIVE = 10,     // a rank that lives gives no sign of life: stopped, or its host hangs
  SIRTAKI_RANK_JOINED = 11,      // a rank that is needed has called join and gives nothing any more
} sirtaki_error;

typedef struct sirtaki_tensor {
  const void* input;  // contiguous, row-major; may be NULL for zero elements or a broadcast's non-root
  // Same size as the input, may be the same buffer. Reducescatter: this rank's share of the rows, see below.
  // NULL for an allgather or alltoall, whose results have sizes that only the engine learns.
  void* output;
  const int64_t* dims;  // this rank's shape; for an allgather or alltoall dims[0] may differ between ranks
  int32_t num_dims;
} sirtaki_tensor;

// One request: a group of tensors of one type that are ready, and travel, together.
//
// A reducescatter gives each member of the set, in rank order, a share of the rows: all rows divided by the
// number of members, and one row more for the first members if that leaves a remainder.
typedef struct sirtaki_request {
  int32_t kind;         // sirtaki_kind
  int32_t reduce_op;    // sirtaki_reduce_op, for an allreduce or reducescatter
  int32_t dtype;        // sirtaki_dtype
  int32_t root_rank;    // global rank, for a broadcast
  int32_t process_set;  // 0: all ranks
  int32_t num_tensors;  // alltoall: exactly 1; barrier, join and those about process sets: 0
  double prescale_factor;
  double postscale_factor;
  const char* name;  // UTF-8; NULL: the next unnamed call of this process in the set
  const sirtaki_tensor* tensors;
  // Alltoall: rows of the input for each member, in rank order. Add process set: the members, ascending.
  // Remove process set: its number.
  const int64_t* values;
  int32_t num_values;
  void* context;
  // Allgather and alltoall only: returns a buffer for the result of tensor number `tensor`, whose first
  // dimension is the sum of rows[0 .. num_members): what each member has given. NULL if there is no memory.
  // Called at most once per tensor, before `done`, on any thread.
  void* (*allocate_output)(void* context, int32_t tensor, const int64_t* rows, int32_t num_members);
  // Join: the rank that joined last. Add process set: the number of the new set. Called before `done`.
  void (*set_result)(void* context, int64_t value);
  // error: sirtaki_error; message: UTF-8, NULL if SIRTAKI_OK, valid during the call.
  void (*done)(void* context, int32_t error, const char* message);
} sirtaki_request;

// Where this process stands.
typedef struct sirtaki_position {
  int32_t rank;     // its index in the process set, -1 if it is not in it
  int32_t size;     // of the process set
  int32_t my_rank;  // in the whole job, also below
  int32_t num_ranks;
  int32_t local_rank;
  int32_t local_size;
} sirtaki_position;

typedef struct sirtaki_engine_api {
  uint32_t abi_version;
  void (*submit)(const sirtaki_request* request);
  // Returns a sirtaki_error: SIRTAKI_NOT_INITIALIZED, or SIRTAKI_INVALID_ARGUMENT if there is no such set.
  int32_t (*locate)(int32_t process_set, sirtaki_position* position);
} sirtaki_engine_api;

#ifdef __cplusplus
}
#endif

#endif  // SIRTAKI_ENGINE_ABI_H_
