# The simulated driver, libcuda.so.1, and its unit tests. The runtime, the generated tables and the launcher `run` are
# in runtime/build.mk.

GPUSIM := $(B)/gpusim
GPUSIM_SOURCES := $(wildcard tests/gpusim/*.c)
GPUSIM_OBJECTS := $(GPUSIM_SOURCES:tests/gpusim/%.c=$(GPUSIM)/driver/%.o) $(GPUSIM)/driver/driver_stubs.o
GPUSIM_DRIVER_CFLAGS := $(CFLAGS_ALL) $(CUDA_INC) -MMD -MP

ALL += $(GPUSIM)/libcuda.so.1

include tests/gpusim/ptx.mk
$(GPUSIM)/driver/%.o: tests/gpusim/%.c
	@mkdir -p $(@D)
	$(CC) $(GPUSIM_DRIVER_CFLAGS) -c -o $@ $<
$(GPUSIM)/driver/driver_stubs.o: $(B)/gen/gpusim/driver_stubs.c
	@mkdir -p $(@D)
	$(CC) $(GPUSIM_DRIVER_CFLAGS) -c -o $@ $<
$(GPUSIM)/driver/lookup.o: $(B)/gen/gpusim/driver_table.inc
-include $(GPUSIM_OBJECTS:.o=.d)

# -Bsymbolic: a preloaded library must not catch the driver's calls to itself.
$(GPUSIM)/libcuda.so.1: $(GPUSIM_OBJECTS)
	$(CC) $(CFLAGS_ALL) $(HARDEN) -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -o $@ $^ -ldl -lpthread -lm

# One program per room; they find the driver beside themselves and set their own switches.
GPUSIM_DRIVER_TESTS := $(addprefix $(B)/tests/unit/gpusim_,memory vmm stream queue value capture graph context module settings)
UNIT_TESTS += $(GPUSIM_DRIVER_TESTS)
$(GPUSIM_DRIVER_TESTS): $(B)/tests/unit/%: tests/unit/%.c tests/unit/gpusim_driver.h tests/lib/tap.h tests/gpusim/gpusim.h \
    $(GPUSIM)/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) -o $@ $< -L$(GPUSIM) -l:libcuda.so.1 -lpthread \
	  -Wl,-rpath,'$$ORIGIN/../../gpusim'

include tests/gpusim/runtime/build.mk
