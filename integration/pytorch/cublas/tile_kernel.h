/* One kernel of tile.c for one type and instruction set; included there only, with these defined
   and taken back here: TILE_NAME, TILE_REAL (float or double), TILE_TARGET (an attribute or
   nothing), TILE_LANES (numbers of a vector). A tile is of two vectors by TILE_COLUMNS, so that its
   sums stay in registers. */
TILE_TARGET static void TILE_NAME(const TILE_REAL *a, const TILE_REAL *b, size_t depth,
                                  TILE_REAL *sums, size_t stride) {
  typedef TILE_REAL vector __attribute__((vector_size(TILE_LANES * sizeof(TILE_REAL))));
  typedef vector place __attribute__((aligned(__alignof__(TILE_REAL)), may_alias));
  vector upper[TILE_COLUMNS], lower[TILE_COLUMNS];
  for (int column = 0; column < TILE_COLUMNS; column++) {
    upper[column] = *(const place *)(sums + (size_t)column * stride);
    lower[column] = *(const place *)(sums + (size_t)column * stride + TILE_LANES);
  }
  for (size_t l = 0; l < depth; l++, a += 2 * TILE_LANES, b += TILE_COLUMNS) {
    vector first = *(const place *)a, second = *(const place *)(a + TILE_LANES);
    for (int column = 0; column < TILE_COLUMNS; column++) {
      upper[column] += first * b[column];
      lower[column] += second * b[column];
    }
  }
  for (int column = 0; column < TILE_COLUMNS; column++) {
    *(place *)(sums + (size_t)column * stride) = upper[column];
    *(place *)(sums + (size_t)column * stride + TILE_LANES) = lower[column];
  }
}
#undef TILE_NAME
#undef TILE_REAL
#undef TILE_TARGET
#undef TILE_LANES
