# Programs of tests/e2e/life.bats.
LIFE := tests/e2e/life
LIFE_OUT := $(B)/test/life
LIFE_PROGRAMS := $(addprefix $(LIFE_OUT)/,allocator forks threads ends contexts)
LIFE_HDR := $(LIFE)/life.h $(LIFE)/trainer.h tests/e2e/adam_list.h

$(LIFE_PROGRAMS): $(LIFE_OUT)/%: $(LIFE)/%.c $(LIFE)/trainer.c $(LIFE_HDR) | $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) $< $(LIFE)/trainer.c -o $@ -L$(B)/gpusim -l:libcuda.so.1 -Wl,--allow-shlib-undefined -ldl -lpthread
# For a program in another language; its caller is then the library.
$(LIFE_OUT)/libtrainer.so: $(LIFE)/trainer.c $(LIFE_HDR) | $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) -fvisibility=default -shared $< -o $@ -L$(B)/gpusim -l:libcuda.so.1
$(LIFE_OUT)/liblibrary.so: $(LIFE)/library.cu
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -shared -Xcompiler -fPIC -cudart shared -gencode arch=compute_90,code=[sm_90,compute_90] $< -o $@
test-programs: $(LIFE_PROGRAMS) $(LIFE_OUT)/libtrainer.so $(LIFE_OUT)/liblibrary.so
