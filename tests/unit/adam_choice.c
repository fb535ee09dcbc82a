/* The choice among instruction sets, for made-up machines. */
#include "adam/isa.h"
#include "adam/kernels.h"
#include "tests/lib/tap.h"
#include <string.h>

static void test_choice(void) {
  char error[512] = "";
  enum adam_isa chosen = ADAM_ISA_AUTO;
  const unsigned scalar = 1u << ADAM_ISA_SCALAR;
#if defined __x86_64__
  const unsigned avx2 = scalar | 1u << ADAM_ISA_AVX2, avx512 = avx2 | 1u << ADAM_ISA_AVX512;
  tap_ok(isa_choose(ADAM_ISA_AUTO, avx512, &chosen, error, sizeof error) == &adam_kernels_avx512 &&
             chosen == ADAM_ISA_AVX512,
         "auto takes AVX-512 where it is there");
  tap_ok(isa_choose(ADAM_ISA_AUTO, avx2, &chosen, error, sizeof error) == &adam_kernels_avx2 &&
             chosen == ADAM_ISA_AVX2,
         "auto takes AVX2 on a machine without AVX-512");
  tap_ok(!isa_choose(ADAM_ISA_AVX512, avx2, &chosen, error, sizeof error) &&
             strstr(error, "OFFLOAD_ISA=avx512") && strstr(error, "scalar, avx2"),
         "forcing an instruction set that the machine lacks says which there are");
  const enum adam_isa foreign = ADAM_ISA_NEON;
#else
  const enum adam_isa foreign = ADAM_ISA_AVX2;
#endif
  tap_ok(!isa_choose(foreign, isa_available(), &chosen, error, sizeof error) &&
             strstr(error, isa_name(foreign)),
         "forcing another architecture's instruction set is refused in a sentence");
  error[0] = 0;
  tap_ok(!isa_choose(ADAM_ISA_AUTO, scalar, &chosen, error, sizeof error) &&
             strstr(error, "OFFLOAD_STEP=stream"),
         "auto declines on a machine without vector code and names the other steps");
  tap_ok(isa_choose(ADAM_ISA_SCALAR, scalar, &chosen, error, sizeof error) ==
                 &adam_kernels_scalar &&
             chosen == ADAM_ISA_SCALAR,
         "the scalar code can be forced");
}

int main(void) {
  test_choice();
  return tap_done();
}
