# Our GPU kernels: PTX kept by hand (shim/kernels.ptx) as a C array in $(B)/gen/kernels_ptx.h. Included by shim/build.mk.
$(B)/gen/kernels_ptx.h: shim/kernels.ptx shim/kernels.mk
	@mkdir -p $(@D)
	{ echo '/* made from shim/kernels.ptx */'; echo 'static const char kernels_ptx[] ='; \
	  sed -e 's|//.*||' -e '/^[[:space:]]*$$/d' -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/    "/' -e 's/$$/\\n"/' $<; \
	  echo '    ;'; } > $@.tmp && mv $@.tmp $@

## check-kernels: assemble our PTX for every architecture that the toolkit compiles for
# nvcc's list: ptxas's help also names architectures that it no longer knows.
.PHONY: check-kernels
check-kernels:
	@architectures=$$('$(NVCC)' --list-gpu-code | grep '^sm_'); \
	  [ -n "$$architectures" ] || { echo '$(NVCC) --list-gpu-code names no architecture: set CUDA_HOME to a CUDA toolkit'; exit 1; }; \
	  for arch in $$architectures; do \
	  '$(CUDA_HOME)/bin/ptxas' -arch=$$arch -o /dev/null shim/kernels.ptx && echo "$$arch: assembled" || exit 1; done
