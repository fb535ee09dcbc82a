/* Sends and receives: groups, order, sizes beyond all buffers, a rank with itself, and together with
   collectives. */
#include "tests/unit/nccl_ranks.h"

enum { LARGE = 1 << 20, SMALL = 1000 };

static void fill(CUdeviceptr at, size_t bytes, int seed) {
  uint8_t *to = view(at);
  for (size_t i = 0; i < bytes; i++)
    to[i] = (uint8_t)(i * 7 + i / 253 + (size_t)seed * 59);
}

static bool holds(CUdeviceptr at, size_t bytes, int seed) {
  const uint8_t *from = view(at);
  for (size_t i = 0; i < bytes; i++)
    if (from[i] != (uint8_t)(i * 7 + i / 253 + (size_t)seed * 59))
      return false;
  return true;
}

static void send(struct rank *r, CUdeviceptr from, size_t bytes, int peer) {
  MUST_NCCL(ncclSend((void *)from, bytes, ncclInt8, peer, r->comm, r->stream));
}

static void receive(struct rank *r, CUdeviceptr into, size_t bytes, int peer) {
  MUST_NCCL(ncclRecv((void *)into, bytes, ncclInt8, peer, r->comm, r->stream));
}

/* Everybody sends to the next and receives from the one before, more than a ring holds. */
static void test_circle(struct rank *r, CUdeviceptr out, CUdeviceptr in) {
  int next = (r->rank + 1) % r->ranks, before = (r->rank + r->ranks - 1) % r->ranks;
  fill(out, LARGE, r->rank);
  memset(view(in), 0, LARGE);
  MUST_NCCL(ncclGroupStart());
  send(r, out, LARGE, next);
  receive(r, in, LARGE, before);
  MUST_NCCL(ncclGroupEnd());
  synchronise(r);
  check(r, holds(in, LARGE, before), "%d ranks send to the next in one group", r->ranks);
}

/* All to all by hand, a rank's own part too, with as many bytes as the pair's numbers say. */
static void test_all_pairs(struct rank *r, CUdeviceptr out, CUdeviceptr in) {
  size_t stride = LARGE / MOST_RANKS;
  memset(view(in), 0, LARGE);
  for (int peer = 0; peer < r->ranks; peer++)
    fill(out + (size_t)peer * stride, stride, 10 * r->rank + peer);
  MUST_NCCL(ncclGroupStart());
  for (int peer = 0; peer < r->ranks; peer++) {
    size_t at = (size_t)peer * stride;
    send(r, out + at, stride - (size_t)(10 * r->rank + peer), peer);
    receive(r, in + at, stride - (size_t)(10 * peer + r->rank), peer);
  }
  MUST_NCCL(ncclGroupEnd());
  synchronise(r);
  bool good = true;
  for (int peer = 0; peer < r->ranks; peer++)
    good = good && holds(in + (size_t)peer * stride, stride - (size_t)(10 * peer + r->rank),
                         10 * peer + r->rank);
  check(r, good, "all pairs of %d ranks, also each with itself, exchange unequal parts", r->ranks);
}

/* Three messages each way between ranks 0 and 1, in the order of the calls. */
static void test_order(struct rank *r, CUdeviceptr out, CUdeviceptr in) {
  bool good = true;
  if (r->rank < 2) {
    for (int i = 0; i < 3; i++)
      fill(out + (size_t)i * SMALL, SMALL, 100 * r->rank + i);
    MUST_NCCL(ncclGroupStart());
    for (int i = 0; i < 3; i++) {
      receive(r, in + (size_t)i * SMALL, SMALL - (size_t)i, 1 - r->rank);
      send(r, out + (size_t)i * SMALL, SMALL - (size_t)i, 1 - r->rank);
    }
    MUST_NCCL(ncclGroupEnd());
    synchronise(r);
    for (int i = 0; i < 3; i++)
      good = good && holds(in + (size_t)i * SMALL, SMALL - (size_t)i, 100 * (1 - r->rank) + i);
  }
  check(r, good, "several messages of a pair arrive in the order of the calls");
}

static void test_without_group(struct rank *r, CUdeviceptr out, CUdeviceptr in) {
  int last = r->ranks - 1;
  bool good = true;
  fill(out, LARGE, 77);
  if (r->rank == 0)
    send(r, out, LARGE, last);
  else if (r->rank == last)
    receive(r, in, LARGE, 0);
  synchronise(r);
  if (r->rank == last)
    good = holds(in, LARGE, 77);
  check(r, good, "a single send meets a single receive, whatever the other ranks do");
}

/* The collective is called before the exchange by even ranks and after it by odd ones. */
static void test_with_collective(struct rank *r, CUdeviceptr out, CUdeviceptr in) {
  int next = (r->rank + 1) % r->ranks, before = (r->rank + r->ranks - 1) % r->ranks;
  CUdeviceptr sum = out + LARGE / 2;
  *(int *)view(sum) = r->rank + 1;
  fill(out, SMALL, r->rank);
  MUST_NCCL(ncclGroupStart());
  if (r->rank % 2 == 0)
    MUST_NCCL(ncclAllReduce((void *)sum, (void *)sum, 1, ncclInt32, ncclSum, r->comm, r->stream));
  send(r, out, SMALL, next);
  receive(r, in, SMALL, before);
  if (r->rank % 2 == 1)
    MUST_NCCL(ncclAllReduce((void *)sum, (void *)sum, 1, ncclInt32, ncclSum, r->comm, r->stream));
  MUST_NCCL(ncclGroupEnd());
  synchronise(r);
  check(r, holds(in, SMALL, before) && *(int *)view(sum) == r->ranks * (r->ranks + 1) / 2,
        "a group may hold exchanges and a collective in any order");
}

/* More calls than one kernel's parameters hold. */
static void test_many(struct rank *r, CUdeviceptr out, CUdeviceptr in) {
  enum { MANY = 300 };
  int next = (r->rank + 1) % r->ranks, before = (r->rank + r->ranks - 1) % r->ranks;
  bool good = true;
  for (int i = 0; i < MANY; i++)
    fill(out + (size_t)i * SMALL, SMALL, r->rank + i);
  MUST_NCCL(ncclGroupStart());
  MUST_NCCL(ncclGroupStart());
  for (int i = 0; i < MANY; i++)
    send(r, out + (size_t)i * SMALL, SMALL, next);
  MUST_NCCL(ncclGroupEnd());
  for (int i = 0; i < MANY; i++)
    receive(r, in + (size_t)i * SMALL, SMALL, before);
  MUST_NCCL(ncclGroupEnd());
  synchronise(r);
  for (int i = 0; i < MANY; i++)
    good = good && holds(in + (size_t)i * SMALL, SMALL, before + i);
  check(r, good, "groups nest, and one may hold %d calls", 2 * MANY);
}

static void body(struct rank *r) {
  CUdeviceptr out = device_buffer(LARGE), in = device_buffer(LARGE);
  join(r);
  test_circle(r, out, in);
  test_all_pairs(r, out, in);
  test_order(r, out, in);
  test_without_group(r, out, in);
  test_with_collective(r, out, in);
  test_many(r, out, in);
  MUST_NCCL(ncclCommDestroy(r->comm));
}

int main(void) {
  for (int ranks = 2; ranks <= MOST_RANKS; ranks += 2)
    with_ranks(ranks, body, -1);
  return tap_done();
}
