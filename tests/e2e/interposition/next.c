/* Calls through two libraries that both define named_twice (next_library.c). */
#include <stdio.h>
int named_twice(void);
int main(void) {
  printf("%d\n", named_twice());
  return 0;
}
