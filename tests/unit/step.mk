# Unit tests of the step rooms, and the program and kernels of tests/e2e/step.bats.
STEP_REPORT := $(B)/policy/offload.a
STEP_TESTS := $(addprefix $(B)/tests/unit/,shim_recognise shim_foreign shim_unknown shim_calibrate shim_probe shim_worker shim_compare shim_ring shim_staging shim_kernels shim_meter shim_timeline shim_rank shim_step_drive)

STEP_IMAGE := $(addprefix $(B)/shim/,image.o image_parse.o image_lz4.o image_cubin.o image_ptx.o elf.o)
STEP_PROBE := $(B)/shim/probe.o $(B)/shim/elements.o $(B)/shim/calibrate_data.o

$(B)/tests/unit/shim_recognise: $(B)/shim/recognise.o $(B)/shim/arguments.o $(B)/shim/foreign.o $(B)/shim/foreach.o $(STEP_IMAGE) $(STEP_REPORT)
$(B)/tests/unit/shim_foreign: $(B)/shim/foreign.o $(B)/shim/foreach.o $(STEP_REPORT)
$(B)/tests/unit/shim_unknown: $(B)/shim/unknown.o $(STEP_REPORT)
$(B)/tests/unit/shim_recognise: STEP_FLAGS := -DKERNEL_NAMES='"$(abspath tests/unit/data/torch_kernels.tsv)"'
$(B)/tests/unit/shim_calibrate $(B)/tests/unit/shim_probe: tests/unit/proof_support.h $(STEP_PROBE) $(B)/liboffload-adam.so
$(B)/tests/unit/shim_worker $(B)/tests/unit/shim_compare: $(B)/shim/worker.o $(B)/shim/compare.o $(STEP_PROBE) $(STEP_REPORT) $(B)/liboffload-adam.so
$(B)/tests/unit/shim_ring: $(B)/shim/ring.o $(B)/shim/holdings.o $(B)/shim/staging.o $(B)/shim/kernels.o $(B)/shim/worker.o $(B)/shim/compare.o $(STEP_PROBE) $(STEP_REPORT) $(B)/liboffload-adam.so
$(B)/tests/unit/shim_meter: $(B)/shim/meter.o $(STEP_REPORT)
$(B)/tests/unit/shim_timeline: $(B)/shim/timeline.o $(STEP_REPORT)
$(B)/tests/unit/shim_rank: $(B)/shim/rank.o $(B)/policy/replicas.o
$(B)/tests/unit/shim_staging: $(B)/shim/staging.o $(B)/shim/holdings.o $(STEP_REPORT)
$(B)/tests/unit/shim_kernels: $(B)/shim/kernels.o $(STEP_PROBE) $(STEP_REPORT) $(B)/liboffload-adam.so $(B)/gpusim/libcuda.so.1
$(B)/tests/unit/shim_step_drive: $(B)/shim/step_drive.o $(B)/shim/timeline.o $(B)/shim/arguments.o $(STEP_REPORT)

$(STEP_TESTS): $(B)/tests/unit/%: tests/unit/%.c tests/lib/tap.h $(SHIM_HDR)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) $(STEP_FLAGS) $< $(filter %.o %.so %.so.1,$^) $(filter %.a,$^) -o $@ -Wl,-rpath,'$$ORIGIN/../..:$$ORIGIN/../../gpusim' -ldl -lpthread -lm
UNIT_TESTS += $(STEP_TESTS)

# Kernels as PTX: those of the demo program, and variants that calibration or the proof must notice.
STEP_E2E := $(B)/tests/e2e
STEP_PTX := $(addprefix $(STEP_E2E)/,3336_double-adamw.ptx 25544_float-adam.ptx 25544_float-adamw.ptx slot-adam.ptx sly-adamw.ptx \
  power-adamw.ptx old-adam.ptx)
STEP_NVCC := $(NVCC) -std=c++17 -ptx -arch=compute_80

STEP_PROGRAMS := $(addprefix $(STEP_E2E)/,step_program ahead_program policy_program)
$(STEP_PROGRAMS): $(STEP_E2E)/%: tests/e2e/%.c tests/e2e/adam_numbers.h tests/e2e/adam_program.h tests/e2e/adam_list.h | $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) $< -o $@ -L$(B)/gpusim -l:libcuda.so.1 -lpthread -ldl

$(STEP_E2E)/slot-%.ptx: VARIANT := -DVARIANT_SLOT
$(STEP_E2E)/sly-%.ptx: VARIANT := -DVARIANT_SLY_STEP=10
$(STEP_E2E)/power-%.ptx: VARIANT := -DVARIANT_POWER_ULP
$(STEP_E2E)/old-%.ptx: VARIANT := -DVARIANT_OLD -DVARIANT_SCALARS=double
define STEP_VARIANT
$$(STEP_E2E)/$(1)-adam.ptx $$(STEP_E2E)/$(1)-adamw.ptx: $$(STEP_E2E)/$(1)-%.ptx: tests/e2e/kernels/fused_%_impl.cu tests/e2e/kernels/variant.cuh
	@mkdir -p $$(@D)
	$$(STEP_NVCC) $$(VARIANT) -o $$@ $$<
endef
define STEP_CHARLM
$$(STEP_E2E)/$(1)-adam.ptx $$(STEP_E2E)/$(1)-adamw.ptx: $$(STEP_E2E)/$(1)-%.ptx: integration/charlm/kernels/$(1)/fused_%_impl.cu $$(wildcard integration/charlm/kernels/*.cuh)
	@mkdir -p $$(@D)
	$$(STEP_NVCC) -I integration/charlm -o $$@ $$<
endef
$(foreach variant,slot sly power old,$(eval $(call STEP_VARIANT,$(variant))))
$(foreach variant,3336_double 25544_float,$(eval $(call STEP_CHARLM,$(variant))))

# Every type, with and without amsgrad, of every release's names, arguments and tensor lists.
define STEP_TYPED
$$(STEP_E2E)/typed-$(1)-%.ptx: tests/e2e/kernels/typed/fused_%_impl.cu tests/e2e/kernels/typed/typed.cuh
	@mkdir -p $$(@D)
	$$(STEP_NVCC) -DTYPED_RELEASE=$(1) -o $$@ $$<
STEP_PTX += $$(patsubst %,$$(STEP_E2E)/typed-$(1)-%.ptx,adam adamw adam_amsgrad adamw_amsgrad)
endef
$(foreach release,20 21 23 212,$(eval $(call STEP_TYPED,$(release))))

# The same with the arithmetic of PyTorch's builds: names of one release, arithmetic of the same or another, and what differs.
define STEP_EXACT
$$(STEP_E2E)/exact-$(1)-%.ptx: tests/e2e/kernels/typed/fused_%_impl.cu tests/e2e/kernels/typed/typed.cuh tests/e2e/kernels/typed/exact.cuh
	@mkdir -p $$(@D)
	$$(STEP_NVCC) -DTYPED_RELEASE=$(2) -DTYPED_EXACT=$(3) $(4) -o $$@ $$<
STEP_PTX += $$(patsubst %,$$(STEP_E2E)/exact-$(1)-%.ptx,$(5))
endef
STEP_OPTIMIZERS := adam adamw adam_amsgrad adamw_amsgrad
$(eval $(call STEP_EXACT,20,20,20,,$(STEP_OPTIMIZERS)))
$(eval $(call STEP_EXACT,21,21,20,,$(STEP_OPTIMIZERS)))
$(eval $(call STEP_EXACT,23,23,23,,$(STEP_OPTIMIZERS)))
$(eval $(call STEP_EXACT,211,23,211,,$(STEP_OPTIMIZERS)))
$(eval $(call STEP_EXACT,212,212,211,,$(STEP_OPTIMIZERS)))
$(eval $(call STEP_EXACT,slots,212,211,-DTYPED_SLOTS,adam adam_amsgrad))
$(eval $(call STEP_EXACT,slots_211,23,211,-DTYPED_SLOTS,adam))
# Variants of each family that nobody has: step_program's wrong=.
$(eval $(call STEP_EXACT,20_wrong,20,20,-DTYPED_WRONG,adam adamw_amsgrad))
$(eval $(call STEP_EXACT,23_wrong,23,23,-DTYPED_WRONG,$(STEP_OPTIMIZERS)))
$(eval $(call STEP_EXACT,212_wrong,212,211,-DTYPED_WRONG,$(STEP_OPTIMIZERS)))

test-programs: $(STEP_PROGRAMS) $(STEP_PTX)

# What kernels take, read from images of each kind that nvcc writes (facts of its options: each test asserts what it got).
IMAGES := $(B)/tests/unit/images
IMAGE_FATBIN := $(addprefix $(IMAGES)/,images_plain.fatbin images_lz4.fatbin images_default.fatbin images_zstd.fatbin)
IMAGE_FILES := $(IMAGE_FATBIN) $(IMAGES)/images.cubin $(IMAGES)/images.ptx
IMAGE_NVCC := $(NVCC) -std=c++17 -Xcompiler -fPIC
$(IMAGES)/images_plain.fatbin: IMAGE_MODE := --no-compress
$(IMAGES)/images_lz4.fatbin: IMAGE_MODE := --compress-mode=speed -Xfatbin -compress-all
$(IMAGES)/images_zstd.fatbin: IMAGE_MODE := --compress-mode=size
$(IMAGE_FATBIN): tests/unit/data/images.cu tests/unit/data/images.h
	@mkdir -p $(@D)
	$(IMAGE_NVCC) -fatbin -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90] $(IMAGE_MODE) -o $@ $<
$(IMAGES)/images.cubin: tests/unit/data/images.cu tests/unit/data/images.h
	@mkdir -p $(@D)
	$(IMAGE_NVCC) -cubin -arch=sm_90 -o $@ $<
$(IMAGES)/images.ptx: tests/unit/data/images.cu tests/unit/data/images.h
	@mkdir -p $(@D)
	$(IMAGE_NVCC) -ptx -arch=compute_90 -o $@ $<
$(B)/tests/unit/shim_image: tests/unit/shim_image.c tests/lib/tap.h $(STEP_IMAGE) $(SHIM_HDR) $(IMAGE_FILES) $(STEP_PTX) | $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) -DIMAGES_FOLDER='"$(abspath $(IMAGES))"' -DKERNELS_FOLDER='"$(abspath $(STEP_E2E))"' $< $(STEP_IMAGE) -o $@ \
	  -L$(B)/gpusim -l:libcuda.so.1 -Wl,-rpath,'$$ORIGIN/../../gpusim' -ldl -lpthread
UNIT_TESTS += $(B)/tests/unit/shim_image

# An optimizer of unknown name: tests/e2e/unknown.bats.
$(STEP_E2E)/unknown: tests/e2e/unknown/unknown.c tests/e2e/unknown/unknown.h
$(STEP_E2E)/unknown_threads: tests/e2e/unknown/threads.c
$(STEP_E2E)/unknown $(STEP_E2E)/unknown_threads: tests/e2e/adam_program.h tests/e2e/adam_list.h | $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) $(filter %.c,$^) -o $@ -L$(B)/gpusim -l:libcuda.so.1 -lpthread
$(STEP_E2E)/unknown.ptx: tests/e2e/unknown/unknown.cu tests/e2e/unknown/unknown.h
	@mkdir -p $(@D)
	$(STEP_NVCC) -I. -o $@ $<
test-programs: $(STEP_E2E)/unknown $(STEP_E2E)/unknown_threads $(STEP_E2E)/unknown.ptx

# State that is touched between two steps: tests/e2e/early.bats.
$(STEP_E2E)/early: tests/e2e/early/early.c tests/e2e/adam_program.h tests/e2e/adam_list.h | $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) $< -o $@ -L$(B)/gpusim -l:libcuda.so.1
$(STEP_E2E)/touch.ptx: tests/e2e/early/touch.cu
	@mkdir -p $(@D)
	$(STEP_NVCC) -o $@ $<
test-programs: $(STEP_E2E)/early $(STEP_E2E)/touch.ptx

# A fused Adam kernel as the images that tests/e2e/older_drivers.bats loads: of two architectures, packed and not.
OLDER_IMAGES := $(addprefix $(STEP_E2E)/images/,plain.fatbin lz4.fatbin zstd.fatbin)
$(STEP_E2E)/images/%.cubin: $(STEP_E2E)/25544_float-adamw.ptx
	@mkdir -p $(@D)
	'$(CUDA_HOME)/bin/ptxas' -arch=$* -o $@ $<
$(STEP_E2E)/images/plain.fatbin: OLDER_MODE :=
$(STEP_E2E)/images/lz4.fatbin: OLDER_MODE := --compress-all --compress-mode=speed
$(STEP_E2E)/images/zstd.fatbin: OLDER_MODE := --compress-all --compress-mode=size
$(OLDER_IMAGES): $(STEP_E2E)/images/sm_80.cubin $(STEP_E2E)/images/sm_90.cubin $(STEP_E2E)/25544_float-adamw.ptx
	'$(CUDA_HOME)/bin/fatbinary' -64 --create=$@ $(OLDER_MODE) --image3=kind=elf,sm=80,file=$(STEP_E2E)/images/sm_80.cubin \
	  --image3=kind=elf,sm=90,file=$(STEP_E2E)/images/sm_90.cubin --image3=kind=ptx,sm=80,file=$(STEP_E2E)/25544_float-adamw.ptx
test-programs: $(OLDER_IMAGES)

# What OFFLOAD_MODE=observe costs a program of launches.
bench: $(STEP_E2E)/policy_program $(STEP_E2E)/25544_float-adamw.ptx
BENCH_COMMANDS += "$(PYTHON) tests/bench_observe.py $(B)"
