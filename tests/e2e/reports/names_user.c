/* Calls each of the vendor's functions, by direct link. */
#include <stdio.h>

#define FUNCTION(name) int name(int depth);
#define ALL(F)                                                                                     \
  F(cudnnCreate)                                                                                   \
  F(cublasCreate_v2) F(cufftPlan1d) F(cuvidCreateDecoder) F(hipInit) F(ompt_start_tool)
ALL(FUNCTION)

int main(void) {
#define CALL(name) printf(#name " gives %d\n", name(0));
  ALL(CALL)
  return 0;
}
