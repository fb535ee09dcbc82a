# charlm, an ordinary CUDA program that knows nothing of the library: shared runtime, PTX embedded. It is built once,
# without sanitizers: those are for what is preloaded.
CHARLM_DIR := integration/charlm
CHARLM_B := build
CHARLM_KERNELS := $(shell sed -n 's/^KERNEL.\([a-z0-9_]*\),.*/\1/p' $(CHARLM_DIR)/kernels/kernels.def)
CHARLM_SOURCES := $(addprefix $(CHARLM_DIR)/,main.cc options.cc allocator.cc corpus.cc model.cu optimizer.cu \
  checkpoint.cc summary.cc kernels/fused_adam.cc) \
  $(foreach k,$(CHARLM_KERNELS),$(foreach m,adam adamw,$(CHARLM_DIR)/kernels/$(k)/fused_$(m)_impl.cu))
CHARLM_OBJECTS := $(CHARLM_SOURCES:%=$(CHARLM_B)/%.o)
# PTX serves every later GPU (and the simulated one); machine code spares the common ones the compilation.
CHARLM_ARCH ?= -gencode arch=compute_75,code=compute_75 -gencode arch=compute_80,code=sm_80 \
  -gencode arch=compute_90,code=sm_90
CHARLM_FLAGS := -std=c++17 -O2 -I$(CHARLM_DIR) $(CHARLM_ARCH) -Xcompiler -Wall,-Wextra

ALL += $(B)/charlm

$(CHARLM_B)/$(CHARLM_DIR)/%.o: $(CHARLM_DIR)/%
	@mkdir -p $(@D)
	$(NVCC) $(CHARLM_FLAGS) -MMD -MF $(@:.o=.d) -c -o $@ $<

$(CHARLM_B)/charlm: $(CHARLM_OBJECTS)
	$(NVCC) $(CHARLM_ARCH) -cudart shared -o $@ $^

-include $(CHARLM_OBJECTS:.o=.d)

# Arithmetic and launch loop of the kernels; tests/e2e/charlm.bats runs it on the simulated GPU.
CHARLM_TEST_OBJECTS := $(CHARLM_B)/test/charlm_adam.o $(filter $(CHARLM_B)/$(CHARLM_DIR)/kernels/%,$(CHARLM_OBJECTS))
ALL += $(B)/test/charlm_adam

$(CHARLM_B)/test/charlm_adam.o: tests/unit/charlm_adam.cu
	@mkdir -p $(@D)
	$(NVCC) $(CHARLM_FLAGS) -I. -Xcompiler -ffp-contract=off -MMD -MF $(@:.o=.d) -c -o $@ $<

$(CHARLM_B)/test/charlm_adam: $(CHARLM_TEST_OBJECTS)
	$(NVCC) $(CHARLM_ARCH) -cudart shared -o $@ $^

-include $(CHARLM_B)/test/charlm_adam.d

# The allocator's policy, with the runtime's allocation calls stood in for: needs no device.
UNIT_TESTS += $(B)/test/charlm_allocator

$(CHARLM_B)/test/charlm_allocator: tests/unit/charlm_allocator.cc $(CHARLM_DIR)/allocator.cc $(CHARLM_DIR)/allocator.h \
  $(CHARLM_DIR)/cuda_check.h tests/lib/tap.h
	@mkdir -p $(@D)
	$(NVCC) $(CHARLM_FLAGS) -I. -cudart none -o $@ $(filter %.cc,$^)

ifneq ($(B),$(CHARLM_B))
$(B)/charlm $(B)/test/charlm_adam $(B)/test/charlm_allocator: $(B)/%: $(CHARLM_B)/%
	@mkdir -p $(@D)
	cp $< $@
endif
