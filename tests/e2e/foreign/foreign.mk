# Programs of tests/e2e/foreign.bats and tests/e2e/capture.bats.
FOREIGN := tests/e2e/foreign
FOREIGN_OUT := $(B)/tests/e2e
FOREIGN_PROGRAMS := $(addprefix $(FOREIGN_OUT)/,capture)

$(FOREIGN_PROGRAMS): $(FOREIGN_OUT)/%: $(FOREIGN)/%.c $(FOREIGN)/trainer.c $(FOREIGN)/trainer.h | $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE $(CUDA_INC) $< $(FOREIGN)/trainer.c -o $@ -L$(B)/gpusim -l:libcuda.so.1 -ldl -lpthread

test-programs: $(FOREIGN_PROGRAMS)
