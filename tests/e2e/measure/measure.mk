# Programs of tests/e2e/measure.bats.
$(B)/test/measure/watcher: tests/e2e/measure/watcher.c | $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) $< -o $@ -L$(B)/gpusim -l:libcuda.so.1 -Wl,--allow-shlib-undefined
test-programs: $(B)/test/measure/watcher
