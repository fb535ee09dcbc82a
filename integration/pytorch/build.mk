# Real PyTorch on the simulated GPU. Nothing of it is built by `make all`: `make pytorch` does, and what tests it.
# The environment is found or built by environment.py; what depends on sources of ours is in $(B)/pytorch/<release>.
PYTORCH_DIR := integration/pytorch
PYTORCH_RELEASE := $(or $(TORCH),$(shell sed -n 's/^torch==//p' deps/pytorch.txt))
PYTORCH := $(B)/pytorch/$(PYTORCH_RELEASE)
PYTORCH_ENVIRONMENT := $(PYTORCH)/environment

## pytorch: PyTorch for integration/pytorch/run (TORCH=2.11.0 for another release than the default)
.PHONY: pytorch pytorch-environment
pytorch: $(PYTORCH)/complete $(B)/gpusim/libcuda.so.1 $(B)/gpusim/libcudart.so.13
pytorch-environment:
	@$(PYTHON) $(PYTORCH_DIR)/environment.py --release '$(PYTORCH_RELEASE)' --link $(PYTORCH_ENVIRONMENT)
# Written when the link comes to point at another environment, whose files may be older than what was built.
$(PYTORCH_ENVIRONMENT).path: | pytorch-environment ;

# ---- libraries ----
# What has functions of ours in NVIDIA's libraries; the objects are built by folders of their own.
PYTORCH_OURS := libcublas libcublasLt libnccl
PYTORCH_OBJECTS_libcublas := $(CUBLAS_OBJECTS_libcublas)
PYTORCH_OBJECTS_libcublasLt := $(CUBLAS_OBJECTS_libcublasLt)
PYTORCH_OBJECTS_libnccl := $(NCCL_OBJECTS)
PYTORCH_CFLAGS := $(CFLAGS_ALL) -isystem $(PYTORCH_DIR)/include $(CUDA_INC) -MMD -MP

# Each library with functions of ours by itself, the others together.
PYTORCH_STUBS = $(PYTHON) $(PYTORCH_DIR)/stubs.py --cc $(CC) \
  $(PYTORCH_ENVIRONMENT)/lib/python*/site-packages/torch/lib $(@D)
PYTORCH_LIBRARIES := $(PYTORCH_OURS:%=$(PYTORCH)/libraries/made_%) $(PYTORCH)/libraries/made_stubs
define PYTORCH_LIBRARY
$$(PYTORCH)/libraries/made_$(1): $$(PYTORCH_OBJECTS_$(1)) $$(PYTORCH_DIR)/stubs.py $$(B)/gpusim/libcuda.so.1 \
    $$(PYTORCH_ENVIRONMENT).path
	@$$(PYTORCH_STUBS) --only $(1) $$(PYTORCH_OBJECTS_$(1):%=--object %) \
	  --link=-L$$(B)/gpusim --link=-l:libcuda.so.1 --link=-lm --link=-lpthread --link=-ldl --link=-lrt
	@touch $$@
endef
$(foreach l,$(PYTORCH_OURS),$(eval $(call PYTORCH_LIBRARY,$(l))))
$(PYTORCH)/libraries/made_stubs: $(PYTORCH_DIR)/stubs.py $(PYTORCH_ENVIRONMENT).path
	@$(PYTORCH_STUBS) $(PYTORCH_OURS:%=--not %)
	@touch $@
$(PYTORCH)/libraries/libnvidia-ml.so.1: $(PYTORCH_DIR)/libraries/nvml.c $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(PYTORCH_CFLAGS) $(HARDEN) -shared -Wl,-soname,$(@F) -o $@ $< -L$(B)/gpusim -l:libcuda.so.1

# What the fallback operators do on the device; it finds the driver as programs do.
PYTORCH_OPERATORS := $(PYTORCH_DIR)/fallback/operators.c \
  $(PYTORCH_DIR)/libraries/driver.c $(PYTORCH_DIR)/libraries/touch.c
$(PYTORCH)/libraries/libgpusim_operators.so: $(PYTORCH_OPERATORS) $(PYTORCH_DIR)/build.mk
	@mkdir -p $(@D)
	$(CC) $(filter-out -MMD -MP,$(PYTORCH_CFLAGS)) $(HARDEN) -shared -o $@ $(PYTORCH_OPERATORS) -ldl -lpthread

# ---- kernels ----
PYTORCH_PTX := $(patsubst $(PYTORCH_DIR)/kernels/%.cu,$(PYTORCH)/kernels/%.ptx,$(wildcard $(PYTORCH_DIR)/kernels/*.cu))
$(PYTORCH)/kernels/%.ptx: $(PYTORCH_DIR)/kernels/%.cu $(PYTORCH_DIR)/compile_kernels.py $(PYTORCH_ENVIRONMENT).path
	@$(PYTHON) $(PYTORCH_DIR)/compile_kernels.py --nvcc $(NVCC) --environment $(PYTORCH_ENVIRONMENT) \
	  --shims $(PYTORCH_DIR)/include $< $@

$(PYTORCH)/complete: $(PYTORCH_LIBRARIES) $(PYTORCH)/libraries/libnvidia-ml.so.1 \
    $(PYTORCH)/libraries/libgpusim_operators.so $(PYTORCH_PTX)
	@touch $@

# ---- bench ----
# Nothing is built for it: without the environment its row says so.
BENCH_COMMANDS += "$(PYTHON) $(PYTORCH_DIR)/bench_import.py $(B)/liboffload.so $(PYTORCH)"
