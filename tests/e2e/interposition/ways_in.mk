# Programs and libraries of tests/e2e/ways_in.bats; included after those of interposition.bats.
WAYS_HDR := $(IN)/way.h $(B)/gpusim/libcuda.so.1
WAYS_LINKED := -L$(B)/gpusim -l:libcuda.so.1 -Wl,--allow-shlib-undefined
WAYS_ALONE := $(addprefix $(IN_OUT)/,way cold every_name in_turn finding unwinding)
WAYS_LIBRARIES := $(addprefix $(IN_OUT)/,libwaiting_library.so libinjection.so libhooker.so)
$(WAYS_ALONE): $(IN_OUT)/%: $(IN)/%.c $(WAYS_HDR)
	@mkdir -p $(@D)
	$(CC) $(IN_FLAGS) $< -ldl -lpthread -o $@
$(IN_OUT)/way_direct: $(IN)/way_direct.c $(WAYS_HDR)
	@mkdir -p $(@D)
	$(CC) $(IN_FLAGS) $< $(WAYS_LINKED) -o $@
$(IN_OUT)/way_per_thread: $(IN)/way_direct.c $(WAYS_HDR)
	@mkdir -p $(@D)
	$(CC) $(IN_FLAGS) -DCUDA_API_PER_THREAD_DEFAULT_STREAM $< $(WAYS_LINKED) -o $@
$(IN_OUT)/cold_direct: $(IN)/cold.c $(WAYS_HDR)
	@mkdir -p $(@D)
	$(CC) $(IN_FLAGS) -DDIRECT $< $(WAYS_LINKED) -ldl -lpthread -o $@
$(IN_OUT)/waiting: $(IN)/waiting.c $(WAYS_HDR)
	@mkdir -p $(@D)
	$(CC) $(IN_FLAGS) -rdynamic $< $(WAYS_LINKED) -ldl -o $@
$(IN_OUT)/libuses.so: $(IN)/way_direct.c $(WAYS_HDR)
	@mkdir -p $(@D)
	$(CC) $(IN_FLAGS) -fPIC -shared -DUSE=use $< $(WAYS_LINKED) -o $@
$(WAYS_LIBRARIES): $(IN_OUT)/lib%.so: $(IN)/%.c $(WAYS_HDR)
	@mkdir -p $(@D)
	$(CC) $(IN_FLAGS) -fPIC -shared $< -ldl -lpthread -o $@
# The same hooker, whose references to its own functions can't mean anybody else's.
$(IN_OUT)/libhooker_symbolic.so: $(IN)/hooker.c
	@mkdir -p $(@D)
	$(CC) $(IN_FLAGS) -fPIC -shared -Wl,-Bsymbolic $< -ldl -o $@

# Needs the unwinder's library, and finds an address with code of its own, which so runs while both are being opened.
$(IN_OUT)/libunwinding_library.so: $(IN)/unwinding_library.c
	@mkdir -p $(@D)
	$(CC) $(IN_FLAGS) -fPIC -fno-plt -shared $< -Wl,--no-as-needed -l:libgcc_s.so.1 -Wl,-z,now -o $@

# As nvcc compiles programs and libraries, with the simulated GPU's runtime: shared, static, for per-thread streams.
WAYS_NVCC := $(NVCC) -std=c++17 -O1 -gencode arch=compute_75,code=compute_75 -Xcompiler -Wall,-Wextra -Xcompiler \
  -Wno-unused-parameter
WAYS_PROGRAM := -DPROGRAM -DUSE=use_here
WAYS_STATIC := -L$(B)/gpusim -l:libcudart_static.a -ldl -lpthread $(foreach s,$(subst $(comma), ,$(SAN)),-Xcompiler -fsanitize=$(s))
WAYS_RUNTIME := $(addprefix $(IN_OUT)/,runtime_shared runtime_static runtime_per_thread runtime_waiting libruntime_shared.so libruntime_static.so)
$(WAYS_RUNTIME): $(IN)/runtime_way.cu $(B)/gpusim/libcudart.so.13 $(B)/gpusim/libcudart_static.a
	@mkdir -p $(@D)
	$(WAYS_NVCC) $(WAYS_HOW) $< -o $@ $(WAYS_END)
$(IN_OUT)/runtime_shared: WAYS_HOW := $(WAYS_PROGRAM) -cudart shared
$(IN_OUT)/runtime_per_thread: WAYS_HOW := $(WAYS_PROGRAM) -cudart shared --default-stream per-thread
$(IN_OUT)/runtime_waiting: WAYS_HOW := -DLATE -cudart shared -Xlinker --export-dynamic
$(IN_OUT)/runtime_static: WAYS_HOW := $(WAYS_PROGRAM) -cudart none
$(IN_OUT)/runtime_static: WAYS_END := $(WAYS_STATIC)
$(IN_OUT)/libruntime_shared.so: WAYS_HOW := -shared -Xcompiler -fPIC -cudart shared
$(IN_OUT)/libruntime_static.so: WAYS_HOW := -shared -Xcompiler -fPIC -cudart none
$(IN_OUT)/libruntime_static.so: WAYS_END := $(WAYS_STATIC) -Xlinker --exclude-libs,ALL
test-programs: $(WAYS_ALONE) $(WAYS_LIBRARIES) $(WAYS_RUNTIME) \
  $(addprefix $(IN_OUT)/,way_direct way_per_thread cold_direct waiting libuses.so libhooker_symbolic.so libunwinding_library.so)
