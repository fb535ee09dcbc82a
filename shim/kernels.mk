# Our GPU kernels: PTX kept by hand (shim/kernels.ptx) as a C array in $(B)/gen/kernels_ptx.h. Included by shim/build.mk.
$(B)/gen/kernels_ptx.h: shim/kernels.ptx shim/kernels.mk
	@mkdir -p $(@D)
	{ echo '/* made from shim/kernels.ptx */'; echo 'static const char kernels_ptx[] ='; \
	  sed -e 's|//.*||' -e '/^[[:space:]]*$$/d' -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/    "/' -e 's/$$/\\n"/' $<; \
	  echo '    ;'; } > $@.tmp && mv $@.tmp $@

## check-kernels: assemble our PTX for every architecture that the toolkit's ptxas knows
.PHONY: check-kernels
check-kernels:
	@for arch in $$($(CUDA_HOME)/bin/ptxas --help | grep -o 'sm_[0-9]\+' | sort -u); do \
	  $(CUDA_HOME)/bin/ptxas -arch=$$arch -o /dev/null shim/kernels.ptx && echo "$$arch: assembled" || exit 1; done
