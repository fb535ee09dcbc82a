# Programs of tests/e2e/life.bats.
LIFE := tests/e2e/life
LIFE_OUT := $(B)/test/life
LIFE_PROGRAMS := $(addprefix $(LIFE_OUT)/,forks)
LIFE_HDR := $(LIFE)/life.h $(LIFE)/trainer.h tests/e2e/adam_list.h

$(LIFE_PROGRAMS): $(LIFE_OUT)/%: $(LIFE)/%.c $(LIFE)/trainer.c $(LIFE_HDR) | $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) $< $(LIFE)/trainer.c -o $@ -L$(B)/gpusim -l:libcuda.so.1 -Wl,--allow-shlib-undefined -ldl -lpthread
test-programs: $(LIFE_PROGRAMS)
