/* What the kernels of unknown.cu and their caller share. */
#ifndef UNKNOWN_TEST_H
#define UNKNOWN_TEST_H
enum { LATTICES = 4 };
typedef struct lattices {
  float *p[LATTICES], *g[LATTICES], *m[LATTICES], *v[LATTICES];
} lattices;
#endif
