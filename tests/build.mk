# Running the tests. Each folder's build.mk adds its C programs to UNIT_TESTS; tests/e2e/*.bats and
# tests/pytorch/test_*.py are found by name.

E2E_TESTS := $(sort $(wildcard tests/e2e/*.bats))
PYTORCH_TESTS := tests/pytorch/self_test.py $(sort $(wildcard tests/pytorch/test_*.py))
TAP := OFFLOAD_TEST_BUILD=$(abspath $(B)) $(PYTHON) tests/tap.py --out $(B)/test

UNIT_TESTS += tests/unit/test_runner

# Folders included after this file add tests too, hence the second expansion.
.SECONDEXPANSION:
.PHONY: test-programs
test-programs: all $$(UNIT_TESTS)

# Dependencies first and in a make of their own: a toolkit fetched by them changes what the rest is built with. With -k
# the rest is still tested when something can't be built; tap.py counts that as a failure.
TEST_NEEDS = test-programs
define run_tests
	@status=0; $(MAKE) --no-print-directory -k -j2 $(TEST_NEEDS) >$(B)/test-build.log 2>&1 || status=$$?; \
	  if [ $$status -ne 0 ]; then grep -E 'error:|Error [0-9]|ERROR|warning:|undefined reference|^pytorch: ' $(B)/test-build.log | head -n 40; fi; \
	  $(TAP) --build-status $$status
endef

## test: the unit tests and the end-to-end tests on the simulated GPU
## test-unit: the unit tests alone
## test-e2e: the end-to-end tests alone
## test-pytorch: real PyTorch on the simulated GPU, with and without the library, alone
.PHONY: test test-unit test-e2e test-pytorch
test: TEST_NEEDS := test-programs pytorch
test-pytorch: TEST_NEEDS := all pytorch
test: deps
	@mkdir -p $(B)
	$(run_tests) $(UNIT_TESTS) $(E2E_TESTS) $(PYTORCH_TESTS)
test-pytorch: deps
	@mkdir -p $(B)
	$(run_tests) $(PYTORCH_TESTS)
test-unit: deps
	@mkdir -p $(B)
	$(run_tests) $(UNIT_TESTS)
test-e2e: deps
	@mkdir -p $(B)
	$(run_tests) $(E2E_TESTS)

## test-mutants: break the code one rule at a time; the tests must notice every mutant (tests/mutants.def)
.PHONY: test-mutants
test-mutants: all test-programs
	$(PYTHON) tests/mutants.py

## test-sanitizers: the unit tests and one whole run under AddressSanitizer + UBSan and under ThreadSanitizer
.PHONY: test-sanitizers sanitized sanitized-unit
test-sanitizers: all
	bats tests/e2e/sanitizers.bats
# With SAN=...: what tests/e2e/sanitizers.bats needs, and the unit tests counted.
sanitized: $$(UNIT_TESTS) $$(TEST_FIXTURES) $(B)/liboffload.so $(B)/liboffload-adam.so $(B)/gpusim/run $(B)/gpusim/libcuda.so.1 \
  $(B)/gpusim/libcudart.so.13
# A process under ThreadSanitizer sleeps a second at its end unless told otherwise; some tests are many processes.
sanitized-unit:
	@TSAN_OPTIONS=halt_on_error=1:atexit_sleep_ms=0 $(TAP) $(UNIT_TESTS)

## test-releases: the tests of PyTorch with 2.11.0 and with the newest release on the index (deps/pytorch_releases.txt)
.PHONY: test-releases
test-releases: deps all
	OFFLOAD_TEST_BUILD=$(abspath $(B)) $(PYTHON) tests/pytorch/releases.py

## kernel-table: run every kernel of PyTorch's wheels by cpu and stream, and compare with the table in shim/README.md
.PHONY: kernel-table
kernel-table: test-programs
	OFFLOAD_TEST_BUILD=$(abspath $(B)) $(PYTHON) tests/kernel_table.py
	OFFLOAD_TEST_BUILD=$(abspath $(B)) $(PYTHON) tests/kernel_table.py --large

## test-long: all tests with more seeds, other releases of PyTorch, every mutant, and the static checks
.PHONY: test-long
test-long:
	$(MAKE) --no-print-directory bench-peers-build
	OFFLOAD_TEST_SEEDS="$$(seq -s ' ' 1 12)" OFFLOAD_TEST_KILLS=200 OFFLOAD_TEST_FLAT_STEPS=10000 TESTED_WHOLE=1 $(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory test-releases
	$(MAKE) --no-print-directory kernel-table
	$(MAKE) --no-print-directory predict
	$(MAKE) --no-print-directory test-mutants
	$(MAKE) --no-print-directory check

## predict: what the library foretells of steps against the simulated clock, for every machine, size and type of tests/predict.py
.PHONY: predict
predict: all test-programs
	$(PYTHON) tests/predict.py --build $(B) --out $(B)/predict.json

# Training steps on the simulated clock.
TRAIN_STEP := $(B)/tests/e2e/train_step
$(TRAIN_STEP): tests/e2e/train_step.c tests/e2e/adam_program.h tests/e2e/adam_list.h | $(B)/gpusim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CUDA_INC) $< -o $@ -L$(B)/gpusim -l:libcuda.so.1 -ldl
test-programs: $(TRAIN_STEP)

## sim-steps: exposed and hidden time of cpu, stream and direct on the clock's machines (build/sim_steps.json); README.md must have its table
## sim-steps-table: the same, and puts the table into README.md
.PHONY: sim-steps sim-steps-table
sim-steps sim-steps-table: deps
	@$(MAKE) --no-print-directory all $(TRAIN_STEP) $(B)/tests/e2e/exact-212-adamw.ptx >$(B)/sim-steps-build.log 2>&1 || \
	  { tail -n 20 $(B)/sim-steps-build.log; exit 1; }
	$(PYTHON) tests/sim_steps.py --build $(B) --out $(B)/sim_steps.json --$(if $(filter %-table,$@),write-table,table) README.md
