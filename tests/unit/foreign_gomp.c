/* A foreign OpenMP runtime for adam_isolation: answers the companion's calls with a team of one,
   and counts them. Programs bring such runtimes along under names of their own and load them for
   everybody (PyTorch's wheels do). */
#include <stdbool.h>

#define EXPORT __attribute__((visibility("default")))

static int calls;

EXPORT int foreign_gomp_calls(void);
EXPORT void GOMP_parallel(void (*region)(void *), void *data, unsigned threads, unsigned flags);
EXPORT int omp_get_num_threads(void);
EXPORT int omp_get_thread_num(void);
EXPORT int omp_get_max_active_levels(void);
EXPORT void omp_set_max_active_levels(int levels);
EXPORT void omp_set_dynamic(int dynamic);

int foreign_gomp_calls(void) {
  return calls;
}
void GOMP_parallel(void (*region)(void *), void *data, unsigned threads, unsigned flags) {
  (void)threads;
  (void)flags;
  calls++;
  region(data);
}
int omp_get_num_threads(void) {
  calls++;
  return 1;
}
int omp_get_thread_num(void) {
  calls++;
  return 0;
}
int omp_get_max_active_levels(void) {
  calls++;
  return 1;
}
void omp_set_max_active_levels(int levels) {
  (void)levels;
  calls++;
}
void omp_set_dynamic(int dynamic) {
  (void)dynamic;
  calls++;
}
