# Unit tests of the memory rooms: the rooms, the report and the enqueue lock as they are linked into the library; the
# process is the test's. At the end, of reading loaded objects.
MEMORY_ROOMS := drive drive_move drive_serve range range_make graphs tier move drain touch touch_serve scan parameters unknown census pace state view amount pressure holdings lock \
  foreach elsewhere image image_parse image_lz4 image_cubin image_ptx elf
# Of policy what these call.
MEMORY_OBJS := $(MEMORY_ROOMS:%=$(B)/shim/%.o) $(B)/policy/offload.a
MEMORY_TESTS := $(B)/tests/unit/shim_drive $(B)/tests/unit/shim_range $(B)/tests/unit/shim_state $(B)/tests/unit/shim_pressure

$(MEMORY_TESTS): $(B)/tests/unit/%: tests/unit/%.c tests/unit/memory_support.c tests/unit/memory_support.h tests/unit/memory_frames.c tests/unit/memory_frames.h tests/unit/memory_failing.def \
  tests/lib/tap.h $(MEMORY_OBJS) $(SHIM_HDR) | $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) $< tests/unit/memory_support.c tests/unit/memory_frames.c $(MEMORY_OBJS) -o $@ -ldl -lpthread
UNIT_TESTS += $(MEMORY_TESTS)

# The drive tier is the test's own.
TOUCH_OBJS := $(filter-out $(B)/shim/drive%,$(MEMORY_OBJS))
$(B)/tests/unit/shim_touch: tests/unit/shim_touch.c tests/unit/memory_support.c tests/unit/memory_support.h tests/unit/memory_frames.c \
  tests/unit/memory_frames.h tests/unit/memory_failing.def tests/lib/tap.h $(MEMORY_OBJS) $(SHIM_HDR) | $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) $< tests/unit/memory_support.c tests/unit/memory_frames.c $(TOUCH_OBJS) -o $@ -ldl -lpthread
UNIT_TESTS += $(B)/tests/unit/shim_touch

$(B)/tests/unit/shim_elf: tests/unit/shim_elf.c $(B)/shim/elf.o shim/elf.h tests/lib/tap.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $< $(B)/shim/elf.o -o $@ -ldl
UNIT_TESTS += $(B)/tests/unit/shim_elf

# The wrappers of NCCL in a program, called by a library that needs an NCCL of the test's.
$(B)/tests/unit/libshim_nccl.so: tests/unit/shim_nccl_library.c integration/pytorch/nccl/nccl.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -fvisibility=default -shared -Wl,-soname,$(@F) $< -o $@
$(B)/tests/unit/libshim_nccl_user.so: tests/unit/shim_nccl_user.c $(B)/tests/unit/libshim_nccl.so
	$(CC) $(CFLAGS_ALL) -fvisibility=default -shared -Wl,-soname,$(@F) $< $(B)/tests/unit/libshim_nccl.so -Wl,-rpath,'$$ORIGIN' -o $@
$(B)/tests/unit/shim_nccl: tests/unit/shim_nccl.c $(B)/shim/nccl.o $(B)/shim/elf.o tests/lib/tap.h | $(B)/tests/unit/libshim_nccl_user.so
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) $< $(B)/shim/nccl.o $(B)/shim/elf.o -Wl,--export-dynamic -o $@ -ldl
UNIT_TESTS += $(B)/tests/unit/shim_nccl

# The drives' wear alone: store, drives and settings are the test's.
WEAR_OBJS := $(B)/shim/wear.o $(B)/nvme/endurance.o $(B)/nvme/endurance_smart.o $(B)/nvme/endurance_run.o
$(B)/tests/unit/shim_wear: tests/unit/shim_wear.c tests/lib/tap.h $(WEAR_OBJS) $(MEMORY_OBJS) $(B)/policy/budget.o $(SHIM_HDR) nvme/endurance.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) $< $(WEAR_OBJS) $(B)/policy/offload.a -Wl,--wrap=drive_health -o $@ -lpthread
UNIT_TESTS += $(B)/tests/unit/shim_wear

# Frames, on a store of the test's or the real one: the linker sends the calls of the store to tests/unit/frames_fake.c.
FRAMES_OBJS := $(addprefix $(B)/shim/,wear.o frames.o frames_life.o frames_memory.o frames_ticket.o keeper.o)
FRAMES_WRAPPED := open forked release read write allocate
FRAMES_TESTS := $(addprefix $(B)/tests/unit/,shim_frames shim_frames_life shim_frames_walk)
$(FRAMES_TESTS): $(B)/tests/unit/%: tests/unit/%.c tests/unit/frames_fake.c tests/unit/frames_fake.h tests/unit/frames_support.h tests/unit/memory_support.c \
  tests/unit/memory_support.h tests/unit/memory_failing.def tests/lib/tap.h $(FRAMES_OBJS) $(MEMORY_OBJS) $$(NVME_OBJS) $(SHIM_HDR) | $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) $(filter %.c %.o,$^) $(B)/policy/offload.a -o $@ $(FRAMES_WRAPPED:%=-Wl,--wrap=store_%) $(LIBURING) -ldl -lpthread
UNIT_TESTS += $(FRAMES_TESTS)
