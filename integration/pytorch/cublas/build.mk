# The cuBLAS and cuBLASLt stand-ins and their tests. Both have the arithmetic; handle.c, gemm.c and blas.c are cuBLAS's
# calls, lt_*.c are cuBLASLt's.
CUBLAS := $(B)/pytorch/cublas
CUBLAS_OBJECTS := $(patsubst integration/pytorch/cublas/%.c,$(CUBLAS)/%.o,$(wildcard integration/pytorch/cublas/*.c)) \
  $(CUBLAS)/libraries/driver.o $(CUBLAS)/libraries/touch.o
CUBLAS_OBJECTS_libcublas := $(filter-out $(CUBLAS)/lt_%,$(CUBLAS_OBJECTS))
CUBLAS_OBJECTS_libcublasLt := $(filter-out $(addprefix $(CUBLAS)/,handle.o gemm.o blas.o),$(CUBLAS_OBJECTS))
CUBLAS_LIBRARIES := $(B)/pytorch/lib/libcublas.so.13 $(B)/pytorch/lib/libcublasLt.so.13
ALL += $(CUBLAS_LIBRARIES)

# -ffp-contract=off: a sum is the same on every machine. Products are what takes the time of a training step here.
CUBLAS_CFLAGS = $(CFLAGS_ALL) $(if $(SAN),,-O3) -ffp-contract=off -fno-trapping-math \
  -isystem integration/pytorch/include $(CUDA_INC) -MMD -MP
$(CUBLAS)/libraries/%.o: integration/pytorch/libraries/%.c
	@mkdir -p $(@D)
	$(CC) $(CUBLAS_CFLAGS) -c -o $@ $<
$(CUBLAS)/%.o: integration/pytorch/cublas/%.c
	@mkdir -p $(@D)
	$(CC) $(CUBLAS_CFLAGS) -c -o $@ $<
-include $(CUBLAS_OBJECTS:.o=.d)

# As PyTorch gets them they also have its stubs (../build.mk); these are for the tests. -Bsymbolic: own calls stay own.
define CUBLAS_LIBRARY
$$(B)/pytorch/lib/$(1).so.13: $$(CUBLAS_OBJECTS_$(1))
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS_ALL) $$(HARDEN) -shared -Wl,-soname,$$(@F) -Wl,-Bsymbolic -o $$@ $$^ -ldl -lpthread -lm
endef
$(foreach l,libcublas libcublasLt,$(eval $(call CUBLAS_LIBRARY,$(l))))

# The arithmetic is tested by its objects, calls by the libraries.
CUBLAS_TEST_NEEDS := tests/unit/cublas_support.h tests/lib/tap.h integration/pytorch/include/cublas_v2.h \
  integration/pytorch/include/cublasLt.h
CUBLAS_ARITHMETIC := $(addprefix $(CUBLAS)/,product.o element.o tile.o vector.o)
UNIT_TESTS += $(B)/tests/unit/cublas_arithmetic
$(B)/tests/unit/cublas_arithmetic: tests/unit/cublas_arithmetic.c $(CUBLAS_TEST_NEEDS) $(CUBLAS_ARITHMETIC)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -ffp-contract=off -isystem integration/pytorch/include $(CUDA_INC) -o $@ $< $(CUBLAS_ARITHMETIC) -lm
CUBLAS_TESTS := $(addprefix $(B)/tests/unit/cublas_,calls lt streams)
UNIT_TESTS += $(CUBLAS_TESTS)
$(CUBLAS_TESTS): $(B)/tests/unit/%: tests/unit/%.c tests/unit/cublas_device.h tests/unit/gpusim_driver.h $(CUBLAS_TEST_NEEDS) \
    $(CUBLAS_LIBRARIES) $(GPUSIM)/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -ffp-contract=off -isystem integration/pytorch/include $(CUDA_INC) -o $@ $< -L$(GPUSIM) -l:libcuda.so.1 \
	  -L$(B)/pytorch/lib -l:libcublas.so.13 -l:libcublasLt.so.13 -lpthread -lm \
	  -Wl,-rpath,'$$ORIGIN/../../gpusim' -Wl,-rpath,'$$ORIGIN/../../pytorch/lib'

# Once more with one hardware queue.
CUBLAS_ONE_QUEUE_TESTS := $(CUBLAS_TESTS:%=%_one_queue)
UNIT_TESTS += $(CUBLAS_ONE_QUEUE_TESTS)
$(CUBLAS_ONE_QUEUE_TESTS): %_one_queue: %
	@printf '#!/bin/sh\nGPUSIM_QUEUES=1 exec "$${0%%_one_queue}"\n' >$@ && chmod +x $@
