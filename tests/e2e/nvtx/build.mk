# The profiler's library of tests/e2e/nvtx.bats.
$(B)/test/nvtx/libinjection.so: tests/e2e/nvtx/injection.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -g $(WARN) $(CUDA_INC) -fPIC -shared -fvisibility=hidden $< -lpthread -o $@
test-programs: $(B)/test/nvtx/libinjection.so
