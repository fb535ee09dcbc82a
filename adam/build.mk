# The companion liboffload-adam.so, its twins for tests (of the first ABI, for a machine without vector code, and with a
# wrong step), its tests and its bench.
ADAM_CFLAGS := $(CFLAGS_ALL) $(HARDEN_CFLAGS) -fopenmp -ffp-contract=off
ADAM_SRC := adam/isa.c adam/team.c adam/threads.c adam/scalars.c adam/reference.c adam/kernels.c adam/reciprocal.c adam/kernels_scalar.c
ADAM_HDR := $(wildcard adam/*.h) adam/kernels.inc adam/combinations.def policy/version.h
ADAM_MACHINE := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
ifeq ($(ADAM_MACHINE),x86_64)
ADAM_SRC += adam/kernels_avx2.c adam/kernels_avx512.c
else ifeq ($(ADAM_MACHINE),aarch64)
ADAM_SRC += adam/kernels_neon.c
endif
ADAM_OBJS := $(ADAM_SRC:%.c=$(B)/%.o)
ADAM_LIBS := -fopenmp -lm -Wl,--push-state,--no-as-needed -l:libpthread.so.0 -Wl,--pop-state

# Each instruction set's flags for its own file and no other: the rest must run on every machine.
$(B)/adam/kernels_avx2.o: ADAM_CFLAGS += -mavx2 -mfma -mf16c
$(B)/adam/kernels_avx512.o: ADAM_CFLAGS += -mavx512f

$(B)/adam/%.o: adam/%.c $(ADAM_HDR) adam/build.mk Makefile
	@mkdir -p $(@D)
	$(CC) $(ADAM_CFLAGS) -c $< -o $@

# In the libraries, functions that newer glibc moved into libc get the version with which they first were (shim/build.mk says
# more); the unit tests link the object as it is, and stand before pthread_create.
$(B)/adam/threads_versioned.o: $(B)/adam/threads.o $(B)/shim/versions.txt
	objcopy $(if $(SAN),,--redefine-syms=$(B)/shim/versions.txt) $< $@
ADAM_LIBRARY_OBJS := $(ADAM_OBJS:%/threads.o=%/threads_versioned.o)

$(B)/liboffload-adam.so: $(ADAM_LIBRARY_OBJS) $(B)/adam/api.o
	$(CC) $(ADAM_CFLAGS) -shared $(HARDEN) -Wl,-soname,liboffload-adam.so -Wl,-Bsymbolic $^ $(ADAM_LIBS) -o $@
ALL += $(B)/liboffload-adam.so

$(B)/adam/api-other-abi.o: adam/api.c $(ADAM_HDR) adam/build.mk
	@mkdir -p $(@D)
	$(CC) $(ADAM_CFLAGS) -DOFFLOAD_ADAM_ABI_BUILT=1u -c $< -o $@
$(B)/adam/isa-plain.o: adam/isa.c $(ADAM_HDR) adam/build.mk
	@mkdir -p $(@D)
	$(CC) $(ADAM_CFLAGS) -DISA_PLAIN_MACHINE -c $< -o $@
$(B)/test/liboffload-adam-other-abi.so: $(ADAM_LIBRARY_OBJS) $(B)/adam/api-other-abi.o
$(B)/test/liboffload-adam-plain.so: $(filter-out $(B)/adam/isa.o,$(ADAM_LIBRARY_OBJS)) $(B)/adam/isa-plain.o $(B)/adam/api.o
ADAM_TWINS := $(addprefix $(B)/test/liboffload-adam-,other-abi.so plain.so)
$(ADAM_TWINS):
	@mkdir -p $(@D)
	$(CC) $(ADAM_CFLAGS) -shared $(HARDEN) -Wl,-soname,liboffload-adam.so -Wl,-Bsymbolic $^ $(ADAM_LIBS) -o $@

# One whose step is wrong where a test says (tests/e2e/verify.bats).
$(B)/test/liboffload-adam-wrong.so: tests/e2e/verify/wrong_adam.c adam/api.c $(ADAM_HDR) $(ADAM_LIBRARY_OBJS)
	@mkdir -p $(@D)
	$(CC) $(ADAM_CFLAGS) -shared $(HARDEN) -Wl,-soname,liboffload-adam.so -Wl,-Bsymbolic $< $(ADAM_LIBRARY_OBJS) $(ADAM_LIBS) -o $@
test-programs: $(B)/test/liboffload-adam-wrong.so

# Unit tests: some with the objects linked in, some with the library as the shim loads it.
ADAM_TESTS := adam_kernels adam_reference adam_choice adam_reciprocal adam_wheels adam_scalars adam_team
$(ADAM_TESTS:%=$(B)/test/%): $(B)/test/%: tests/unit/%.c tests/unit/adam_support.h tests/unit/adam_hostile.h tests/unit/adam_wheels.def tests/lib/tap.h $(ADAM_OBJS)
	@mkdir -p $(@D)
	$(CC) $(ADAM_CFLAGS) $< $(ADAM_OBJS) $(ADAM_LIBS) -o $@
UNIT_TESTS += $(ADAM_TESTS:%=$(B)/test/%)

$(B)/test/libforeign-gomp.so: tests/unit/foreign_gomp.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -shared $< -o $@
$(B)/test/adam_isolation: tests/unit/adam_isolation.c tests/lib/tap.h adam/adam.h | $(B)/liboffload-adam.so \
  $(B)/test/liboffload-adam-other-abi.so $(B)/test/libforeign-gomp.so
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $< -ldl -lm -o $@
UNIT_TESTS += $(B)/test/adam_isolation
test-programs: $(ADAM_TWINS)

# The bench loads the companion beside it; `make bench` (policy/build.mk) runs it.
$(B)/adam-bench: adam/bench.c adam/adam.h | $(B)/liboffload-adam.so
	$(CC) $(ADAM_CFLAGS) -O3 $< $(ADAM_LIBS) -ldl -o $@
BENCHES += $(B)/adam-bench
ALL += $(B)/adam-bench

# The peers: DeepSpeed's CPU Adam, built from its source package, and PyTorch's fused AdamW of the environment that
# integration/pytorch makes (with stand-ins for the NVIDIA libraries that it wants and nothing here calls).
BENCH_PEERS := $(B)/bench_peers
BENCH_PEERS_ARGUMENTS ?=
$(BENCH_PEERS)/libpeers.so: adam/bench_peers.c adam/adam.h
	@mkdir -p $(@D)
	$(CC) $(ADAM_CFLAGS) -O3 -shared $< $(ADAM_LIBS) -ldl -o $@

test-programs: $(BENCH_PEERS)/libpeers.so

## bench-peers: the CPU step beside DeepSpeed's and PyTorch's, in build/bench_peers.json (BENCH_PEERS_ARGUMENTS='--elements ...')
## bench-peers-build: only what it needs: DeepSpeed's CPU Adam from the package index
.PHONY: bench-peers bench-peers-build
bench-peers-build: BENCH_PEERS_ARGUMENTS := --build-only
bench-peers bench-peers-build: $(B)/liboffload-adam.so $(BENCH_PEERS)/libpeers.so $(B)/gpusim/libcuda.so.1 \
  $(B)/gpusim/libcudart.so.13 pytorch-environment
	@$(PYTHON) $(PYTORCH_DIR)/stubs.py --cc $(CC) $(PYTORCH_ENVIRONMENT)/lib/python*/site-packages/torch/lib \
	  $(BENCH_PEERS)/libraries
	@LD_LIBRARY_PATH=$(abspath $(BENCH_PEERS)/libraries):$(abspath $(B)/gpusim) PYTHONPYCACHEPREFIX=$(BENCH_PEERS)/pycache \
	  $(PYTORCH_ENVIRONMENT)/bin/python adam/bench_peers.py --companion $(abspath $(B)/liboffload-adam.so) \
	  --work $(abspath $(BENCH_PEERS)) --output $(B)/bench_peers.json $(BENCH_PEERS_ARGUMENTS)
