/* Allocates through the runtime, whose caller is told by a walk of the stack alone, while another thread is opening the unwinder's
   library: bound already, but not yet known to itself (unwinding_library.c). The word: that library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { TOLD = 100, BYTES = 256 << 10 };

static void *opens(void *path) {
  int (*answer)(void) = NULL;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library)
    *(void **)&answer = dlsym(library, "answer");
  printf("library %d\n", answer ? answer() : 0);
  (void)close(TOLD); /* what it has to say it has said */
  return NULL;
}

int main(int count, char **words) {
  int (*allocate)(void **, size_t) = NULL, (*release)(void *) = NULL, ends[2];
  void *runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_LOCAL), *pointer = NULL;
  char told;
  pthread_t thread;
  if (runtime) {
    *(void **)&allocate = dlsym(runtime, "cudaMalloc");
    *(void **)&release = dlsym(runtime, "cudaFree");
  }
  if (count != 2 || !allocate || !release || pipe(ends) || dup2(ends[1], TOLD) != TOLD)
    return 2;
  (void)close(ends[1]);
  if (release(NULL)) /* starts CUDA */
    return 1;
  const int before = dlopen("libgcc_s.so.1", RTLD_LAZY | RTLD_NOLOAD) != NULL;
  if (pthread_create(&thread, NULL, opens, words[1]))
    return 2;
  fprintf(stderr, "unwinding: %s, %s\n", before ? "there before" : "not there before",
          read(ends[0], &told, 1) == 1 ? "being opened" : "opened");
  const int failed = allocate(&pointer, BYTES) | release(pointer);
  (void)pthread_join(thread, NULL);
  printf("allocated: %d\n", failed);
  return failed;
}
