# The NCCL stand-in and its tests.
NCCL := $(B)/pytorch/nccl
NCCL_LIBRARY := $(B)/pytorch/lib/libnccl.so.2
NCCL_OBJECTS := $(patsubst integration/pytorch/nccl/%.c,$(NCCL)/%.o,$(wildcard integration/pytorch/nccl/*.c))
ALL += $(NCCL_LIBRARY)

# -ffp-contract=off: a sum is the same on every machine.
$(NCCL)/%.o: integration/pytorch/nccl/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -ffp-contract=off $(CUDA_INC) -MMD -MP -c -o $@ $<
-include $(NCCL_OBJECTS:.o=.d)

# -Bsymbolic: its own calls stay its own. The driver is opened at run time, as the real library does.
$(NCCL_LIBRARY): $(NCCL_OBJECTS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(HARDEN) -shared -Wl,-soname,$(@F) -Wl,-Bsymbolic -o $@ $^ -ldl -lpthread -lm

NCCL_TESTS := $(addprefix $(B)/tests/unit/nccl_,numbers collectives pairs streams communicators failures)
UNIT_TESTS += $(NCCL_TESTS)
$(NCCL_TESTS): $(B)/tests/unit/%: tests/unit/%.c tests/unit/nccl_ranks.h tests/unit/gpusim_driver.h tests/lib/tap.h \
    integration/pytorch/nccl/nccl.h integration/pytorch/nccl/number.h $(NCCL_LIBRARY) $(GPUSIM)/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) -o $@ $< -L$(GPUSIM) -l:libcuda.so.1 -L$(B)/pytorch/lib -l:libnccl.so.2 -lpthread -lm \
	  -Wl,-rpath,'$$ORIGIN/../../gpusim' -Wl,-rpath,'$$ORIGIN/../../pytorch/lib'

# Once more with one hardware queue.
NCCL_ONE_QUEUE_TESTS := $(addsuffix _one_queue,$(filter-out %_numbers,$(NCCL_TESTS)))
UNIT_TESTS += $(NCCL_ONE_QUEUE_TESTS)
$(NCCL_ONE_QUEUE_TESTS): %_one_queue: %
	@printf '#!/bin/sh\nGPUSIM_QUEUES=1 exec "$${0%%_one_queue}"\n' >$@ && chmod +x $@
