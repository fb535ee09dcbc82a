# The preloaded object, its tests and its bench.
include shim/kernels.mk

SHIM_SRC := $(filter-out shim/bench_%.c,$(wildcard shim/*.c))
SHIM_OBJS := $(SHIM_SRC:%.c=$(B)/%.o)
SHIM_HDR := $(wildcard shim/*.h shim/*.def policy/*.h policy/*.def adam/*.h) $(B)/gen/kernels_ptx.h
SHIM_CFLAGS := $(CFLAGS_ALL) $(CUDA_INC) -fstack-protector-strong

# dlsym is called before a sanitizer or the thread's canary is set up.
$(B)/shim/dlsym.o $(B)/shim/elf.o: SHIM_CFLAGS := $(filter-out -fsanitize=%,$(SHIM_CFLAGS)) -fno-stack-protector

$(B)/shim/%.o: shim/%.c $(SHIM_HDR)
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
# policy/build.mk is read later, hence the second expansion.
.SECONDEXPANSION:
$(B)/shim/whole.o: $(SHIM_OBJS) $$(POLICY_OBJS) $(B)/shim/versions.txt
	$(CC) $(SANFLAGS) -nostdlib -r $(SHIM_OBJS) $(POLICY_OBJS) -o $@.tmp
	objcopy $(if $(SAN),,--redefine-syms=$(B)/shim/versions.txt) $@.tmp $@ && rm $@.tmp

# libdl and libpthread are named although newer glibc has them inside libc: 2.28 has not. A sanitizer brings its own names.
SHIM_LIBS := -Wl,--push-state,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0 -Wl,--pop-state
$(B)/liboffload.so: $(B)/shim/whole.o $(B)/shim/exports.map
	$(CC) $(CFLAGS_ALL) -shared $(HARDEN) $(if $(SAN),,-Wl$(comma)-z$(comma)defs) -Wl,-soname,liboffload.so -Wl,-Bsymbolic-functions \
	  -Wl,--version-script=$(B)/shim/exports.map $< $(SHIM_LIBS) -o $@
ALL += $(B)/liboffload.so

# What a hooked launch costs, on a driver of empty functions.
$(B)/launch-bench: $(B)/shim/bench_launch.o $(B)/shim/whole.o
	$(CC) $(CFLAGS_ALL) $^ $(SHIM_LIBS) -o $@
BENCHES += $(B)/launch-bench
ALL += $(B)/launch-bench
