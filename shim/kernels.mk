# Our GPU kernels: PTX kept by hand (shim/kernels.ptx, and shim/kernels_typed.ptx once a type), as one PTX and as a C array in
# $(B)/gen. Included by shim/build.mk.
$(B)/gen/kernels.ptx: shim/kernels.ptx shim/kernels_typed.ptx shim/kernels.mk
	@mkdir -p $(@D)
	$(CC) -E -P -x c -std=gnu11 -nostdinc $< > $@.tmp && mv $@.tmp $@
$(B)/gen/kernels_ptx.h: $(B)/gen/kernels.ptx
	{ echo '/* made from shim/kernels.ptx */'; echo 'static const char kernels_ptx[] ='; \
	  sed -e '/^[[:space:]]*$$/d' -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/    "/' -e 's/$$/\\n"/' $<; \
	  echo '    ;'; } > $@.tmp && mv $@.tmp $@

## check-kernels: assemble our PTX for every architecture that the toolkit compiles for
# nvcc's list: ptxas's help also names architectures that it no longer knows.
.PHONY: check-kernels
check-kernels: $(B)/gen/kernels.ptx
	@architectures=$$('$(NVCC)' --list-gpu-code | grep '^sm_'); \
	  [ -n "$$architectures" ] || { echo '$(NVCC) --list-gpu-code names no architecture: set CUDA_HOME to a CUDA toolkit'; exit 1; }; \
	  for arch in $$architectures; do \
	  '$(CUDA_HOME)/bin/ptxas' -arch=$$arch -o /dev/null $< && echo "$$arch: assembled" || exit 1; done
