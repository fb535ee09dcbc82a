# Programs of tests/e2e/environment.bats. The one for musl and for 32 bits is compiled there.
ENV := tests/e2e/environment
ENV_OUT := $(B)/test/environment
ENV_FLAGS := -std=gnu11 -g $(WARN) $(CUDA_INC)
# Linked by the test, in whose folder its libraries are: privileged programs look nowhere else.
$(ENV_OUT)/secure.o: $(ENV)/secure.c
	@mkdir -p $(@D)
	$(CC) $(ENV_FLAGS) -c $< -o $@
$(ENV_OUT)/close_on_exec $(ENV_OUT)/redirect: $(ENV_OUT)/%: $(ENV)/%.c $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(ENV_FLAGS) $< -L$(B)/gpusim -l:libcuda.so.1 -Wl,--allow-shlib-undefined -o $@
$(ENV_OUT)/denied: $(ENV)/denied.c
	@mkdir -p $(@D)
	$(CC) $(ENV_FLAGS) $< -o $@
$(ENV_OUT)/files: $(ENV)/files.cu
	@mkdir -p $(@D)
	$(NVCC) $(CHARLM_ARCH) -cudart shared -o $@ $<
$(ENV_OUT)/liblong_value.so: $(ENV)/long_value.c
	@mkdir -p $(@D)
	$(CC) $(ENV_FLAGS) -fPIC -shared $< -o $@
test-programs: $(ENV_OUT)/secure.o $(ENV_OUT)/close_on_exec $(ENV_OUT)/redirect $(ENV_OUT)/denied $(ENV_OUT)/files $(ENV_OUT)/liblong_value.so
