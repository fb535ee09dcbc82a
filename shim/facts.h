/* What is known of the running job, for advice (policy/advice.h): from what steps are foretold to cost and took, totals, optimizers that were
   seen and not taken over, collectives, allocator settings, limits. Gathered while steps begin, so that a report can be written at any
   time by any thread without asking the driver. */
#ifndef OFFLOAD_FACTS_H
#define OFFLOAD_FACTS_H
#include <stdbool.h>
#include <stddef.h>

/* The process starts: settings of frameworks, and who asks for advice. */
void facts_begin(char **environment);

/* A step begins; the last whole one named so much state. Under the enqueue lock. */
void facts_step(size_t state_bytes);

/* A collective's bytes: gradients that every rank gets whole, or what is divided among ranks and put together again. Any thread. */
void facts_reduced(size_t bytes);
void facts_divided(size_t bytes);
/* Whether, as they go, gradients go to all ranks and what is stepped is never put together. */
bool facts_reduces(void);
#endif
