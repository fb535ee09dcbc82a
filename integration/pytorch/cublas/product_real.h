/* product.c's arithmetic for one type to compute in; included there only, with REAL (float or
   double) defined and taken back here.

   Blocks of D, BLOCK_ROWS by BLOCK_COLUMNS, one after the other; for each, DEPTH terms of all its
   sums at a time. What of A and B is needed is first packed in the order in which the tiles read
   it, zeros around the edges:

     A: panel | l | row of the panel        B: panel | l | column of the panel */
#define NAME_(function, real) function##_##real
#define NAME__(function, real) NAME_(function, real)
#define NAME(function) NAME__(function, REAL)

struct NAME(blocks) {
  size_t panel_rows; /* of the tiles */
  REAL *a, *b;       /* packed */
  REAL *sums;        /* columns of `stride` */
  size_t stride;
  REAL *line;     /* the longest of a block's sides */
  REAL *gradient; /* m or n of them */
};

/* `sides` lines of `depth` numbers each, into panels of `width` lines. */
static void NAME(pack)(REAL *to, REAL *line, const char *from, cudaDataType type,
                       int64_t side_stride, int64_t depth_stride, size_t sides, size_t depth,
                       size_t width) {
  size_t bytes = element_bytes(type), whole = round_up(sides, width);
  if (depth_stride == 1 && side_stride != 1) {
    for (size_t side = 0; side < whole; side++) {
      REAL *at = to + side / width * width * depth + side % width;
      if (side < sides)
        NAME(element_read)
      (line, from + (int64_t)side * side_stride * (int64_t)bytes, type, 1, depth);
      else memset(line, 0, depth * sizeof *line);
      for (size_t l = 0; l < depth; l++)
        at[l * width] = line[l];
    }
    return;
  }
  memset(line + sides, 0, (whole - sides) * sizeof *line);
  for (size_t l = 0; l < depth; l++) {
    NAME(element_read)
    (line, from + (int64_t)l * depth_stride * (int64_t)bytes, type, side_stride, sides);
    for (size_t side = 0; side < whole; side += width)
      memcpy(to + side * depth + l * width, line + side, width * sizeof *to);
  }
}

/* The sums of one block of D. */
static void NAME(multiply)(const struct product *p, const struct NAME(blocks) * blocks,
                           const struct tile_set *tiles, const char *a, const char *b, size_t rows,
                           size_t columns) {
  size_t width = blocks->panel_rows, k = (size_t)p->k;
  for (size_t done = 0; done < k; done += DEPTH) {
    size_t depth = least(DEPTH, k - done);
    NAME(pack)
    (blocks->a, blocks->line, element_at(a, &p->a, 0, (int64_t)done), p->a.type, p->a.row_stride,
     p->a.column_stride, rows, depth, width);
    NAME(pack)
    (blocks->b, blocks->line, element_at(b, &p->b, (int64_t)done, 0), p->b.type, p->b.column_stride,
     p->b.row_stride, columns, depth, TILE_COLUMNS);
    for (size_t column = 0; column < columns; column += TILE_COLUMNS)
      for (size_t row = 0; row < rows; row += width)
        tiles->NAME(run)(blocks->a + row * depth, blocks->b + column * depth, depth,
                         blocks->sums + column * blocks->stride + row, blocks->stride);
  }
}

static void NAME(keep_bits)(uint8_t *to, const REAL *x, size_t count) {
  for (size_t i = 0; i < count; i += 8) {
    unsigned bits = 0;
    for (size_t bit = 0; bit < 8 && i + bit < count; bit++)
      bits |= (unsigned)(x[i + bit] > 0) << bit;
    to[i / 8] = (uint8_t)bits;
  }
}

/* The epilogue of a part of a column of D, `row` and `column` being its first element's. `x` holds
   alpha A B + beta C. */
static void NAME(finish)(const struct epilogue *e, REAL *x, REAL *other, REAL *gradient, size_t row,
                         size_t column, size_t rows) {
  int64_t aux = (int64_t)column * e->aux_stride + (int64_t)row;
  size_t aux_bytes = element_bytes(e->aux_type);
  if (e->steps & EPILOGUE_BIAS) {
    NAME(element_read)
    (other, (char *)e->bias + row * element_bytes(e->bias_type), e->bias_type, 1, rows);
    for (size_t i = 0; i < rows; i++)
      x[i] += other[i];
  }
  if (e->steps & EPILOGUE_AUX && e->steps & EPILOGUE_RELU)
    NAME(keep_bits)((uint8_t *)e->aux + aux / 8, x, rows);
  else if (e->steps & EPILOGUE_AUX)
    NAME(element_write)((char *)e->aux + aux * (int64_t)aux_bytes, x, e->aux_type, 1, rows);
  if (e->steps & EPILOGUE_RELU)
    for (size_t i = 0; i < rows; i++)
      x[i] = x[i] <= 0 ? 0 : x[i]; /* NaN stays */
  if (e->steps & EPILOGUE_GELU)
    for (size_t i = 0; i < rows; i++)
      x[i] = (REAL)gelu((double)x[i]);
  if (e->steps & EPILOGUE_RELU_GRADIENT)
    for (size_t i = 0; i < rows; i++)
      x[i] = ((uint8_t *)e->aux)[aux / 8 + (int64_t)(i / 8)] >> i % 8 & 1 ? x[i] : 0;
  if (e->steps & EPILOGUE_GELU_GRADIENT) {
    NAME(element_read)(other, (char *)e->aux + aux * (int64_t)aux_bytes, e->aux_type, 1, rows);
    for (size_t i = 0; i < rows; i++)
      x[i] *= (REAL)gelu_slope((double)other[i]);
  }
  if (e->steps & EPILOGUE_BIAS_GRADIENT)
    for (size_t i = 0; i < rows; i++)
      gradient[row + i] += x[i];
}

/* From the sums of a block to D. */
static void NAME(store)(const struct product *p, const struct epilogue *e,
                        const struct NAME(blocks) * blocks, double alpha, double beta,
                        const char *c, char *d, size_t first_row, size_t first_column, size_t rows,
                        size_t columns) {
  for (size_t column = 0; column < columns; column++) {
    REAL *x = blocks->sums + column * blocks->stride, *other = blocks->line;
    int64_t r = (int64_t)first_row, at = (int64_t)(first_column + column);
    for (size_t i = 0; i < rows; i++)
      x[i] *= (REAL)alpha;
    if (beta != 0) {
      NAME(element_read)(other, element_at(c, &p->c, r, at), p->c.type, p->c.row_stride, rows);
      for (size_t i = 0; i < rows; i++)
        x[i] += (REAL)beta * other[i];
    }
    NAME(finish)(e, x, other, blocks->gradient, first_row, first_column + column, rows);
    NAME(element_write)
    ((char *)(uintptr_t)element_at(d, &p->d, r, at), x, p->d.type, p->d.row_stride, rows);
  }
}

/* The sums over the depth of `sides` lines of an operand. */
static void NAME(sum_lines)(REAL *sums, REAL *line, const char *from, cudaDataType type,
                            int64_t side_stride, int64_t depth_stride, size_t sides, size_t depth) {
  size_t bytes = element_bytes(type);
  for (size_t first = 0; first < sides; first += BLOCK_ROWS) {
    size_t count = least(BLOCK_ROWS, sides - first);
    for (size_t l = 0; l < depth; l++) {
      int64_t at = (int64_t)first * side_stride + (int64_t)l * depth_stride;
      NAME(element_read)(line, from + at * (int64_t)bytes, type, side_stride, count);
      for (size_t i = 0; i < count; i++)
        sums[first + i] += line[i];
    }
  }
}

static void NAME(one)(const struct product *p, const struct epilogue *e,
                      const struct NAME(blocks) * blocks, const struct tile_set *tiles,
                      double alpha, double beta, const char *a, const char *b, const char *c,
                      char *d) {
  size_t m = (size_t)p->m, n = (size_t)p->n, gradients = gradients_of(p);
  memset(blocks->gradient, 0, gradients * sizeof(REAL));
  if (e->steps & EPILOGUE_BIAS_GRADIENT_A)
    NAME(sum_lines)
  (blocks->gradient, blocks->line, a, p->a.type, p->a.row_stride, p->a.column_stride, m,
   (size_t)p->k);
  if (e->steps & EPILOGUE_BIAS_GRADIENT_B)
    NAME(sum_lines)
  (blocks->gradient, blocks->line, b, p->b.type, p->b.column_stride, p->b.row_stride, n,
   (size_t)p->k);
  for (size_t column = 0; column < n; column += BLOCK_COLUMNS) {
    size_t columns = least(BLOCK_COLUMNS, n - column);
    for (size_t row = 0; row < m; row += BLOCK_ROWS) {
      size_t rows = least(BLOCK_ROWS, m - row);
      memset(blocks->sums, 0, round_up(columns, TILE_COLUMNS) * blocks->stride * sizeof(REAL));
      if (alpha != 0)
        NAME(multiply)
      (p, blocks, tiles, element_at(a, &p->a, (int64_t)row, 0),
       element_at(b, &p->b, 0, (int64_t)column), rows, columns);
      NAME(store)(p, e, blocks, alpha, beta, c, d, row, column, rows, columns);
    }
  }
  if (gradients != 0)
    NAME(element_write)(e->bias, blocks->gradient, e->bias_type, 1, gradients);
}

static bool NAME(run)(const struct product *p, void *(*view)(void *),
                      const struct tile_set *tiles) {
  size_t m = (size_t)p->m, n = (size_t)p->n, width = tiles->NAME(rows);
  size_t rows = round_up(least(BLOCK_ROWS, m), width),
         columns = round_up(least(BLOCK_COLUMNS, n), TILE_COLUMNS);
  size_t depth = least(DEPTH, (size_t)p->k),
         longest = most(most(rows, columns), most(depth, BLOCK_ROWS));
  size_t gradients = gradients_of(p);
  REAL *memory = malloc((rows * depth + columns * depth + rows * columns + longest + gradients) *
                        sizeof *memory);
  if (memory == NULL)
    return false;
  struct NAME(blocks) blocks = {.panel_rows = width, .a = memory, .stride = rows};
  blocks.b = blocks.a + rows * depth;
  blocks.sums = blocks.b + columns * depth;
  blocks.line = blocks.sums + rows * columns;
  blocks.gradient = blocks.line + longest;
  double alpha = scalar_now(&p->alpha, view), beta = scalar_now(&p->beta, view);
  for (int64_t i = 0; i < p->batch; i++) {
    struct epilogue e = epilogue_now(&p->epilogue, view, i);
    const char *a = alpha != 0 || gradients != 0 ? matrix_now(&p->a, view, i) : NULL;
    const char *b = alpha != 0 || gradients != 0 ? matrix_now(&p->b, view, i) : NULL;
    const char *c = beta != 0 ? matrix_now(&p->c, view, i) : NULL;
    NAME(one)(p, &e, &blocks, tiles, alpha, beta, a, b, c, matrix_now(&p->d, view, i));
  }
  free(memory);
  return true;
}
#undef NAME
#undef NAME_
#undef NAME__
#undef REAL
