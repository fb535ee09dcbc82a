/* Every collective of the NCCL stand-in: types, reductions, odd sizes, in place and not, for two to four
   ranks, against a computation on the host. */
#include "integration/pytorch/nccl/number.h"
#include "tests/unit/nccl_ranks.h"

enum { SCALED = ncclNumOps, REDUCTIONS, GUARD = 64, MOST_ELEMENTS = 300007 };
static const char *const reductions[] = {"sum", "prod", "max", "min", "avg", "scaled sum"};
static const struct {
  const char *name;
  size_t bytes;
  bool is_signed;
} types[ncclNumTypes] = {{"int8", 1, true},     {"uint8", 1, false},      {"int32", 4, true},
                         {"uint32", 4, false},  {"int64", 8, true},       {"uint64", 8, false},
                         {"float16", 2, true},  {"float32", 4, true},     {"float64", 8, true},
                         {"bfloat16", 2, true}, {"float8_e4m3", 1, true}, {"float8_e5m2", 1, true}};

static bool is_integer(int type) {
  return type <= ncclUint64;
}

static struct number_format format_of(int type) {
  return type == ncclFloat16      ? NUMBER_FLOAT16
         : type == ncclBfloat16   ? NUMBER_BFLOAT16
         : type == ncclFloat8e4m3 ? NUMBER_FLOAT8_E4M3
                                  : NUMBER_FLOAT8_E5M2;
}

/* Numbers so small that every type has them, their sums and their products of up to four. */
static int number(int rank, size_t i, bool is_signed) {
  int value = (int)((i * 5 + (size_t)rank * 3 + i / 7) % 3);
  return is_signed && i % 5 == 0 ? -value : value;
}

static void put(void *at, size_t i, int type, double value) {
  switch (type) {
  case ncclInt8:
  case ncclUint8:
    ((uint8_t *)at)[i] = (uint8_t)(int64_t)value;
    break;
  case ncclInt32:
  case ncclUint32:
    ((uint32_t *)at)[i] = (uint32_t)(int64_t)value;
    break;
  case ncclInt64:
  case ncclUint64:
    ((uint64_t *)at)[i] = (uint64_t)(int64_t)value;
    break;
  case ncclFloat32:
    ((float *)at)[i] = (float)value;
    break;
  case ncclFloat64:
    ((double *)at)[i] = value;
    break;
  case ncclFloat16:
  case ncclBfloat16:
    ((uint16_t *)at)[i] = (uint16_t)number_pack((float)value, format_of(type));
    break;
  default:
    ((uint8_t *)at)[i] = (uint8_t)number_pack((float)value, format_of(type));
  }
}

static double reduced(int ranks, size_t i, int type, int op) {
  bool is_signed = types[type].is_signed;
  double result = number(0, i, is_signed) * (op == SCALED ? 2.0 : 1.0);
  for (int rank = 1; rank < ranks; rank++) {
    double x = number(rank, i, is_signed);
    result = op == ncclProd  ? result * x
             : op == ncclMax ? (x > result ? x : result)
             : op == ncclMin ? (x < result ? x : result)
             : op == SCALED  ? result + 2 * x
                             : result + x;
  }
  if (op == ncclAvg && is_integer(type)) {
    int64_t mean = (int64_t)result / ranks;
    return (double)mean;
  }
  if (op == ncclAvg)
    result = type == ncclFloat64 ? result / ranks : (double)((float)result / (float)ranks);
  return result;
}

/* Buffers with a guard behind them, so that writing too much is seen. */
struct buffers {
  CUdeviceptr send, receive;
  uint8_t *expected;
};

static ncclRedOp_t operation(struct rank *r, int type, int op) {
  ncclRedOp_t made;
  double two[1];
  if (op != SCALED)
    return (ncclRedOp_t)op;
  put(two, 0, type, 2);
  MUST_NCCL(
      ncclRedOpCreatePreMulSum(&made, two, (ncclDataType_t)type, ncclScalarHostImmediate, r->comm));
  return made;
}

static void fill(struct rank *r, CUdeviceptr at, int type, size_t elements, size_t first) {
  for (size_t i = 0; i < elements; i++)
    put(view(at), i, type, number(r->rank, first + i, types[type].is_signed));
}

static bool guarded(const uint8_t *buffer, size_t bytes) {
  for (size_t i = 0; i < GUARD; i++)
    if (buffer[bytes + i] != 0xa5)
      return false;
  return true;
}

enum { ALL_REDUCE, REDUCE, REDUCE_SCATTER };

/* Whether one reduction of one type, size and place is right on this rank. */
static bool reduces(struct rank *r, struct buffers *b, int what, int type, int op, size_t elements,
                    bool in_place) {
  size_t bytes = types[type].bytes;
  size_t sent = what == REDUCE_SCATTER ? elements * (size_t)r->ranks : elements;
  int root = (int)(elements % (size_t)r->ranks);
  ncclDataType_t t = (ncclDataType_t)type;
  ncclRedOp_t o = operation(r, type, op);
  CUdeviceptr send = b->send, receive = b->receive;
  if (in_place)
    receive = what == REDUCE_SCATTER ? send + (size_t)r->rank * elements * bytes : send;
  memset(view(b->receive), 0xa5, elements * bytes + GUARD);
  memset((uint8_t *)view(send) + sent * bytes, 0xa5, GUARD);
  fill(r, send, type, sent, 0);
  if (what == ALL_REDUCE)
    MUST_NCCL(ncclAllReduce((void *)send, (void *)receive, elements, t, o, r->comm, r->stream));
  else if (what == REDUCE)
    MUST_NCCL(ncclReduce((void *)send, r->rank == root || in_place ? (void *)receive : NULL,
                         elements, t, o, root, r->comm, r->stream));
  else
    MUST_NCCL(ncclReduceScatter((void *)send, (void *)receive, elements, t, o, r->comm, r->stream));
  if (op == SCALED)
    MUST_NCCL(ncclRedOpDestroy(o, r->comm));
  synchronise(r);
  bool good = guarded(view(send), sent * bytes);
  if (!in_place)
    good = good && guarded(view(b->receive), elements * bytes);
  if (what == REDUCE && r->rank != root)
    return good;
  size_t first = what == REDUCE_SCATTER ? (size_t)r->rank * elements : 0;
  for (size_t i = 0; i < elements; i++)
    put(b->expected, i, type, reduced(r->ranks, first + i, type, op));
  return good && memcmp(view(receive), b->expected, elements * bytes) == 0;
}

static void test_reductions(struct rank *r, struct buffers *b) {
  static const char *const names[] = {"all-reduce", "reduce", "reduce-scatter"};
  static const size_t sizes[] = {1, 7, 1013};
  for (int what = ALL_REDUCE; what <= REDUCE_SCATTER; what++)
    for (int op = 0; op < REDUCTIONS; op++) {
      bool good = true;
      for (int type = 0; type < ncclNumTypes; type++)
        for (size_t size = 0; size < sizeof sizes / sizeof sizes[0]; size++)
          for (int in_place = 0; in_place < 2; in_place++)
            if (!reduces(r, b, what, type, op, sizes[size], in_place == 1)) {
              printf("# rank %d: %s, %s, %s, %zu, in place %d\n", r->rank, names[what],
                     reductions[op], types[type].name, sizes[size], in_place);
              good = false;
            }
      check(r, good, "%s by %s of %d ranks is right for all types, odd sizes, in place and not",
            names[what], reductions[op], r->ranks);
    }
  check(r,
        reduces(r, b, ALL_REDUCE, ncclFloat32, ncclSum, MOST_ELEMENTS, false) &&
            reduces(r, b, ALL_REDUCE, ncclFloat16, ncclAvg, MOST_ELEMENTS, true) &&
            reduces(r, b, REDUCE, ncclFloat64, ncclSum, MOST_ELEMENTS, false) &&
            reduces(r, b, REDUCE_SCATTER, ncclBfloat16, ncclSum, MOST_ELEMENTS, true),
        "reductions of %d ranks larger than all buffers between them are right", r->ranks);
}

enum { ALL_GATHER, BROADCAST, ALL_TO_ALL, GATHER, SCATTER, COPIES };

/* What rank `from` holds for place i. */
static uint8_t byte_of(int from, size_t i) {
  return (uint8_t)(i * 31 + i / 251 + (size_t)from * 101 + 1);
}

static void call_copy(struct rank *r, int what, CUdeviceptr send, CUdeviceptr receive,
                      size_t elements, int root) {
  void *s = (void *)send, *d = (void *)receive;
  if (what == ALL_GATHER)
    MUST_NCCL(ncclAllGather(s, d, elements, ncclInt8, r->comm, r->stream));
  else if (what == BROADCAST)
    MUST_NCCL(ncclBroadcast(s, d, elements, ncclInt8, root, r->comm, r->stream));
  else if (what == ALL_TO_ALL)
    MUST_NCCL(ncclAlltoAll(s, d, elements, ncclInt8, r->comm, r->stream));
  else if (what == GATHER)
    MUST_NCCL(
        ncclGather(s, r->rank == root ? d : NULL, elements, ncclInt8, root, r->comm, r->stream));
  else
    MUST_NCCL(
        ncclScatter(r->rank == root ? s : NULL, d, elements, ncclInt8, root, r->comm, r->stream));
  synchronise(r);
}

static bool copies(struct rank *r, struct buffers *b, int what, size_t elements, bool in_place) {
  int root = (int)(elements % (size_t)r->ranks);
  size_t all = elements * (size_t)r->ranks, own = (size_t)r->rank * elements;
  bool sends_all = what == ALL_TO_ALL || what == SCATTER;
  bool receives_all = what == ALL_TO_ALL || what == ALL_GATHER || what == GATHER;
  size_t received = receives_all ? all : elements;
  CUdeviceptr send = b->send, receive = b->receive;
  bool receives = what != GATHER || r->rank == root;
  memset(view(receive), 0xa5, all + GUARD);
  if (in_place && receives_all && receives)
    send = receive + own;
  else if (in_place && what == BROADCAST)
    receive = send;
  else if (in_place && what == SCATTER && r->rank == root)
    receive = send + own;
  for (size_t i = 0; i < (sends_all ? all : elements); i++)
    ((uint8_t *)view(send))[i] = byte_of(r->rank, i);
  call_copy(r, what, send, receive, elements, root);
  if (!receives)
    return true;
  for (size_t i = 0; i < received; i++) {
    int from = receives_all ? (int)(i / elements) : root;
    size_t place = what == ALL_TO_ALL ? own + i % elements
                   : what == SCATTER  ? own + i
                   : receives_all     ? i % elements
                                      : i;
    b->expected[i] = byte_of(from, place);
  }
  return memcmp(view(receive), b->expected, received) == 0 &&
         (in_place || guarded(view(receive), received));
}

static void test_copies(struct rank *r, struct buffers *b) {
  static const char *const names[] = {"all-gather", "broadcast", "all-to-all", "gather", "scatter"};
  static const size_t sizes[] = {1, 3, 1021, MOST_ELEMENTS};
  for (int what = 0; what < COPIES; what++) {
    bool good = true;
    for (size_t size = 0; size < sizeof sizes / sizeof sizes[0]; size++)
      good = good && copies(r, b, what, sizes[size], false) &&
             (what == ALL_TO_ALL || copies(r, b, what, sizes[size], true));
    check(r, good, "%s among %d ranks is right for odd sizes, in place and not", names[what],
          r->ranks);
  }
}

/* Sums whose result depends on the order of addition. */
static void test_repeatable(struct rank *r, struct buffers *b) {
  enum { ELEMENTS = 70001 };
  float *send = view(b->send), *receive = view(b->receive), *before = (float *)(void *)b->expected;
  bool same = true, right = true;
  for (int run = 0; run < 3; run++) {
    for (size_t i = 0; i < ELEMENTS; i++)
      send[i] = (float)((i * 2654435761u + (size_t)r->rank * 40503u) % 1000003u) / 7.0f;
    MUST_NCCL(ncclAllReduce((void *)b->send, (void *)b->receive, ELEMENTS, ncclFloat32, ncclSum,
                            r->comm, r->stream));
    synchronise(r);
    same = same && (run == 0 || memcmp(before, receive, ELEMENTS * sizeof *receive) == 0);
    memcpy(before, receive, ELEMENTS * sizeof *receive);
  }
  for (size_t i = 0; i < ELEMENTS; i++) {
    float sum = 0;
    for (int rank = 0; rank < r->ranks; rank++) {
      float x = (float)((i * 2654435761u + (size_t)rank * 40503u) % 1000003u) / 7.0f;
      sum = rank == 0 ? x : sum + x;
    }
    right = right && receive[i] == sum;
  }
  check(r, same, "a sum of %d ranks is the same bits every time", r->ranks);
  check(r, right, "namely those of adding in the order of the %d ranks", r->ranks);
}

static void body(struct rank *r) {
  size_t most = (size_t)MOST_ELEMENTS * sizeof(double) * MOST_RANKS + GUARD;
  struct buffers b = {device_buffer(most), device_buffer(most), malloc(most)};
  if (b.expected == NULL)
    _exit(4);
  join(r);
  test_reductions(r, &b);
  test_copies(r, &b);
  test_repeatable(r, &b);
  MUST_NCCL(ncclCommDestroy(r->comm));
}

int main(void) {
  for (int ranks = 2; ranks <= MOST_RANKS; ranks++)
    with_ranks(ranks, body, -1);
  return tap_done();
}
