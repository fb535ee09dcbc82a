/* atom and red: real atomic operations, since blocks may run in several threads. Called through
   the handlers that ptx_memory.c's ptx_select_memory gives out. */
#include "ptx_exec.h"

/* Sums of f32 in global memory flush subnormals, those in shared memory don't (PTX ISA, atom). */
static uint32_t f32_sum(uint32_t a, uint32_t b, bool flush) {
  return f32_out(f32_in(a, flush) + f32_in(b, flush), flush, false);
}
static uint16_t half_sum(uint16_t a, uint16_t b) {
  return narrow((double)(f32_of_half(a) + f32_of_half(b)), 10, PTX_RN);
}
static uint16_t bfloat_sum(uint16_t a, uint16_t b) {
  return narrow((double)(f32_of_bfloat(a) + f32_of_bfloat(b)), 7, PTX_RN);
}

static uint64_t added(uint8_t type, uint64_t old, uint64_t b, bool flush) {
  switch (type) {
  case PTX_f32:
    return f32_sum((uint32_t)old, (uint32_t)b, flush);
  case PTX_f64:
    return bits_of_f64(f64_of(old) + f64_of(b));
  case PTX_f16:
    return half_sum((uint16_t)old, (uint16_t)b);
  case PTX_bf16:
    return bfloat_sum((uint16_t)old, (uint16_t)b);
  case PTX_f16x2:
    return (uint32_t)half_sum((uint16_t)(old >> 16), (uint16_t)(b >> 16)) << 16 |
           half_sum((uint16_t)old, (uint16_t)b);
  case PTX_bf16x2:
    return (uint32_t)bfloat_sum((uint16_t)(old >> 16), (uint16_t)(b >> 16)) << 16 |
           bfloat_sum((uint16_t)old, (uint16_t)b);
  default:
    return old + b;
  }
}

static bool less(uint8_t type, uint64_t a, uint64_t b) {
  if (ptx_type_class[type] == PTX_SIGNED)
    return ptx_type_bytes[type] == 4 ? (int32_t)a < (int32_t)b : (int64_t)a < (int64_t)b;
  return a < b;
}

static uint64_t changed(const struct ptx_instruction *i, uint64_t old, uint64_t b, uint64_t c,
                        bool flush) {
  switch (i->action) {
  case PTX_ADD:
    return added(i->type, old, b, flush);
  case PTX_MIN:
    return less(i->type, old, b) ? old : b;
  case PTX_MAX:
    return less(i->type, old, b) ? b : old;
  case PTX_INC:
    return old >= b ? 0 : old + 1;
  case PTX_DEC:
    return !old || old > b ? b : old - 1;
  case PTX_CAS:
    return old == b ? c : old;
  case PTX_ATOMIC_AND:
    return old & b;
  case PTX_ATOMIC_OR:
    return old | b;
  case PTX_ATOMIC_XOR:
    return old ^ b;
  default: /* exch */
    return b;
  }
}

#define ATOMIC(bits)                                                                               \
  static void atomic_##bits(ARGS) {                                                                \
    const bool has_address = i->address != PTX_NONE;                                               \
    uint64_t a[PTX_LANES];                                                                         \
    ptx_bounds_refresh(t->block);                                                                  \
    if (has_address)                                                                               \
      ptx_addresses(PASS, a);                                                                      \
    for (uint32_t l = first; l < end; l++) {                                                       \
      uint8_t *place = ptx_resolve(t, i, l, (enum ptx_space)i->space,                              \
                                   has_address ? a[l] : (uint64_t)i->offset, bits / 8, true);      \
      if (!place)                                                                                  \
        return;                                                                                    \
      uint##bits##_t *cell = (uint##bits##_t *)(void *)place;                                      \
      bool shared =                                                                                \
          place >= t->block->shared && place < t->block->shared + t->block->shared_bytes;          \
      uint64_t b = CELLS(uint##bits##_t, 1)[l];                                                    \
      uint64_t c = i->operand[2] == PTX_NONE ? 0 : CELLS(uint##bits##_t, 2)[l];                    \
      uint##bits##_t old = __atomic_load_n(cell, __ATOMIC_SEQ_CST), next;                          \
      do                                                                                           \
        next = (uint##bits##_t)changed(i, old, b, c, !shared);                                     \
      while (!__atomic_compare_exchange_n(cell, &old, next, false, __ATOMIC_SEQ_CST,               \
                                          __ATOMIC_SEQ_CST));                                      \
      if (i->operand[0] != PTX_NONE)                                                               \
        CELLS(uint##bits##_t, 0)[l] = old;                                                         \
    }                                                                                              \
  }
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)

ptx_handler ptx_select_atomic(const struct ptx_instruction *i) {
  bool is_float = ptx_type_class[i->type] == PTX_FLOAT, wide = i->bytes >= 4, known;
  switch (i->action) {
  case PTX_ADD:
    known = is_float || wide;
    break;
  case PTX_INC:
  case PTX_DEC:
    known = i->type == PTX_u32;
    break;
  case PTX_CAS:
    known = !is_float && i->bytes >= 2;
    break;
  case PTX_MIN:
  case PTX_MAX:
  case PTX_ATOMIC_AND:
  case PTX_ATOMIC_OR:
  case PTX_ATOMIC_XOR:
    known = !is_float && wide;
    break;
  default:
    known = wide;
    break;
  }
  if (!known || i->space == PTX_LOCAL || i->space == PTX_PARAM || i->space == PTX_CONST)
    return NULL;
  return i->bytes == 2 ? atomic_16 : i->bytes == 4 ? atomic_32 : atomic_64;
}
