# The simulated driver, libcuda.so.1, and its unit tests. The runtime, the generated tables and the launcher `run` are
# in runtime/build.mk.

GPUSIM := $(B)/gpusim
GPUSIM_SOURCES := $(wildcard tests/gpusim/*.c)
GPUSIM_OBJECTS := $(GPUSIM_SOURCES:tests/gpusim/%.c=$(GPUSIM)/driver/%.o) \
  $(addprefix $(GPUSIM)/driver/,driver_stubs.o driver_calls.o)
GPUSIM_DRIVER_CFLAGS := $(CFLAGS_ALL) $(CUDA_INC) -MMD -MP

ALL += $(GPUSIM)/libcuda.so.1

include tests/gpusim/ptx.mk
# A room's cuX is sim_cuX in its object; the exported cuX is an entry point of call.S that goes on to it. Only lookup.c
# means the exported ones.
OBJCOPY ?= objcopy
GPUSIM_RENAME := $(OBJCOPY) --redefine-syms=$(B)/gen/gpusim/driver_rename.txt
$(GPUSIM_OBJECTS): $(B)/gen/gpusim/driver_table.inc
$(GPUSIM)/driver/%.o: tests/gpusim/%.c
	@mkdir -p $(@D)
	$(CC) $(GPUSIM_DRIVER_CFLAGS) -c -o $@ $<
	$(if $(filter lookup,$*),,$(GPUSIM_RENAME) $@)
$(GPUSIM)/driver/driver_stubs.o: $(B)/gen/gpusim/driver_stubs.c
	@mkdir -p $(@D)
	$(CC) $(GPUSIM_DRIVER_CFLAGS) -c -o $@ $<
	$(GPUSIM_RENAME) $@
$(GPUSIM)/driver/driver_calls.o: $(B)/gen/gpusim/driver_calls.S tests/gpusim/call.S
	@mkdir -p $(@D)
	$(CC) -I. -c -o $@ $<
$(GPUSIM)/driver/calls.o: $(B)/gen/gpusim/driver_calls.inc
-include $(GPUSIM_OBJECTS:.o=.d)

# -Bsymbolic: a preloaded library must not catch the driver's calls to itself.
GPUSIM_LINK = $(CC) $(CFLAGS_ALL) $(HARDEN) -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic \
  -Wl,--version-script=$(filter %.map,$^) -o $@ $(filter %.o,$^) -ldl -lpthread -lm
$(GPUSIM)/libcuda.so.1: $(GPUSIM_OBJECTS) $(B)/gen/gpusim/exports_13000.map
	$(GPUSIM_LINK)
# The same driver with the exports of an older one; `run` takes it for GPUSIM_DRIVER.
GPUSIM_OLDER := 11080 12000 12010 12020 12030 12040 12080
GPUSIM_OLDER_DRIVERS := $(GPUSIM_OLDER:%=$(GPUSIM)/driver_%/libcuda.so.1)
ALL += $(GPUSIM_OLDER_DRIVERS)
$(GPUSIM_OLDER_DRIVERS): $(GPUSIM)/driver_%/libcuda.so.1: $(GPUSIM_OBJECTS) $(B)/gen/gpusim/exports_%.map
	@mkdir -p $(@D)
	$(GPUSIM_LINK)
$(B)/gen/gpusim/exports_%.map: $(GPUSIM_GENERATE) tests/gpusim/gen/driver_names.txt
	@mkdir -p $(@D)
	@$(PYTHON) tests/gpusim/gen/generate.py exports $* $@

# One program per room; they find the driver beside themselves and set their own switches.
GPUSIM_DRIVER_TESTS := $(addprefix $(B)/tests/unit/gpusim_,memory vmm stream queue value capture graph context module settings fault older lock chaos ends peers clock)
UNIT_TESTS += $(GPUSIM_DRIVER_TESTS)
$(B)/tests/unit/gpusim_older: $(GPUSIM_OLDER_DRIVERS)
$(GPUSIM_DRIVER_TESTS): $(B)/tests/unit/%: tests/unit/%.c tests/unit/gpusim_driver.h tests/lib/tap.h tests/gpusim/gpusim.h \
    $(GPUSIM)/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) -o $@ $< -L$(GPUSIM) -l:libcuda.so.1 -lpthread \
	  -Wl,-rpath,'$$ORIGIN/../../gpusim'

# All of them once more with one hardware queue, where a wait that isn't met holds up every stream.
GPUSIM_ONE_QUEUE_TESTS := $(addsuffix _one_queue,$(GPUSIM_DRIVER_TESTS))
UNIT_TESTS += $(GPUSIM_ONE_QUEUE_TESTS)
$(GPUSIM_ONE_QUEUE_TESTS): %_one_queue: %
	@printf '#!/bin/sh\nGPUSIM_QUEUES=1 exec "$${0%%_one_queue}"\n' >$@ && chmod +x $@

include tests/gpusim/runtime/build.mk
