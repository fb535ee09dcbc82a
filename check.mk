# `make check`: everything that can be said about the project without running it. Each check is one line; a failure says what
# to do. The scripts are in tests/check.
CHECK := $(B)/check
COMMITTED = $(shell git ls-files --cached -- $(1) 2>/dev/null)
ARM := $(filter aarch64%,$(shell $(CC) -dumpmachine))
# Files for another machine's instructions can't be read here.
C_FILES = $(filter-out $(if $(ARM),%_avx2.c %_avx512.c,%_neon.c),$(call COMMITTED,'*.c'))
FORMATTED = $(call COMMITTED,'*.c' '*.h' '*.cu' '*.cuh' '*.cc')
SHELL_FILES = $(shell git grep -lE '^\#!/(bin/sh|usr/bin/env bats|bin/bash)' -- . 2>/dev/null) $(call COMMITTED,'*.bash')

# Everything any C file needs to be read: instruction sets of adam's kernels, numbers that test libraries are built with.
READ_FLAGS := $(CFLAGS_ALL) -isystem integration/pytorch/include $(CUDA_INC) -Itests/gpusim -fopenmp -DLEVEL=1 -DRUNTIME=1 -DKERNEL_NAMES=__FILE__ -DIMAGES_FOLDER=__FILE__ -DKERNELS_FOLDER=__FILE__ \
  $(if $(ARM),,-mavx2 -mfma -mavx512f)

## check: compilers' warnings, formatting, static analysis, exported symbols, glibc versions, rules of the shim
.PHONY: check check-listed check-gcc check-clang check-objects check-format check-tidy check-cppcheck check-shell check-linked check-rules
check: check-listed
	@status=0; for part in gcc clang format shell linked rules cppcheck tidy; do \
	  $(MAKE) --no-print-directory -s check-$$part >$(CHECK)-$$part.log 2>&1 && sed -n '$$p' $(CHECK)-$$part.log \
	    || { status=1; echo "check-$$part FAILED:"; grep -v '^make' $(CHECK)-$$part.log | tail -n 40; }; done; exit $$status

# Without a list every check would be content with nothing.
check-listed:
	@[ '$(words $(C_FILES))' -gt 0 ] || \
	  { echo 'git lists no files here, so there is nothing to check: run it in a git checkout; in one of another user first'; \
	    echo "  git config --global --add safe.directory '$(CURDIR)'"; exit 1; }

# Built in full by gcc; by clang every object, in a folder of its own, and the tests' C files read. A loop that clang doesn't
# vectorise though gcc does is no fault of the code (-Wno-pass-failed).
check-gcc:
	@mkdir -p $(CHECK)
	@$(MAKE) --no-print-directory -s -j2 all
	@echo 'gcc: everything builds without a warning'
check-objects: $(SHIM_OBJS) $(POLICY_OBJS) $(OFFLOAD_SRC:%.c=$(B)/%.o) $(NVME_OBJS) $(ADAM_OBJS) $(GPUSIM_OBJECTS) $(GPUSIM_RUNTIME_OBJECTS) $(GPU_PROBE_OBJECTS) $(NCCL_OBJECTS) $(CUBLAS_OBJECTS)
check-clang: check-listed
	@$(MAKE) --no-print-directory -s -j2 CC=clang OPT='$(OPT) -Wno-pass-failed' B=$(CHECK)/clang CUDA_HOME=$(CUDA_HOME) check-objects
	@printf '%s\n' $(filter tests/%.c,$(C_FILES)) | \
	  xargs -P 2 -n 8 clang $(READ_FLAGS) -I$(CHECK)/clang/gen -fsyntax-only
	@echo 'clang: every C file compiles without a warning'

check-format: check-listed
	@clang-format --dry-run -Werror $(FORMATTED) || { echo 'run clang-format -i on these files'; exit 1; }
	@echo 'clang-format: $(words $(FORMATTED)) files'

check-tidy: check-listed
	@tests/check/tidy $(CHECK)/tidy $(READ_FLAGS) -- $(C_FILES)

check-cppcheck: check-listed
	@mkdir -p $(CHECK)/cppcheck
	@cppcheck --quiet -j 2 --cppcheck-build-dir=$(CHECK)/cppcheck --std=c11 --enable=warning,portability \
	  --suppressions-list=tests/check/cppcheck.txt --inline-suppr --error-exitcode=1 -I. $(C_FILES) || \
	  { echo 'mend the code, or suppress with the reason in tests/check/cppcheck.txt'; exit 1; }
	@echo 'cppcheck: $(words $(C_FILES)) files'

check-shell: check-listed
	@# SC2154, SC2034: names that `load` brings into a test file, or that a helper sets for it
	@shellcheck -S warning -e SC2154,SC2034 $(SHELL_FILES)
	@echo 'shellcheck: $(words $(SHELL_FILES)) files'

# What came out of the linker.
check-linked: $(INSTALLED)
	@tests/check/exports $(B)/liboffload.so shim/exports.txt && tests/check/exports $(B)/liboffload-adam.so tests/check/adam_exports.txt && \
	  tests/check/symbols $(INSTALLED) && tests/check/starts $(INSTALLED) && tests/check/dlsym $(B)/liboffload.so && \
	  echo 'linked: exports, glibc versions, hardening, start and the dlsym wrapper are as they should be'

check-rules: $(SHIM_HDR)
	@tests/check/locks $(CHECK)/ir $(READ_FLAGS) -- $(SHIM_SRC) $(POLICY_SRC) && $(PYTHON) tests/check/claims.py && \
	  $(PYTHON) tests/check/readme_tables.py && $(PYTHON) tests/kernel_table.py --check && \
	  $(PYTHON) tests/mutants.py --check && echo 'rules: locks, claims, READMEs, mutants'
