# The simulated GPU's runtime, generated tables and launcher. Included by tests/gpusim/build.mk.

GPUSIM_GENERATE := tests/gpusim/gen/generate.py
GPUSIM_GEN := $(B)/gen/gpusim
GPUSIM_RUNTIME := $(B)/gpusim/runtime

ALL += $(B)/gpusim/libcudart.so.13 $(B)/gpusim/libcudart_static.a $(B)/gpusim/run

# ---- generated sources ----
$(GPUSIM_GEN)/driver_table.inc: $(GPUSIM_GENERATE) tests/gpusim/gen/driver_names.txt
	@$(PYTHON) $< driver $(GPUSIM_GEN)
$(GPUSIM_GEN)/driver_stubs.c $(GPUSIM_GEN)/driver_calls.S $(GPUSIM_GEN)/driver_calls.inc: $(GPUSIM_GEN)/driver_table.inc ;
$(GPUSIM_GEN)/runtime_stubs.c: $(GPUSIM_GENERATE) tests/gpusim/gen/runtime_names.txt
	@$(PYTHON) $< runtime $(GPUSIM_GEN)
GPUSIM_SANITIZER := $(if $(findstring address,$(SAN)),libasan.so,$(if $(findstring thread,$(SAN)),libtsan.so))
$(B)/gpusim/run: $(GPUSIM_GENERATE) tests/gpusim/run.sh tests/gpusim/switches.def
	@GPUSIM_SANITIZER='$(if $(GPUSIM_SANITIZER),$(shell $(CC) -print-file-name=$(GPUSIM_SANITIZER)))' \
	  $(PYTHON) $< run $@

# ---- the runtime ----
# Compiled a second time for per-thread default streams; runtime.h says why.
GPUSIM_RUNTIME_TWICE := driver launch copy stream
GPUSIM_RUNTIME_ROOMS := $(basename $(notdir $(wildcard tests/gpusim/runtime/*.c)))
GPUSIM_RUNTIME_OBJECTS := $(GPUSIM_RUNTIME_ROOMS:%=$(GPUSIM_RUNTIME)/%.o) \
  $(GPUSIM_RUNTIME_TWICE:%=$(GPUSIM_RUNTIME)/per_thread/%.o) $(GPUSIM_RUNTIME)/runtime_stubs.o
# The version script and the archive decide what is exported.
GPUSIM_RUNTIME_CFLAGS := $(CFLAGS_ALL) -fvisibility=default $(CUDA_INC) -MMD -MP

$(GPUSIM_RUNTIME)/%.o: tests/gpusim/runtime/%.c
	@mkdir -p $(@D)
	$(CC) $(GPUSIM_RUNTIME_CFLAGS) -c -o $@ $<
$(GPUSIM_RUNTIME)/per_thread/%.o: tests/gpusim/runtime/%.c
	@mkdir -p $(@D)
	$(CC) $(GPUSIM_RUNTIME_CFLAGS) -DCUDA_API_PER_THREAD_DEFAULT_STREAM -c -o $@ $<
$(GPUSIM_RUNTIME)/runtime_stubs.o: $(GPUSIM_GEN)/runtime_stubs.c
	@mkdir -p $(@D)
	$(CC) $(GPUSIM_RUNTIME_CFLAGS) -c -o $@ $<
-include $(GPUSIM_RUNTIME_OBJECTS:.o=.d)

# -Bsymbolic-functions: as in NVIDIA's runtime, its own calls don't meet a preloaded library's functions.
$(B)/gpusim/libcudart.so.13: $(GPUSIM_RUNTIME_OBJECTS) tests/gpusim/runtime/exports.map
	$(CC) $(CFLAGS_ALL) $(HARDEN) -shared -Wl,-Bsymbolic-functions -Wl,-soname,$(@F) \
	  -Wl,--version-script=tests/gpusim/runtime/exports.map -o $@ $(GPUSIM_RUNTIME_OBJECTS) -ldl -lpthread
# One object, so that no weak stub can hide the real function in another member of the archive.
$(B)/gpusim/libcudart_static.a: $(GPUSIM_RUNTIME_OBJECTS)
	@rm -f $@
	$(CC) -r -nostdlib -o $(GPUSIM_RUNTIME)/libcudart_static.o $(GPUSIM_RUNTIME_OBJECTS)
	$(AR) rcsD $@ $(GPUSIM_RUNTIME)/libcudart_static.o

# ---- tests ----
GPUSIM_TESTS := $(B)/tests/unit
UNIT_TESTS += $(GPUSIM_TESTS)/gpusim_lookup $(GPUSIM_TESTS)/gpusim_runtime_calls $(GPUSIM_TESTS)/gpusim_runtime \
  $(GPUSIM_TESTS)/gpusim_runtime_per_thread $(GPUSIM_TESTS)/gpusim_runtime_static

$(GPUSIM_TESTS)/gpusim_lookup: tests/unit/gpusim_lookup.c tests/gpusim/lookup.c $(GPUSIM_GEN)/driver_stubs.c \
    tests/gpusim/internal.h tests/lib/tap.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -o $@ $(filter %.c,$^)

# A driver of its own, found by DT_RPATH as the simulated one is found by `run`.
$(GPUSIM_TESTS)/fake_driver/libcuda.so.1: tests/unit/gpusim_fake_driver.c tests/unit/gpusim_fake_driver.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) -shared -Wl,-soname,libcuda.so.1 -o $@ $<
$(GPUSIM_TESTS)/gpusim_runtime_calls: tests/unit/gpusim_runtime_calls.c tests/unit/gpusim_fake_driver.h \
    tests/lib/tap.h tests/gpusim/runtime/driver.def $(B)/gpusim/libcudart.so.13 \
    $(GPUSIM_TESTS)/fake_driver/libcuda.so.1
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) -o $@ $< $(B)/gpusim/libcudart.so.13 -ldl \
	  -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/fake_driver:$$ORIGIN/../../gpusim'

# Programs as nvcc makes them; what is run is a script that calls the launcher.
GPUSIM_NVCC := $(NVCC) -std=c++17 -O1 -I. -gencode arch=compute_75,code=compute_75 -Xcompiler -Wall,-Wextra
GPUSIM_ON_GPU = printf '\#!/bin/sh\nexec "$$(dirname "$$0")/../../gpusim/run" "$$0.program"\n' >$@ && chmod +x $@
GPUSIM_TEST_DEPENDS := tests/unit/gpusim_runtime.cu tests/lib/tap.h $(B)/gpusim/libcudart.so.13 \
  $(B)/gpusim/libcuda.so.1 $(B)/gpusim/run
$(GPUSIM_TESTS)/gpusim_runtime: $(GPUSIM_TEST_DEPENDS)
	@mkdir -p $(@D)
	$(GPUSIM_NVCC) -cudart shared -o $@.program $<
	@$(GPUSIM_ON_GPU)
$(GPUSIM_TESTS)/gpusim_runtime_per_thread: $(GPUSIM_TEST_DEPENDS)
	@mkdir -p $(@D)
	$(GPUSIM_NVCC) -cudart shared --default-stream per-thread -o $@.program $<
	@$(GPUSIM_ON_GPU)
$(GPUSIM_TESTS)/gpusim_runtime_static: $(GPUSIM_TEST_DEPENDS) $(B)/gpusim/libcudart_static.a
	@mkdir -p $(@D)
	$(GPUSIM_NVCC) -cudart none -o $@.program $< -L$(B)/gpusim -l:libcudart_static.a -ldl -lpthread $(foreach s,$(subst $(comma), ,$(SAN)),-Xcompiler -fsanitize=$(s))
	@$(GPUSIM_ON_GPU)
