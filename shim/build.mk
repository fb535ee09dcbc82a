# The preloaded object, its tests and its bench.
include shim/kernels.mk

SHIM_SRC := $(filter-out shim/bench_%.c,$(wildcard shim/*.c))
SHIM_OBJS := $(SHIM_SRC:%.c=$(B)/%.o)
SHIM_HDR := $(wildcard shim/*.h shim/*.def policy/*.h policy/*.def nvme/*.h adam/*.h) $(B)/gen/kernels_ptx.h
# Thread-local storage is a few bytes: initial-exec spares the call, and with it the need for the loader (musl has another).
# Frames are small, since the program's stacks may be.
SHIM_CFLAGS := $(CFLAGS_ALL) $(CUDA_INC) $(HARDEN_CFLAGS) -ftls-model=initial-exec $(if $(SAN),,-Wframe-larger-than=5120)

# dlsym is called before a sanitizer or the thread's canary is set up.
$(B)/shim/dlsym.o $(B)/shim/elf.o: SHIM_CFLAGS := $(filter-out -fsanitize=%,$(SHIM_CFLAGS)) -fno-stack-protector

$(B)/shim/%.o: shim/%.c $(SHIM_HDR) shim/build.mk Makefile
	@mkdir -p $(@D)
	$(CC) $(SHIM_CFLAGS) -c $< -o $@

# Linked as one object first, in which every function of shim/glibc.txt gets the version with which glibc first had it:
# newer default versions (2.34 moved libdl and libpthread into libc) would not load on 2.28.
GLIBC_ARM := $(filter aarch64%,$(shell $(CC) -dumpmachine))
$(B)/shim/versions.txt: shim/glibc.txt shim/build.mk
	@mkdir -p $(@D)
	awk '!/^#/ && NF { print $$1, $$1 "@" ("$(GLIBC_ARM)" ? "GLIBC_2.17" : "GLIBC_" $$2) }' $< > $@
$(B)/shim/exports.map: shim/exports.txt
	@mkdir -p $(@D)
	{ echo '{ global:'; sed 's/$$/;/' $<; echo 'local: *; };'; } > $@
# policy/build.mk and nvme/build.mk are read later, hence the second expansion.
.SECONDEXPANSION:
$(B)/shim/weak.txt: shim/weak.txt $(B)/shim/versions.txt
	@mkdir -p $(@D)
	awk 'NR == FNR { to[$$1] = $$2; next } !/^#/ && NF { print $$1; if ($$1 in to) print to[$$1] }' $(B)/shim/versions.txt $< > $@
$(B)/shim/whole.o: $(SHIM_OBJS) $$(POLICY_OBJS) $$(NVME_OBJS) $(B)/shim/versions.txt $(B)/shim/weak.txt
	$(CC) $(SANFLAGS) -nostdlib -r $(SHIM_OBJS) $(POLICY_OBJS) $(NVME_OBJS) $(LIBURING) -o $@.tmp
	objcopy $(if $(SAN),,--redefine-syms=$(B)/shim/versions.txt) --weaken-symbols=$(B)/shim/weak.txt $@.tmp $@ && rm $@.tmp

# libdl and libpthread are named although newer glibc has them inside libc: 2.28 has not. A sanitizer brings its own names.
SHIM_LIBS := -Wl,--push-state,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0 -Wl,--pop-state
$(B)/liboffload.so: $(B)/shim/whole.o $(B)/shim/exports.map
	$(CC) $(CFLAGS_ALL) -shared $(HARDEN) $(if $(SAN),,-Wl$(comma)-z$(comma)defs) -Wl,-soname,liboffload.so -Wl,-Bsymbolic-functions \
	  -Wl,--version-script=$(B)/shim/exports.map $< $(SHIM_LIBS) -o $@
ALL += $(B)/liboffload.so

# Programs and libraries of tests/e2e/interposition.bats.
IN := tests/e2e/interposition
IN_OUT := $(B)/test/interposition
IN_FLAGS := -std=gnu11 -g $(WARN) $(CUDA_INC)
IN_LINKED := $(addprefix $(IN_OUT)/,ways_in questions life)
IN_ALONE := $(addprefix $(IN_OUT)/,no_driver two_runtimes versioned)
IN_LIBRARIES := $(addprefix $(IN_OUT)/,libnext1.so libnext2.so libcudart.so.91 libcudart.so.92 libmodule1.so libmodule2.so liballocator.so \
  driver_with_versions/libcuda.so.1)
$(IN_LINKED): $(IN_OUT)/%: $(IN)/%.c $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(IN_FLAGS) $< -L$(B)/gpusim -l:libcuda.so.1 -Wl,--allow-shlib-undefined -o $@
$(IN_ALONE): $(IN_OUT)/%: $(IN)/%.c
	@mkdir -p $(@D)
	$(CC) $(IN_FLAGS) $< -ldl -o $@
$(IN_OUT)/next: $(IN)/next.c $(IN_OUT)/libnext1.so $(IN_OUT)/libnext2.so
	$(CC) $(IN_FLAGS) $< -L$(@D) -Wl,--no-as-needed -l:libnext1.so -l:libnext2.so -Wl,-rpath,'$$ORIGIN' -o $@
$(IN_OUT)/libnext%.so: $(IN)/next_library.c
	@mkdir -p $(@D)
	$(CC) $(IN_FLAGS) -O0 -fPIC -shared -DLEVEL=$* $< -ldl -o $@
$(IN_OUT)/libcudart.so.9%: $(IN)/runtime.c
	@mkdir -p $(@D)
	$(CC) $(IN_FLAGS) -O2 -fPIC -shared -DRUNTIME=$* $< -Wl,-soname,$(@F) -o $@
$(IN_OUT)/libmodule%.so: $(IN)/module.c $(IN_OUT)/libcudart.so.9%
	$(CC) $(IN_FLAGS) -O2 -fPIC -shared $< -L$(@D) -l:libcudart.so.9$* -Wl,-rpath,'$$ORIGIN' -o $@
$(IN_OUT)/liballocator.so: $(IN)/allocator.c
	@mkdir -p $(@D)
	$(CC) $(IN_FLAGS) -O0 -fPIC -shared $< -o $@
$(IN_OUT)/driver_with_versions/libcuda.so.1: $(IN)/versioned_driver.c $(IN)/versioned.map
	@mkdir -p $(@D)
	$(CC) $(IN_FLAGS) -fPIC -shared $< -Wl,-soname,libcuda.so.1 -Wl,--version-script=$(IN)/versioned.map -o $@
test-programs: $(IN_LINKED) $(IN_ALONE) $(IN_LIBRARIES) $(IN_OUT)/next

# What a hooked launch costs, on a driver of empty functions.
$(B)/launch-bench: $(B)/shim/bench_launch.o $(B)/shim/whole.o
	$(CC) $(CFLAGS_ALL) $^ $(SHIM_LIBS) -o $@
BENCHES += $(B)/launch-bench
ALL += $(B)/launch-bench

# What it costs to tell who asks for an allocation.
$(B)/caller-bench: $(B)/shim/bench_caller.o $(B)/shim/whole.o
	$(CC) $(CFLAGS_ALL) $^ $(SHIM_LIBS) -o $@
BENCHES += $(B)/caller-bench
ALL += $(B)/caller-bench

# Steps of state on drives, beside the same of state in memory (nvme/bench_nvme.py).
$(B)/drive-bench: $(B)/shim/bench_drive.o $(B)/shim/whole.o | $(B)/gpusim/libcuda.so.1 $(B)/liboffload-adam.so
	$(CC) $(CFLAGS_ALL) $^ -L$(B)/gpusim -l:libcuda.so.1 -Wl,-rpath,'$$ORIGIN/gpusim' $(SHIM_LIBS) -o $@
ALL += $(B)/drive-bench

# What the preload costs from outside: programs' start-up, and single calls on an empty driver.
BENCH := $(B)/bench
$(BENCH)/libcuda.so.1: shim/bench_driver.c shim/bench_answers.c shim/hooks.def shim/driver.h
	@mkdir -p $(@D)
	$(CC) $(SHIM_CFLAGS) -fno-builtin -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic $(filter %.c,$^) -o $@
$(BENCH)/calls: shim/bench_calls.c $(BENCH)/libcuda.so.1
	$(CC) $(SHIM_CFLAGS) $< -L$(BENCH) -l:libcuda.so.1 -ldl -o $@
$(BENCH)/hello: shim/bench_hello.cu
	@mkdir -p $(@D)
	$(NVCC) $(CHARLM_ARCH) -cudart shared -o $@ $<
$(BENCH)/preload: shim/bench_preload.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $< -o $@
PRELOAD_BENCH := $(addprefix $(BENCH)/,preload libcuda.so.1 calls hello)
ALL += $(PRELOAD_BENCH)
# The interpreter itself: what is called python3 may be a script.
BENCH_PYTHON = $(shell $(PYTHON) -c 'import sys; print(sys.executable)')
BENCH_COMMANDS += "$(BENCH)/preload $(abspath $(B))/liboffload.so $(BENCH_PYTHON) $(B)/gpusim $(BENCH)/hello $(BENCH) $(BENCH)/calls"

include tests/unit/memory.mk
include tests/unit/step.mk
include tests/e2e/environment/build.mk
include tests/e2e/reports/build.mk
include tests/e2e/nvtx/build.mk
include tests/e2e/foreign/foreign.mk
include tests/e2e/interposition/ways_in.mk
include tests/e2e/life/life.mk
include tests/e2e/measure/measure.mk
include tests/e2e/drive_kill/drive_kill.mk
