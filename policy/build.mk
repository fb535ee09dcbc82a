# What decides and reports. POLICY_OBJS is linked into liboffload.so by shim/build.mk; `offload` is the user's program.
POLICY_SRC := policy/config.c policy/nearest.c policy/size.c policy/groups.c policy/budget.c policy/cpus.c $(wildcard policy/report*.c) policy/json.c policy/leaf.c policy/out.c policy/sort.c policy/metrics.c policy/trace.c policy/rates.c
# What a step costs, and advice of it.
POLICY_SRC += policy/cost.c policy/decide.c
POLICY_SRC += policy/advice.c policy/words.c
POLICY_SRC += policy/rates_cache.c
# The ranks of a node.
NODE_SRC := policy/ranks.c policy/registry.c policy/registry_file.c policy/replicas.c policy/node.c policy/share.c
NODE_OBJS := $(NODE_SRC:%.c=$(B)/%.o)
POLICY_SRC += $(NODE_SRC)
POLICY_OBJS := $(POLICY_SRC:%.c=$(B)/%.o)
POLICY_HDR := $(wildcard policy/*.h policy/*.def nvme/*.h) adam/adam.h

$(B)/policy/%.o: policy/%.c $(POLICY_HDR) policy/build.mk Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(HARDEN_CFLAGS) -c $< -o $@

# The program: every policy/offload*.c, and of the rest what they call. OFFLOAD_LIBS: static libraries that its commands need, each said what for.
OFFLOAD_SRC := $(wildcard policy/offload*.c) policy/inspect.c policy/library.c policy/top_screen.c $(wildcard policy/page*.c)
OFFLOAD_SRC += $(wildcard policy/plan*.c)
# jansson reads reports and models' config.json.
OFFLOAD_LIBS := -l:libjansson.a
$(B)/policy/offload_check_driver.o: CFLAGS_ALL += $(CUDA_INC)
.SECONDEXPANSION:
$(B)/policy/offload.a: $(POLICY_OBJS) $$(NVME_OBJS)
	@rm -f $@
	ar rcs $@ $^
$(B)/offload: $(OFFLOAD_SRC:%.c=$(B)/%.o) $(B)/policy/offload.a
	$(CC) $(CFLAGS_ALL) -pie $(HARDEN) $^ $(OFFLOAD_LIBS) $(LIBURING) -lpthread -lm -ldl -o $@
ALL += $(B)/offload

# What measures the machine, beside the library, which starts it. It loads the driver by itself.
PROBE_SRC := $(wildcard policy/probe*.c)
$(B)/gen/probe_ptx.h: policy/probe.ptx
	@mkdir -p $(@D)
	{ echo '/* made from policy/probe.ptx */'; echo 'static const char probe_ptx[] ='; \
	  sed -e '/^[[:space:]]*$$/d' -e 's/"/\\"/g' -e 's/^/    "/' -e 's/$$/\\n"/' $<; echo '    ;'; } > $@.tmp && mv $@.tmp $@
$(PROBE_SRC:%.c=$(B)/%.o): CFLAGS_ALL += $(CUDA_INC)
$(B)/policy/probe_gpu.o: $(B)/gen/probe_ptx.h
$(B)/policy/probe_host.o: CFLAGS_ALL += -O3
$(B)/offload-probe: $(PROBE_SRC:%.c=$(B)/%.o) $(B)/policy/offload.a
	$(CC) $(CFLAGS_ALL) -pie $(HARDEN) $^ $(LIBURING) -lpthread -ldl -o $@
ALL += $(B)/offload-probe
PROBE_TEST := $(B)/test/policy_probe
$(PROBE_TEST): tests/unit/policy_probe.c tests/lib/tap.h $(B)/policy/probe_charge.o $(B)/policy/probe_host.o $(B)/policy/offload.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(filter-out %.h,$^) $(LIBURING) -lpthread -ldl -o $@
UNIT_TESTS += $(PROBE_TEST)

# The tests read recorded trees, the schema and the validator from the repository: they are run from its root.
POLICY_TESTS := policy_decide policy_config policy_budget policy_cpus policy_report policy_rates policy_ranks policy_registry policy_trace policy_leaf policy_report_line policy_report_memory policy_words
$(POLICY_TESTS:%=$(B)/test/%): $(B)/test/%: tests/unit/%.c tests/lib/tap.h $(POLICY_OBJS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $< $(POLICY_OBJS) -lpthread -lm -o $@
UNIT_TESTS += $(POLICY_TESTS:%=$(B)/test/%)

$(B)/test/policy_cost $(B)/test/policy_advice: $(B)/test/%: tests/unit/%.c tests/lib/tap.h $(POLICY_OBJS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $< $(POLICY_OBJS) -lpthread -lm -o $@
UNIT_TESTS += $(B)/test/policy_cost $(B)/test/policy_advice

# What the program alone has, tested without it.
SCREEN_OBJS := $(B)/policy/top_screen.o $(B)/policy/replicas.o $(B)/policy/words.o
$(B)/test/top_screen: tests/unit/top_screen.c tests/lib/tap.h $(SCREEN_OBJS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $< $(SCREEN_OBJS) -o $@
UNIT_TESTS += $(B)/test/top_screen

BENCH_COMMANDS += "$(PYTHON) policy/bench_record.py $(B) integration/charlm/text.txt"
## bench: measured figures in build/bench.json: the CPU step beside a triad, what the preload costs a program's start and each hooked call
# BENCHES: programs of the build, each printing a JSON object; BENCH_COMMANDS: command lines that do. Folders included later add to it, hence the second expansion.
.SECONDEXPANSION:
.PHONY: bench
bench: all $$(BENCHES)
	$(PYTHON) tests/bench.py $(B)/bench.json $(BENCHES) $(BENCH_COMMANDS)

## report-fixtures: write the reports that the tests of `offload report` read (tests/data/reports) from runs on the simulated GPU
.PHONY: report-fixtures
report-fixtures: all $(B)/charlm
	$(PYTHON) tests/report_fixtures.py --build $(B) --out tests/data/reports

# Man pages and the shell's completion, from what the program tells of itself. `make install` takes them.
MANUALS := $(addprefix $(B)/man/,offload.1 liboffload.7 offload.bash)
$(B)/man/made: $(B)/offload policy/gpus.def policy/optimizers.def $(wildcard policy/man/*)
	$(PYTHON) policy/man/make.py $(B)/offload $(@D)
	@touch $@
$(MANUALS): $(B)/man/made ;
ALL += $(MANUALS)

# A rank that `offload top` is shown.
$(B)/tests/e2e/shown_rank: tests/e2e/shown_rank.c $(POLICY_OBJS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $^ -lpthread -o $@
test-programs: $(B)/tests/e2e/shown_rank

## pictures: make the pictures of policy/README.md (policy/pictures) from runs on the simulated GPU; needs a headless browser
.PHONY: pictures
pictures: deps all $(B)/charlm
	$(PYTHON) policy/pictures.py --build $(B)
