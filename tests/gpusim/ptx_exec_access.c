/* Loads and stores of a run of lanes: where they go, checked as ptx_memory.c's first comment says,
   then the values. Neighbours in a row and a place that all lanes share are found at once; the
   others each have their place. Called by ptx_select.c. */
#include "ptx_exec.h"

#define RACY __attribute__((no_sanitize("thread")))

struct places {  /* where the lanes [first, end) access */
  uint8_t *base; /* lane l at base + (l - first) * stride, or NULL: */
  size_t stride;
  bool known; /* the addresses below are filled in */
  uint64_t address[PTX_LANES];
  uint8_t *where[PTX_LANES];
};

/* One place for all lanes, or, in local memory, the same place in each lane's own. */
static bool locate_fixed(ARGS, uint32_t bytes, bool write, struct places *p) {
  p->base = ptx_resolve(t, i, first, (enum ptx_space)i->space, (uint64_t)i->offset, bytes, write);
  p->stride = i->space == PTX_LOCAL ? t->block->program->local_bytes : 0;
  (void)end;
  return p->base != NULL;
}

/* Neighbouring lanes at neighbouring addresses of one mapping, or all at the same one. */
static bool locate_row(ARGS, const uint64_t *a, uint32_t bytes, bool write, struct places *p) {
  struct ptx_block *block = t->block;
  const uint64_t start = a[first] - (uint64_t)first * bytes;
  uint64_t row = 0, same = 0;
  LANES {
    row |= a[l] - start - (uint64_t)l * bytes;
    same |= a[l] ^ a[first];
  }
  if ((row && (same || write)) || a[first] % bytes)
    return false;
  uint64_t whole = row ? bytes : (uint64_t)(end - first) * bytes;
  p->stride = row ? 0 : bytes;
  if (i->space == PTX_SHARED) {
    p->base = block->shared + a[first];
    return a[first] <= block->shared_bytes && whole <= block->shared_bytes - a[first];
  }
  const struct ptx_bounds *b = ptx_bounds_of(block, a[first], whole);
  if (!b || (write && !b->writable))
    return false;
  p->base = b->bytes + (a[first] - b->low);
  block->traffic[b->on_host][write] += whole;
  return true;
}

/* Lanes anywhere in one mapping, or in shared memory. */
static bool locate_scattered(ARGS, const uint64_t *a, uint32_t bytes, bool write,
                             struct places *p) {
  struct ptx_block *block = t->block;
  uint64_t low = 0, size = block->shared_bytes, outside = 0;
  uint8_t *from = block->shared;
  uint64_t *traffic = NULL;
  if (i->space != PTX_SHARED) {
    const struct ptx_bounds *b = ptx_bounds_of(block, a[first], bytes);
    if (!b || (write && !b->writable))
      return false;
    low = b->low;
    size = b->high - b->low;
    from = b->bytes;
    traffic = &block->traffic[b->on_host][write];
  }
  if (size < bytes)
    return false;
  size -= bytes;
  LANES {
    uint64_t offset = a[l] - low;
    outside |= (offset > size) | (a[l] & (bytes - 1));
    p->where[l] = from + (offset > size ? 0 : offset);
  }
  if (traffic != NULL && !outside)
    *traffic += a[first] == a[end - 1] ? bytes : (uint64_t)(end - first) * bytes;
  return !outside;
}

/* The distance from lane to lane when it is the same throughout; else *even is false. */
INLINE uint64_t distance(const uint64_t *a, uint32_t first, uint32_t end, bool *even) {
  const uint64_t step = end - first > 1 ? a[first + 1] - a[first] : 0;
  uint64_t differ = 0;
  for (uint32_t l = first; l + 1 < end; l++)
    differ |= (a[l + 1] - a[l]) ^ step;
  *even = !differ && step + (UINT64_C(1) << 31) < UINT64_C(1) << 32;
  return step;
}

/* Single values of one mapping, warp by warp: at even distances only the ends are checked. False,
   and nothing told, when a lane's address isn't good: then locate_each finds out which. */
#define GATHER(m, M, r, R)                                                                         \
  RACY INLINE bool gather_##m##_##r(ARGS, const uint64_t *a) {                                     \
    struct ptx_block *block = t->block;                                                            \
    uint64_t low = 0, size = block->shared_bytes, outside = 0, bytes = 0, *traffic = NULL;         \
    const uint8_t *from = block->shared;                                                           \
    R *d = CELLS(R, 0);                                                                            \
    M value;                                                                                       \
    if (i->space == PTX_LOCAL || i->space == PTX_PARAM || i->operand[0] == PTX_NONE)               \
      return false;                                                                                \
    if (i->space != PTX_SHARED) {                                                                  \
      const struct ptx_bounds *b = ptx_bounds_of(block, a[first], sizeof(M));                      \
      if (!b)                                                                                      \
        return false;                                                                              \
      low = b->low;                                                                                \
      size = b->high - b->low;                                                                     \
      from = b->bytes;                                                                             \
      traffic = &block->traffic[b->on_host][false];                                                \
    }                                                                                              \
    if (size < sizeof(M))                                                                          \
      return false;                                                                                \
    size -= sizeof(M);                                                                             \
    for (uint32_t l = first, stop; l < end; l = stop) {                                            \
      stop = (l / PTX_WARP + 1) * PTX_WARP < end ? (l / PTX_WARP + 1) * PTX_WARP : end;            \
      bool even;                                                                                   \
      const uint64_t step = distance(a, l, stop, &even);                                           \
      if (even && a[l] - low <= size && a[stop - 1] - low <= size &&                               \
          !((a[l] | step) & (sizeof(M) - 1))) {                                                    \
        const uint8_t *at = from + (a[l] - low);                                                   \
        bytes += step ? (stop - l) * sizeof(M) : sizeof(M);                                        \
        memcpy(&value, at, sizeof value);                                                          \
        if (!step)                                                                                 \
          for (uint32_t k = l; k < stop; k++)                                                      \
            d[k] = (R)value;                                                                       \
        else                                                                                       \
          for (uint32_t k = l; k < stop; k++, at += step) {                                        \
            memcpy(&value, at, sizeof value);                                                      \
            d[k] = (R)value;                                                                       \
          }                                                                                        \
        continue;                                                                                  \
      }                                                                                            \
      bytes += (stop - l) * sizeof(M);                                                             \
      for (uint32_t k = l; k < stop; k++) {                                                        \
        uint64_t offset = a[k] - low, bad = (offset > size) | (a[k] & (sizeof(M) - 1));            \
        outside |= bad;                                                                            \
        memcpy(&value, from + (bad ? 0 : offset), sizeof value);                                   \
        d[k] = (R)value;                                                                           \
      }                                                                                            \
    }                                                                                              \
    if (traffic != NULL && !outside)                                                               \
      *traffic += bytes;                                                                           \
    return !outside;                                                                               \
  }

/* One place, or a row: true, or false and p->known when each lane must be looked at. */
INLINE bool locate_together(ARGS, uint32_t bytes, bool write, struct places *p) {
  ptx_bounds_refresh(t->block);
  p->known = i->address != PTX_NONE;
  if (!p->known)
    return locate_fixed(PASS, bytes, write, p);
  addresses(PASS, p->address);
  return i->space != PTX_LOCAL && i->space != PTX_PARAM && end - first > 1 &&
         locate_row(PASS, p->address, bytes, write, p);
}

static bool locate_each(ARGS, uint32_t bytes, bool write, struct places *p) {
  p->base = NULL;
  if (i->space != PTX_LOCAL && i->space != PTX_PARAM &&
      locate_scattered(PASS, p->address, bytes, write, p))
    return true;
  for (uint32_t l = first; l < end; l++) {
    p->where[l] = ptx_resolve(t, i, l, (enum ptx_space)i->space, p->address[l], bytes, write);
    if (!p->where[l])
      return false;
  }
  return true;
}

/* ---- loads and stores: M is the type in memory, R the register's ---- */

#define LOAD(m, M, r, R)                                                                           \
  GATHER(m, M, r, R)                                                                               \
  RACY static void load_##m##_##r(ARGS) {                                                          \
    const uint32_t bytes = (uint32_t)sizeof(M) * i->vector;                                        \
    struct places p;                                                                               \
    if (!locate_together(PASS, bytes, false, &p)) {                                                \
      if (!p.known || (bytes == sizeof(M) && gather_##m##_##r(PASS, p.address)) ||                 \
          !locate_each(PASS, bytes, false, &p))                                                    \
        return;                                                                                    \
    }                                                                                              \
    for (uint32_t k = 0; k < i->vector; k++) {                                                     \
      M value;                                                                                     \
      if (i->operand[k] == PTX_NONE)                                                               \
        continue;                                                                                  \
      R *d = CELLS(R, k);                                                                          \
      const uint8_t *from = p.base + k * sizeof(M);                                                \
      if (p.base && p.stride == sizeof(M)) {                                                       \
        LANES {                                                                                    \
          memcpy(&value, from + (l - first) * sizeof(M), sizeof value);                            \
          d[l] = (R)value;                                                                         \
        }                                                                                          \
      } else if (p.base && !p.stride) {                                                            \
        memcpy(&value, from, sizeof value);                                                        \
        LANES d[l] = (R)value;                                                                     \
      } else {                                                                                     \
        for (uint32_t l = first; l < end; l++) {                                                   \
          memcpy(&value, p.base ? from + (l - first) * p.stride : p.where[l] + k * sizeof(M),      \
                 sizeof value);                                                                    \
          d[l] = (R)value;                                                                         \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
  }
#define STORE(m, M, r, R)                                                                          \
  RACY static void store_##m##_##r(ARGS) {                                                         \
    const uint32_t bytes = (uint32_t)sizeof(M) * i->vector;                                        \
    struct places p;                                                                               \
    if (!locate_together(PASS, bytes, true, &p) &&                                                 \
        (!p.known || !locate_each(PASS, bytes, true, &p)))                                         \
      return;                                                                                      \
    for (uint32_t k = 0; k < i->vector; k++) {                                                     \
      const R *s = CELLS(R, k);                                                                    \
      uint8_t *to = p.base + k * sizeof(M);                                                        \
      if (p.base && p.stride == sizeof(M)) {                                                       \
        LANES {                                                                                    \
          M value = (M)s[l];                                                                       \
          memcpy(to + (l - first) * sizeof(M), &value, sizeof value);                              \
        }                                                                                          \
      } else {                                                                                     \
        for (uint32_t l = first; l < end; l++) {                                                   \
          M value = (M)s[l];                                                                       \
          memcpy(p.base ? to + (l - first) * p.stride : p.where[l] + k * sizeof(M), &value,        \
                 sizeof value);                                                                    \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
  }
LOAD(u8, uint8_t, 2, uint16_t)
LOAD(u8, uint8_t, 4, uint32_t)
LOAD(u8, uint8_t, 8, uint64_t)
LOAD(s8, int8_t, 2, uint16_t)
LOAD(s8, int8_t, 4, uint32_t)
LOAD(s8, int8_t, 8, uint64_t)
LOAD(u16, uint16_t, 2, uint16_t)
LOAD(u16, uint16_t, 4, uint32_t)
LOAD(u16, uint16_t, 8, uint64_t)
LOAD(s16, int16_t, 4, uint32_t)
LOAD(s16, int16_t, 8, uint64_t)
LOAD(u32, uint32_t, 4, uint32_t)
LOAD(u32, uint32_t, 8, uint64_t)
LOAD(s32, int32_t, 8, uint64_t)
LOAD(u64, uint64_t, 8, uint64_t)
STORE(u8, uint8_t, 2, uint16_t)
STORE(u8, uint8_t, 4, uint32_t)
STORE(u8, uint8_t, 8, uint64_t)
STORE(u16, uint16_t, 2, uint16_t)
STORE(u16, uint16_t, 4, uint32_t)
STORE(u16, uint16_t, 8, uint64_t)
STORE(u32, uint32_t, 4, uint32_t)
STORE(u32, uint32_t, 8, uint64_t)
STORE(u64, uint64_t, 8, uint64_t)

#define BY_REGISTER(name) (r == 2 ? name##_2 : r == 4 ? name##_4 : name##_8)
#define BY_WIDE_REGISTER(name) (r == 4 ? name##_4 : name##_8)

ptx_handler PTX_NAME(ptx_select_access)(const struct ptx_instruction *i) {
  bool load = i->opcode != PTX_OP_st, is_signed = ptx_type_class[i->type] == PTX_SIGNED;
  uint32_t bytes = ptx_type_bytes[i->type], r = i->bytes;
  if (bytes * i->vector > 16 || r < 2)
    return NULL;
  switch (bytes) {
  case 1:
    return !load ? BY_REGISTER(store_u8) : is_signed ? BY_REGISTER(load_s8) : BY_REGISTER(load_u8);
  case 2:
    if (!load)
      return BY_REGISTER(store_u16);
    return is_signed && r > 2 ? BY_WIDE_REGISTER(load_s16) : BY_REGISTER(load_u16);
  case 4:
    if (!load)
      return BY_WIDE_REGISTER(store_u32);
    return is_signed && r > 4 ? load_s32_8 : BY_WIDE_REGISTER(load_u32);
  default:
    return load ? load_u64_8 : store_u64_8;
  }
}
