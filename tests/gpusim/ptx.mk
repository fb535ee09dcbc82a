# The PTX interpreter: flags, the second build of its arithmetic rooms, and its unit tests. Included by build.mk, which
# defines GPUSIM, GPUSIM_OBJECTS and GPUSIM_DRIVER_CFLAGS.

# Nothing may be fused or assumed that PTX doesn't say; -O3 turns loops over lanes into vector code. Where rounding is
# changed at run time the compiler must know, though it then makes no vector code of fma and sqrt.
PTX_EXACT := -ffp-contract=off -fno-math-errno -fno-trapping-math -O3
PTX_ROUNDING := ptx_exec_round ptx_exec_convert ptx_exec_half
PTX_EXEC := $(patsubst tests/gpusim/%.c,%,$(wildcard tests/gpusim/ptx_exec_*.c))
$(GPUSIM)/driver/ptx_exec_%.o: GPUSIM_DRIVER_CFLAGS += $(PTX_EXACT) -DPTX_VARIANT=base
$(GPUSIM)/driver/ptx_memory.o: GPUSIM_DRIVER_CFLAGS += $(PTX_EXACT)
$(PTX_ROUNDING:%=$(GPUSIM)/driver/%.o): GPUSIM_DRIVER_CFLAGS += -frounding-math
$(PTX_ROUNDING:%=$(GPUSIM)/driver/avx2/%.o): PTX_EXACT += -frounding-math
$(GPUSIM)/driver/ptx_run.o: GPUSIM_DRIVER_CFLAGS += -frounding-math

ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine)),)
PTX_AVX2_OBJECTS := $(PTX_EXEC:%=$(GPUSIM)/driver/avx2/%.o)
$(PTX_AVX2_OBJECTS): $(GPUSIM)/driver/avx2/%.o: tests/gpusim/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) -MMD -MP $(PTX_EXACT) -march=x86-64-v3 -DPTX_VARIANT=avx2 -c -o $@ $<
GPUSIM_OBJECTS += $(PTX_AVX2_OBJECTS)
endif

# Kernels of the tests. The fatbins hold code for several architectures, in each of the ways in which nvcc packs it.
PTX_KERNELS := $(GPUSIM)/kernels
PTX_FATBIN := -fatbin -gencode arch=compute_75,code=compute_75 -gencode arch=compute_80,code=compute_80 \
  -gencode arch=compute_100,code=compute_100 -gencode arch=compute_90,code=sm_90
$(PTX_KERNELS)/%.ptx: tests/gpusim/kernels/%.cu
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -ptx -arch=compute_80 -o $@ $<
$(PTX_KERNELS)/control.ptx: tests/gpusim/kernels/control.ptx
	@mkdir -p $(@D)
	cp $< $@
# The same kernels under another file name, so that anonymous namespaces get another hash.
$(PTX_KERNELS)/renamed/images.ptx: tests/gpusim/kernels/images.cu
	@mkdir -p $(@D)
	cp $< $(@D)/other_name.cu
	$(NVCC) -std=c++17 -ptx -arch=compute_80 -o $@ $(@D)/other_name.cu
$(PTX_KERNELS)/images.cubin: tests/gpusim/kernels/images.cu
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -cubin -arch=sm_90 -o $@ $<
$(PTX_KERNELS)/images_100.cubin: tests/gpusim/kernels/images.cu
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -cubin -arch=sm_100 -o $@ $<
$(PTX_KERNELS)/images_plain.fatbin: PTX_COMPRESS := none
$(PTX_KERNELS)/images_zstd.fatbin: PTX_COMPRESS := size
$(PTX_KERNELS)/images_lz4.fatbin: PTX_COMPRESS := speed
$(PTX_KERNELS)/images_%.fatbin: tests/gpusim/kernels/images.cu
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 $(PTX_FATBIN) --compress-mode=$(PTX_COMPRESS) -o $@ $<
PTX_TEST_FILES := $(addprefix $(PTX_KERNELS)/,programs.ptx control.ptx renamed/images.ptx images.cubin images_100.cubin \
  images_plain.fatbin images_zstd.fatbin images_lz4.fatbin)

# The interpreter alone, without the driver: tests/unit/gpusim_ptx.h stands in for memory and settings.
PTX_TESTS := $(B)/tests/unit/gpusim_ptx $(B)/tests/unit/gpusim_ptx_arithmetic $(B)/tests/unit/gpusim_approximate $(B)/tests/unit/gpusim_engines
PTX_OBJECTS := $(patsubst tests/gpusim/%.c,$(GPUSIM)/driver/%.o,$(wildcard tests/gpusim/ptx_*.c tests/gpusim/image*.c)) \
  $(PTX_AVX2_OBJECTS)
UNIT_TESTS += $(PTX_TESTS)
$(B)/tests/unit/gpusim_ptx: $(PTX_TEST_FILES)
$(PTX_TESTS): $(B)/tests/unit/%: tests/unit/%.c tests/unit/gpusim_ptx.h tests/unit/gpusim_ptx_checks.def tests/lib/tap.h $(PTX_OBJECTS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -ffp-contract=off -o $@ $< $(PTX_OBJECTS) -ldl -lpthread -lm

# What launches cost: charlm's own kernels, compiled as charlm compiles them.
$(PTX_KERNELS)/bench_model.ptx: integration/charlm/model.cu integration/charlm/model_kernels.cuh
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -O2 -Iintegration/charlm -ptx -arch=compute_80 -o $@ $<
$(PTX_KERNELS)/bench_adam.ptx: integration/charlm/kernels/3336_float/fused_adamw_impl.cu integration/charlm/kernels/fused_impl.cuh
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -O2 -Iintegration/charlm -ptx -arch=compute_80 -o $@ $<
$(B)/gpusim-bench: tests/gpusim/bench/bench.c $(GPUSIM)/libcuda.so.1 $(PTX_KERNELS)/bench_model.ptx $(PTX_KERNELS)/bench_adam.ptx
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) -o $@ $< -L$(GPUSIM) -l:libcuda.so.1 -Wl,-rpath,'$$ORIGIN/gpusim'
BENCHES += $(B)/gpusim-bench
ALL += $(B)/gpusim-bench

# Programs of tests/e2e/gpusim_engines.bats.
PTX_SAMPLES := $(B)/tests/e2e/samples $(B)/tests/e2e/samples_thrust
$(PTX_SAMPLES): $(B)/tests/e2e/%: tests/e2e/%.cu
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -O1 --extended-lambda -Wno-deprecated-declarations -gencode arch=compute_80,code=compute_80 \
	  -cudart shared -o $@ $<
test-programs: $(PTX_SAMPLES)
