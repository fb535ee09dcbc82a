/* pthread_atfork, in the place of libc_nonshared.a's: the same, but by a weak reference, since musl
   has no __register_atfork (weak.txt). Called by process.c. */
#include <errno.h>
#include <pthread.h>

extern void *__dso_handle __attribute__((visibility("hidden")));
extern int __register_atfork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void),
                             void *object) __attribute__((weak));

/* The handlers go when this object is unloaded. */
__attribute__((visibility("hidden"))) int
pthread_atfork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
  return __register_atfork ? __register_atfork(before, in_parent, in_child, &__dso_handle) : ENOMEM;
}
