# Programs and libraries of tests/e2e/foreign.bats and tests/e2e/capture.bats.
FOREIGN := tests/e2e/foreign
FOREIGN_OUT := $(B)/tests/e2e
FOREIGN_PROGRAMS := $(addprefix $(FOREIGN_OUT)/,capture foreign)
FOREIGN_LIBRARIES := $(addprefix $(FOREIGN_OUT)/,libcollective_static.so libcollective_shared.so)

$(FOREIGN_PROGRAMS): $(FOREIGN_OUT)/%: $(FOREIGN)/%.c $(FOREIGN)/trainer.c $(FOREIGN)/trainer.h tests/e2e/adam_list.h | $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE $(CUDA_INC) $< $(FOREIGN)/trainer.c -o $@ -L$(B)/gpusim -l:libcuda.so.1 -ldl -lpthread

# The same library with a runtime of its own inside, and on the shared one.
$(FOREIGN_OUT)/libcollective_static.so: $(FOREIGN)/collective.c $(B)/gpusim/libcudart_static.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) -shared $< -o $@ $(B)/gpusim/libcudart_static.a -Wl,--exclude-libs,ALL -ldl -lpthread
$(FOREIGN_OUT)/libcollective_shared.so: $(FOREIGN)/collective.c | $(B)/gpusim/libcudart.so.13
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) -shared $< -o $@ -L$(B)/gpusim -l:libcudart.so.13

test-programs: $(FOREIGN_PROGRAMS) $(FOREIGN_LIBRARIES)
