# The PTX interpreter: flags, the second build of its arithmetic rooms, and its unit tests. Included by build.mk, which
# defines GPUSIM, GPUSIM_OBJECTS and GPUSIM_DRIVER_CFLAGS.

# Rounding is changed at run time, and nothing may be fused or assumed that PTX doesn't say; -O3 turns loops over lanes
# into vector code.
PTX_EXACT := -frounding-math -ffp-contract=off -fno-math-errno -fno-trapping-math -O3
PTX_EXEC := $(patsubst tests/gpusim/%.c,%,$(wildcard tests/gpusim/ptx_exec_*.c))
$(GPUSIM)/driver/ptx_exec_%.o: GPUSIM_DRIVER_CFLAGS += $(PTX_EXACT) -DPTX_VARIANT=base
$(GPUSIM)/driver/ptx_memory.o: GPUSIM_DRIVER_CFLAGS += $(PTX_EXACT)
$(GPUSIM)/driver/ptx_run.o: GPUSIM_DRIVER_CFLAGS += -frounding-math

ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine)),)
PTX_AVX2_OBJECTS := $(PTX_EXEC:%=$(GPUSIM)/driver/avx2/%.o)
$(PTX_AVX2_OBJECTS): $(GPUSIM)/driver/avx2/%.o: tests/gpusim/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) -MMD -MP $(PTX_EXACT) -march=x86-64-v3 -DPTX_VARIANT=avx2 -c -o $@ $<
GPUSIM_OBJECTS += $(PTX_AVX2_OBJECTS)
endif
