/* The scan of a launch's parameters for addresses of watched ranges (state_foreign_launch and state_graph_launch of state.h).

   Every aligned 8-byte word of every parameter is read: pointers lie there, also those in structs passed by value. A pointer
   into a watched range
   - notes the stream, whatever part of the range it is: moving waits for it;
   - marks as foreign-touched the pieces from the pointer to the end of the known state that it lies in, or its own piece
     where nothing is known. What a kernel reaches beyond is not seen; such memory goes home when a step leaves it out.
   What of it is on drives is brought in before the launch; kernels that nobody tells about want everything.
   Structs larger than WEAK_BYTES only note the stream: multi-tensor launches pass lists on the stack whose unused tail
   still holds addresses of an earlier launch, of moments above all, and these would go home at every step. Of the lists that
   we can read (foreach.h), addresses that a block names count as pointers. In the others any address may be used, so what is on
   drives is brought in. */
#include "../policy/report.h"
#include "foreach.h"
#include "graphs.h"
#include "parameters.h"
#include "process.h"
#include "state.h"
#include "touch.h"
#include "unknown.h"
#include <string.h>

static _Thread_local unsigned told; /* calls under way, one in another */

void state_told(bool begins) {
  told += begins ? 1 : -1u;
}

struct scan {
  CUstream stream;
  struct toucher by;                 /* asked for at the first hit */
  const struct graph_holder *holder; /* of a node's parameters: nothing is launched yet */
  uintptr_t low, high;               /* of watched ranges; of all, where a graph will name them */
  bool held;                         /* the table's lock */
  bool host;                         /* a piece on the host was touched */
  bool listed;                       /* in the struct at hand only what blocks name counts */
  struct touch_wants *wants;         /* on drives; of a node, the ranges that its graph holds */
  struct range *range;               /* the last one found, */
  uintptr_t from, to;                /* and the addresses for which that is the answer */
};

/* The table's lock is held. */
static void hit_held(struct scan *scan, uintptr_t address, bool weak) {
  if (address - scan->from >= scan->to - scan->from || scan->from == scan->to) {
    scan->range = range_held(address);
    scan->from = scan->range ? scan->range->base : address;
    scan->to = scan->range ? scan->range->base + scan->range->bytes : address + 1;
    if (scan->range && scan->holder) {
      graphs_hold(*scan->holder, scan->range);
      touch_want(scan->wants, scan->range, scan->range->base, scan->to);
      scan->range = NULL;
    }
    if (scan->range && !touch_range(scan->range, &scan->by))
      scan->range = NULL;
    else if (scan->range)
      touch_again(scan->range);
  }
  if (!scan->range || (weak && scan->listed))
    return;
  const uintptr_t end = touch_state_end(scan->range, address);
  touch_written(scan->range);
  if (!weak)
    scan->host |= touch_mark(scan->range, address, end);
  if (scan->by.captured) {
    touch_want(scan->wants, scan->range, scan->range->base, scan->to);
  } else {
    touch_use(scan->range, address, end);
    touch_again(scan->range); /* behind this address's mark (drive.h) */
    touch_want(scan->wants, scan->range, address, end);
  }
}

/* Rare: kept out of the loop over words. */
__attribute__((noinline)) static void hit(struct scan *scan, uintptr_t address, bool weak) {
  if (!scan->held) {
    if (!scan->holder)
      scan->by = touch_by(scan->stream);
    range_table_hold();
    scan->held = true;
  }
  hit_held(scan, address, weak);
}

/* Pointers are rare among parameters, and large structs are mostly zero: blocks are first asked, 16 bytes at a time, whether
   the upper half of any word could belong to a watched address. A lane that holds a lower half has an empty interval. */
enum { BLOCK_BYTES = 256 };
typedef uint32_t lanes __attribute__((vector_size(16)));
typedef int32_t signed_lanes __attribute__((vector_size(16)));

struct upper_halves {
  lanes from; /* so much less: from the smallest upper half on values count up from INT32_MIN */
  signed_lanes below; /* the first value that is too large */
};

static struct upper_halves upper_halves(uintptr_t low, uintptr_t high) {
  const uint32_t from = (uint32_t)(low >> 32), count = (uint32_t)((high - 1) >> 32) - from + 1;
  const uint32_t bias = 0x80000000u;
  const int32_t below = (int32_t)(bias + count);
  return (struct upper_halves){{0, from - bias, 0, from - bias},
                               {INT32_MIN, below, INT32_MIN, below}};
}

static bool block_may_hit(const char *at, const struct upper_halves *halves) {
  signed_lanes any = {0};
  for (size_t i = 0; i < BLOCK_BYTES; i += sizeof(lanes)) {
    lanes words;
    memcpy(&words, at + i, sizeof words); /* the program's copy need not be aligned */
    any |= (signed_lanes)(words - halves->from) < halves->below;
  }
  uint64_t folded[2];
  memcpy(folded, &any, sizeof folded);
  return (folded[0] | folded[1]) != 0;
}

static void scan_words(struct scan *scan, const char *at, size_t bytes, bool weak) {
  const uintptr_t from = scan->low, span = scan->high - scan->low;
  for (size_t i = 0; i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
    uint64_t word;
    memcpy(&word, at + i, sizeof word);
    if (__builtin_expect(word - from < span, 0))
      hit(scan, word, weak);
  }
}

static void scan_bytes(struct scan *scan, const void *data, size_t bytes) {
  const char *at = data;
  const bool weak = bytes > WEAK_BYTES;
  if (bytes >= BLOCK_BYTES) {
    const struct upper_halves halves = upper_halves(scan->low, scan->high);
    for (; bytes >= BLOCK_BYTES; at += BLOCK_BYTES, bytes -= BLOCK_BYTES)
      if (__builtin_expect(block_may_hit(at, &halves), 0))
        scan_words(scan, at, BLOCK_BYTES, weak);
  }
  scan_words(scan, at, bytes, weak);
}

/* What the blocks of a foreach launch name. */
struct named {
  struct scan *scan;
  const struct foreach_list *list;
  const void *metadata;
  unsigned last; /* the tensor before */
};

static void named_tensor(void *context, unsigned tensor, uint64_t first, uint64_t elements) {
  struct named *named = context;
  struct scan *scan = named->scan;
  (void)first;
  (void)elements;
  for (unsigned i = 0; i < named->list->lists && tensor != named->last; i++) {
    const uintptr_t address = foreach_address(named->list, named->metadata, i, tensor);
    if (address >= scan->low && address < scan->high)
      hit_held(scan, address, false);
  }
  named->last = tensor;
}

static void scan_list(struct scan *scan, const struct foreach_list *list, const void *metadata,
                      unsigned blocks) {
  struct named named = {scan, list, metadata, list->tensors};
  if (!foreach_blocks(list, metadata, blocks, named_tensor, &named) && !scan->holder) {
    touch_unseen(); /* the rest of what it names isn't known */
    scan->wants->all = true;
    if (scan->by.captured)
      touch_graphs_reach_all();
  }
}

/* Of what a launch reaches something isn't told; of a captured one or a node, whenever its graph is launched. */
static void wants_all(const struct scan *scan) {
  scan->wants->all = true;
  if (scan->holder || touch_captured(scan->stream))
    touch_graphs_reach_all();
}

/* The packed form's buffer, or NULL. False at a tag of a later driver: where the list ends isn't known. */
static bool packed(void **extra, const void **buffer, size_t *bytes) {
  *buffer = NULL;
  *bytes = 0;
  for (size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2)
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      *buffer = extra[i + 1];
    else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
      *bytes = *(const size_t *)extra[i + 1];
    else
      return false;
  return true;
}

static void scan_extra(struct scan *scan, void **extra) {
  const void *buffer;
  size_t bytes;
  if (!packed(extra, &buffer, &bytes)) {
    touch_unseen();
    wants_all(scan);
  } else if (buffer) {
    scan_bytes(scan, buffer, bytes);
  }
}

/* Nobody tells what the launch takes. */
static void scan_unknown(const struct scan *scan) {
  if (!scan->holder)
    (void)touch_everything(scan->stream); /* brings in what wants_all wants anyway */
  wants_all(scan);
  if (scan->holder || touch_captured(scan->stream))
    touch_hold_everything(scan->holder ? *scan->holder : GRAPHS_CAPTURES);
}

static void scan_launch(struct scan *scan, CUfunction function, unsigned blocks,
                        void **kernel_parameters, void **extra) {
  if (extra && !kernel_parameters) {
    scan_extra(scan, extra);
  } else if (kernel_parameters) {
    const struct parameters *sizes = parameters_of(function);
    if (!sizes || (sizes->opaque && !told)) {
      touch_unseen();
      wants_all(scan);
    }
    if (sizes && sizes->unknown) {
      scan_unknown(scan);
      return;
    }
    for (uint32_t i = 0; sizes && i < sizes->count; i++) {
      scan->listed = i == 0 && sizes->has_list;
      if (sizes->bytes[i] >= sizeof(uint64_t) && kernel_parameters[i])
        scan_bytes(scan, kernel_parameters[i], sizes->bytes[i]);
    }
    /* Only when some address, old or new, was one of ours. */
    if (scan->held && sizes && sizes->has_list)
      scan_list(scan, &sizes->list, kernel_parameters[0], blocks);
  }
  if (scan->held)
    range_table_release();
}

/* ---- for unknown.h: the same words, whatever they are ---- */

enum { LIST_TENSORS_MOST = 1024 };

struct words {
  uintptr_t at[UNKNOWN_NAMED];
  size_t count;
  uint64_t listed[LIST_TENSORS_MOST / 64]; /* tensors of a list that blocks name, by bit */
};

/* Neither numbers nor text are the address of large device memory. */
static void add_word(struct words *words, uintptr_t word) {
  const uintptr_t lowest = (uintptr_t)1 << 20, highest = (uintptr_t)1 << 56;
  if (word - lowest >= highest - lowest)
    return;
  if (words->count < UNKNOWN_NAMED)
    words->at[words->count++] = word;
  else
    unknown_access(word, 1);
}

static void add_words(struct words *words, const void *data, size_t bytes) {
  uint64_t word;
  for (size_t i = 0; i + sizeof word <= bytes; i += sizeof word) {
    memcpy(&word, (const char *)data + i, sizeof word);
    add_word(words, word);
  }
}

static void note_tensor(void *context, unsigned tensor, uint64_t first, uint64_t elements) {
  struct words *words = context;
  (void)first;
  (void)elements;
  if (tensor < LIST_TENSORS_MOST)
    words->listed[tensor / 64] |= 1ull << tensor % 64;
}

static bool add_list(struct words *words, const struct foreach_list *list, const void *metadata,
                     unsigned blocks) {
  memset(words->listed, 0, sizeof words->listed);
  if (list->tensors > LIST_TENSORS_MOST ||
      !foreach_blocks(list, metadata, blocks, note_tensor, words))
    return false;
  for (unsigned tensor = 0; tensor < list->tensors; tensor++)
    for (unsigned i = 0; i < list->lists && words->listed[tensor / 64] >> tensor % 64 & 1; i++)
      add_word(words, foreach_address(list, metadata, i, tensor));
  return true;
}

/* False: what the launch names can't be told. */
static bool add_parameters(struct words *words, CUfunction function, unsigned blocks,
                           void **kernel_parameters) {
  const struct parameters *sizes = parameters_of(function);
  if (!sizes || sizes->unknown || (sizes->opaque && !told))
    return false;
  for (uint32_t i = sizes->has_list; i < sizes->count; i++)
    if (kernel_parameters[i])
      add_words(words, kernel_parameters[i], sizes->bytes[i]);
  return !sizes->has_list || add_list(words, &sizes->list, kernel_parameters[0], blocks);
}

__attribute__((noinline)) static void show(CUfunction function, unsigned blocks,
                                           void **kernel_parameters, void **extra) {
  struct words words;
  const void *buffer = NULL;
  size_t bytes = 0;
  words.count = 0;
  bool told_all = !process_capture_open();
  if (told_all && kernel_parameters)
    told_all = add_parameters(&words, function, blocks, kernel_parameters);
  else if (told_all && extra)
    told_all = packed(extra, &buffer, &bytes);
  if (buffer)
    add_words(&words, buffer, bytes);
  if (told_all)
    unknown_launch(function, words.at, words.count);
  else
    unknown_unseen();
}

CUresult state_foreign_launch(CUfunction function, unsigned blocks, CUstream stream,
                              void **kernel_parameters, void **extra) {
  if (unknown_looking())
    show(function, blocks, kernel_parameters, extra);
  struct touch_wants wants;
  struct scan scan = {.stream = stream, .wants = &wants};
  wants.count = 0;
  wants.all = false;
  if (process_capture_open()) /* what a capture names stays, be it watched or not */
    range_bounds(&scan.low, &scan.high);
  else
    range_watched(&scan.low, &scan.high);
  if (scan.low >= scan.high)
    return CUDA_SUCCESS;
  scan_launch(&scan, function, blocks, kernel_parameters, extra);
  if (scan.host)
    report_add(foreign_touches, 1);
  return touch_bring(&wants);
}

CUresult state_graph_launch(struct graph_holder holder, CUfunction function,
                            void **kernel_parameters, void **extra) {
  struct touch_wants wants = {.all = false};
  struct scan scan = {.holder = &holder, .wants = &wants};
  range_bounds(&scan.low, &scan.high);
  /* A graph holds what lists contain in any slot: no blocks need be read. */
  if (scan.low < scan.high)
    scan_launch(&scan, function, 0, kernel_parameters, extra);
  return touch_bring(&wants);
}
