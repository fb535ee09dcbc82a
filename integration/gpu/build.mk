# The probes of the driver, and what `check.sh` is carried with to a machine that has a GPU and nothing else.
GPU := integration/gpu
GPU_PROBE_SOURCES := $(wildcard $(GPU)/probe/*.c)
GPU_PROBE_OBJECTS := $(GPU_PROBE_SOURCES:%.c=$(B)/%.o)
ALL += $(B)/gpu/gpu-probe

# PTX as a C string: kept by hand, and made of powers.cu. The latter's version is lowered to what it needs, so that
# drivers older than the toolkit take it; ptxas says whether that is true.
GPU_PTX_STRING = { echo '/* made from $< */'; echo 'static const char $(1)[] ='; \
  sed -e 's|//.*||' -e '/^[[:space:]]*$$/d' -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/    "/' -e 's/$$/\\n"/' $<; \
  echo '    ;'; } >$@.tmp && mv $@.tmp $@
GPU_PTXAS_ARCH := sm_75
$(B)/gen/gpu/kernels_ptx.h: $(GPU)/probe/kernels.ptx
	@mkdir -p $(@D)
	@$(CUDA_HOME)/bin/ptxas -arch=$(GPU_PTXAS_ARCH) -o /dev/null $<
	@$(call GPU_PTX_STRING,probe_kernels_ptx)
$(B)/gen/gpu/powers.ptx: $(GPU)/probe/powers.cu
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -ptx -arch=compute_75 -o $@.tmp $<
	@sed -e 's/^\.version .*/.version 6.5/' -e 's/^\.target .*/.target sm_70/' $@.tmp >$@.ptx && $(CUDA_HOME)/bin/ptxas -arch=$(GPU_PTXAS_ARCH) -o /dev/null $@.ptx
	@rm $@.tmp && mv $@.ptx $@
$(B)/gen/gpu/powers_ptx.h: $(B)/gen/gpu/powers.ptx
	@$(call GPU_PTX_STRING,probe_powers_ptx)

$(GPU_PROBE_OBJECTS): $(B)/gen/gpu/kernels_ptx.h $(B)/gen/gpu/powers_ptx.h
$(B)/$(GPU)/probe/%.o: $(GPU)/probe/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) -MMD -MP -c -o $@ $<
$(B)/gpu/gpu-probe: $(GPU_PROBE_OBJECTS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(HARDEN) -o $@ $^ -ldl -lpthread -lm
-include $(GPU_PROBE_OBJECTS:.o=.d)

# Everything that a machine without a toolkit needs, in one folder: programs, the library, the CUDA runtime; and, for use
# only where the machine lacks them, the compilers' libraries.
GPU_CARRIED := $(addprefix $(B)/gpu/,charlm liboffload.so liboffload-adam.so)
GPU_FALLBACKS := libstdc++.so.6 libgcc_s.so.1 libgomp.so.1
GPU_RUNTIME = $(firstword $(wildcard $(addprefix $(CUDA_HOME)/,lib64/libcudart.so.13 lib/libcudart.so.13 targets/*/lib/libcudart.so.13)))
$(GPU_CARRIED): $(B)/gpu/%: $(B)/%
	@mkdir -p $(@D)
	cp $< $@
$(B)/gpu/lib/libcudart.so.13:
	@mkdir -p $(@D)/fallback
	@test -n "$(GPU_RUNTIME)" || { echo 'no libcudart.so.13 under $(CUDA_HOME): make deps installs the CUDA runtime'; exit 1; }
	@for name in $(GPU_FALLBACKS); do cp -L "$$($(CC) -print-file-name=$$name)" $(@D)/fallback/ || exit 1; done
	cp -L $(GPU_RUNTIME) $@

## gpu-check-programs: build/gpu, the folder that integration/gpu/check.sh needs on a machine with a GPU
## gpu-check: ask this machine's GPU what the library relies on, and train with it (under 4 minutes)
.PHONY: gpu-check-programs gpu-check
gpu-check-programs: $(B)/gpu/gpu-probe $(GPU_CARRIED) $(B)/gpu/lib/libcudart.so.13
gpu-check: gpu-check-programs
	GPU_CHECK_PROGRAMS=$(B)/gpu OUT=$${OUT:-$(B)/gpu-check} $(GPU)/check.sh
test-programs: gpu-check-programs
