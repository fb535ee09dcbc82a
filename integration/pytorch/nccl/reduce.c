/* One fold for each type, made from types.def. */
#include "integration/pytorch/nccl/reduce.h"
#include "integration/pytorch/nccl/number.h"

/* ---- families: how an element is read, written and combined ---- */

/* Sums and products wrap as the type does: what is stored is the low bits. */
#define WRAP(a, operator, b) ((uint64_t)(a) operator(uint64_t)(b))
#define INTEGER_LOAD(x) (x)
#define INTEGER_STORE(x, storage) ((storage)(x))
#define INTEGER_ADD(wide, a, b) ((wide)WRAP(a, +, b))
#define INTEGER_MULTIPLY(wide, a, b) ((wide)WRAP(a, *, b))
#define INTEGER_LEAST(a, b) ((b) < (a) ? (b) : (a))
#define INTEGER_GREATEST(a, b) ((b) > (a) ? (b) : (a))
#define INTEGER_MEAN(wide, storage, a, ranks) ((wide)(storage)(a) / (wide)(ranks))

/* As fmin and fmax: a number wins against NaN. */
#define FLOAT_LOAD(x) (x)
#define FLOAT_STORE(x, storage) (x)
#define FLOAT_ADD(wide, a, b) ((a) + (b))
#define FLOAT_MULTIPLY(wide, a, b) ((a) * (b))
#define FLOAT_LEAST(a, b) ((b) < (a) || (a) != (a) ? (b) : (a))
#define FLOAT_GREATEST(a, b) ((b) > (a) || (a) != (a) ? (b) : (a))
#define FLOAT_MEAN(wide, storage, a, ranks) ((a) / (wide)(ranks))

#define HALF_LOAD(x) number_unpack(x, NUMBER_FLOAT16)
#define HALF_STORE(x, storage) ((storage)number_pack(x, NUMBER_FLOAT16))
#define BFLOAT16_LOAD(x) number_unpack(x, NUMBER_BFLOAT16)
#define BFLOAT16_STORE(x, storage) ((storage)number_pack(x, NUMBER_BFLOAT16))
#define FLOAT8_E4M3_LOAD(x) number_unpack(x, NUMBER_FLOAT8_E4M3)
#define FLOAT8_E4M3_STORE(x, storage) ((storage)number_pack(x, NUMBER_FLOAT8_E4M3))
#define FLOAT8_E5M2_LOAD(x) number_unpack(x, NUMBER_FLOAT8_E5M2)
#define FLOAT8_E5M2_STORE(x, storage) ((storage)number_pack(x, NUMBER_FLOAT8_E5M2))

/* ---- folds ---- */

struct fold {
  int op, ranks;
  const void *const *inputs;
  const uint64_t *scalars;
  void *output;
  size_t elements;
};

/* `first` and `next` see the element x of a rank, `next` also the result so far. */
#define FOLD(storage, wide, LOAD, STORE, first, next, last)                                        \
  for (size_t i = 0; i < f->elements; i++) {                                                       \
    int rank = 0;                                                                                  \
    wide x = LOAD(((const storage *)f->inputs[0])[i]);                                             \
    wide a = first;                                                                                \
    for (rank = 1; rank < f->ranks; rank++) {                                                      \
      x = LOAD(((const storage *)f->inputs[rank])[i]);                                             \
      a = next;                                                                                    \
    }                                                                                              \
    ((storage *)f->output)[i] = STORE(last, storage);                                              \
  }                                                                                                \
  break

#define FOLDS(type, storage, wide, LOAD, STORE, FAMILY)                                            \
  static storage scalar_##type(const struct fold *f, int rank) {                                   \
    storage scalar;                                                                                \
    memcpy(&scalar, &f->scalars[rank], sizeof scalar);                                             \
    return scalar;                                                                                 \
  }                                                                                                \
  static void fold_##type(const struct fold *f) {                                                  \
    switch (f->op) {                                                                               \
    case ncclProd:                                                                                 \
      FOLD(storage, wide, LOAD, STORE, x, FAMILY##_MULTIPLY(wide, a, x), a);                       \
    case ncclMax:                                                                                  \
      FOLD(storage, wide, LOAD, STORE, x, FAMILY##_GREATEST(a, x), a);                             \
    case ncclMin:                                                                                  \
      FOLD(storage, wide, LOAD, STORE, x, FAMILY##_LEAST(a, x), a);                                \
    case ncclAvg:                                                                                  \
      FOLD(storage, wide, LOAD, STORE, x, FAMILY##_ADD(wide, a, x),                                \
           FAMILY##_MEAN(wide, storage, a, f->ranks));                                             \
    case REDUCE_SCALED_SUM:                                                                        \
      FOLD(storage, wide, LOAD, STORE, FAMILY##_MULTIPLY(wide, x, LOAD(scalar_##type(f, rank))),   \
           FAMILY##_ADD(wide, a, FAMILY##_MULTIPLY(wide, x, LOAD(scalar_##type(f, rank)))), a);    \
    default:                                                                                       \
      FOLD(storage, wide, LOAD, STORE, x, FAMILY##_ADD(wide, a, x), a);                            \
    }                                                                                              \
  }

#define INTEGER_FOLDS(type, storage, wide)                                                         \
  FOLDS(type, storage, wide, INTEGER_LOAD, INTEGER_STORE, INTEGER)
#define FLOAT_FOLDS(type, storage, wide) FOLDS(type, storage, wide, FLOAT_LOAD, FLOAT_STORE, FLOAT)
#define HALF_FOLDS(type, storage, wide) FOLDS(type, storage, wide, HALF_LOAD, HALF_STORE, FLOAT)
#define BFLOAT16_FOLDS(type, storage, wide)                                                        \
  FOLDS(type, storage, wide, BFLOAT16_LOAD, BFLOAT16_STORE, FLOAT)
#define FLOAT8_E4M3_FOLDS(type, storage, wide)                                                     \
  FOLDS(type, storage, wide, FLOAT8_E4M3_LOAD, FLOAT8_E4M3_STORE, FLOAT)
#define FLOAT8_E5M2_FOLDS(type, storage, wide)                                                     \
  FOLDS(type, storage, wide, FLOAT8_E5M2_LOAD, FLOAT8_E5M2_STORE, FLOAT)

#define TYPE(type, words, storage, wide, family) family##_FOLDS(type, storage, wide)
#include "integration/pytorch/nccl/types.def"
#undef TYPE

static const struct {
  const char *name;
  size_t bytes;
  void (*fold)(const struct fold *);
} types[ncclNumTypes] = {
#define TYPE(type, words, storage, wide, family) [type] = {words, sizeof(storage), fold_##type},
#include "integration/pytorch/nccl/types.def"
#undef TYPE
};

size_t reduce_element_bytes(ncclDataType_t type) {
  return types[type].bytes;
}

const char *reduce_type_name(ncclDataType_t type) {
  return types[type].name;
}

void reduce_elements(ncclDataType_t type, int op, int ranks, const void *const *inputs,
                     const uint64_t *scalars, void *output, size_t elements) {
  struct fold f = {op, ranks, inputs, scalars, output, elements};
  types[type].fold(&f);
}
