# Programs of tests/e2e/reports.bats.
REP := tests/e2e/reports
REP_OUT := $(B)/test/reports
REP_FLAGS := -std=gnu11 -g $(WARN) $(CUDA_INC)
$(REP_OUT)/libcuda.so.1: $(REP)/front_driver.c
	@mkdir -p $(@D)
	$(CC) $(REP_FLAGS) -fPIC -shared $< -Wl,-Bsymbolic -Wl,-soname,$(@F) -ldl -lpthread -o $@
$(REP_OUT)/libcuda_behind.so: $(REP)/behind_driver.c
	@mkdir -p $(@D)
	$(CC) $(REP_FLAGS) -fPIC -shared $< -Wl,-Bsymbolic -o $@
$(REP_OUT)/libnames1.so: $(REP)/names.c $(REP_OUT)/libnames2.so
	$(CC) $(REP_FLAGS) -fPIC -shared -DLEVEL=1 $< -L$(@D) -Wl,--no-as-needed -l:libnames2.so -Wl,-rpath,'$$ORIGIN' -ldl -o $@
$(REP_OUT)/libnames2.so: $(REP)/names.c
	@mkdir -p $(@D)
	$(CC) $(REP_FLAGS) -fPIC -shared -DLEVEL=2 $< -ldl -o $@
$(REP_OUT)/names_user: $(REP)/names_user.c $(REP_OUT)/libnames1.so
	$(CC) $(REP_FLAGS) $< -L$(@D) -l:libnames1.so -Wl,-rpath,'$$ORIGIN' -o $@
$(REP_OUT)/through_front: $(REP)/through_front.c
	@mkdir -p $(@D)
	$(CC) $(REP_FLAGS) $< -ldl -o $@
$(REP_OUT)/repeated: $(REP)/repeated.c
	@mkdir -p $(@D)
	$(CC) $(REP_FLAGS) -DPROGRAM $< -ldl -lpthread -o $@
$(REP_OUT)/librepeated.so: $(REP)/repeated.c
	@mkdir -p $(@D)
	$(CC) $(REP_FLAGS) -fPIC -shared $< -ldl -lpthread -o $@
$(REP_OUT)/calls: $(REP)/calls.c $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(REP_FLAGS) $< -L$(B)/gpusim -l:libcuda.so.1 -Wl,--allow-shlib-undefined -o $@
$(REP_OUT)/liblaunch_ex.so: $(REP)/launch_ex.c
	@mkdir -p $(@D)
	$(CC) $(REP_FLAGS) -fPIC -shared $< -o $@
REP_BUILT := $(addprefix $(REP_OUT)/,libcuda.so.1 libcuda_behind.so libnames1.so names_user through_front repeated librepeated.so calls liblaunch_ex.so)
test-programs: $(REP_BUILT)
