# Unit tests of the step rooms, and the program and kernels of tests/e2e/step.bats.
STEP_REPORT := $(B)/policy/report.o $(B)/policy/json.o $(B)/policy/config.o
STEP_TESTS := $(addprefix $(B)/tests/unit/,shim_recognise shim_calibrate)

$(B)/tests/unit/shim_recognise: $(B)/shim/recognise.o $(B)/shim/arguments.o $(STEP_REPORT)
$(B)/tests/unit/shim_recognise: STEP_FLAGS := -DKERNEL_NAMES='"$(abspath tests/unit/data/torch_kernels.tsv)"'
$(B)/tests/unit/shim_calibrate: $(B)/shim/probe.o $(B)/liboffload-adam.so

$(STEP_TESTS): $(B)/tests/unit/%: tests/unit/%.c tests/lib/tap.h $(SHIM_HDR)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) $(STEP_FLAGS) $< $(filter %.o %.so,$^) -o $@ -Wl,-rpath,'$$ORIGIN/../..' -ldl -lpthread -lm
UNIT_TESTS += $(STEP_TESTS)
