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
	@sed 's/^\.version .*/.version 6.5/' $@.tmp >$@.ptx && $(CUDA_HOME)/bin/ptxas -arch=$(GPU_PTXAS_ARCH) -o /dev/null $@.ptx
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
