# Programs of tests/e2e/drive_kill.bats.
DRIVE_KILL := tests/e2e/drive_kill
DRIVE_KILL_OUT := $(B)/test/drive_kill

$(DRIVE_KILL_OUT)/libforker.so: $(DRIVE_KILL)/forker.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -shared $< -o $@ -lpthread
$(DRIVE_KILL_OUT)/flat: $(DRIVE_KILL)/flat.c $(LIFE)/trainer.c $(LIFE_HDR) | $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) $< $(LIFE)/trainer.c -o $@ -L$(B)/gpusim -l:libcuda.so.1 -Wl,--allow-shlib-undefined -ldl -lpthread
test-programs: $(DRIVE_KILL_OUT)/libforker.so $(DRIVE_KILL_OUT)/flat
