# What decides and reports. POLICY_OBJS is linked into liboffload.so by shim/build.mk; `offload` is the user's program.
POLICY_SRC := policy/config.c policy/budget.c policy/report.c policy/json.c
POLICY_OBJS := $(POLICY_SRC:%.c=$(B)/%.o)
POLICY_HDR := $(wildcard policy/*.h policy/*.def) adam/adam.h

$(B)/policy/%.o: policy/%.c $(POLICY_HDR)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -c $< -o $@

$(B)/offload: $(B)/policy/offload.o $(B)/policy/inspect.o $(B)/policy/config.o
	$(CC) $(CFLAGS_ALL) -pie $(HARDEN) $^ -o $@
ALL += $(B)/offload
