# The drive tier. NVME_OBJS is linked into liboffload.so by shim/build.mk, together with the static liburing (LIBURING).
NVME_SRC := $(filter-out nvme/bench.c nvme/bench_store.c,$(wildcard nvme/*.c))
NVME_OBJS := $(NVME_SRC:%.c=$(B)/%.o)
NVME_HDR := $(wildcard nvme/*.h nvme/*.def)
LIBURING := $(shell $(CC) -print-file-name=liburing.a)

$(B)/nvme/%.o: nvme/%.c $(NVME_HDR) nvme/build.mk Makefile
	@mkdir -p $(@D)
	$(CC) $(SHIM_CFLAGS) -c $< -o $@

# One file's engine, to be compared with fio.
$(B)/nvme-bench: $(B)/nvme/bench.o $(NVME_OBJS)
	$(CC) $(CFLAGS_ALL) -pie $(HARDEN) $^ $(LIBURING) -lpthread -o $@
ALL += $(B)/nvme-bench

# The store with and without checksums.
$(B)/nvme-store-bench: $(B)/nvme/bench_store.o $(NVME_OBJS)
	$(CC) $(CFLAGS_ALL) -pie $(HARDEN) $^ $(LIBURING) -lpthread -o $@
ALL += $(B)/nvme-store-bench

NVME_ENGINE_TESTS := $(B)/test/nvme_engine $(B)/test/nvme_refused
$(NVME_ENGINE_TESTS): $(B)/test/%: tests/unit/%.c tests/unit/nvme_support.h tests/lib/tap.h $(NVME_OBJS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $< $(NVME_OBJS) $(LIBURING) -lpthread -o $@
UNIT_TESTS += $(NVME_ENGINE_TESTS)

NVME_FILES_TEST := $(B)/test/nvme_files
$(NVME_FILES_TEST): tests/unit/nvme_files.c tests/unit/nvme_support.h tests/lib/tap.h $(B)/nvme/files.o
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $< $(B)/nvme/files.o -o $@
UNIT_TESTS += $(NVME_FILES_TEST)

# It answers these calls itself.
NVME_ANSWERED := open unlink fallocate pwrite pread statx statfs ioctl
NVME_FILES_FAILING_TEST := $(B)/test/nvme_files_failing
$(NVME_FILES_FAILING_TEST): tests/unit/nvme_files_failing.c tests/unit/nvme_support.h tests/lib/tap.h $(B)/nvme/files.o
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $< $(B)/nvme/files.o $(NVME_ANSWERED:%=-Wl,--wrap=%) -o $@
UNIT_TESTS += $(NVME_FILES_FAILING_TEST)

NVME_FAULT_TEST := $(B)/test/nvme_fault
$(NVME_FAULT_TEST): tests/unit/nvme_fault.c tests/lib/tap.h $(B)/nvme/fault.o
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $< $(B)/nvme/fault.o -lpthread -o $@
UNIT_TESTS += $(NVME_FAULT_TEST)

# They see the store's insides; one makes mmap fail.
NVME_STORE_TESTS := $(B)/test/nvme_store $(B)/test/nvme_store_faults
$(NVME_STORE_TESTS): $(B)/test/%: tests/unit/%.c tests/unit/nvme_store.h tests/unit/nvme_support.h tests/lib/tap.h $(NVME_OBJS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $< $(NVME_OBJS) $(LIBURING) $(NVME_WRAP) -lpthread -o $@
$(B)/test/nvme_store_faults: NVME_WRAP := -Wl,--wrap=mmap
UNIT_TESTS += $(NVME_STORE_TESTS)

NVME_ENDURANCE_TEST := $(B)/test/nvme_endurance
$(NVME_ENDURANCE_TEST): tests/unit/nvme_endurance.c tests/lib/tap.h $(NVME_OBJS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $< $(NVME_OBJS) $(LIBURING) -lpthread -lm -o $@
UNIT_TESTS += $(NVME_ENDURANCE_TEST)

## bench-nvme: the engine beside fio, and a step of state on drives beside fio's and the CPU's time (build/bench_nvme.json); NVME_DIRECTORY= says where, NVME_STEP_BYTES= how much state
BENCH_NVME = $(PYTHON) nvme/bench_nvme.py --build $(B) $(if $(NVME_DIRECTORY),--directory $(NVME_DIRECTORY)) \
  $(if $(NVME_STEP_BYTES),--step-bytes $(NVME_STEP_BYTES))
.PHONY: bench-nvme
bench-nvme: $(B)/nvme-bench $(B)/drive-bench $(B)/nvme-store-bench $(B)/liboffload-adam.so
	$(BENCH_NVME) --out $(B)/bench_nvme.json
# Its short form is a part of `make bench`, under "nvme".
BENCH_COMMANDS += "$(BENCH_NVME) --short"
