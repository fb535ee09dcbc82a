# liboffload. `make help` lists the targets. Each folder lists its own sources and tests in its build.mk.
SHELL := /bin/bash
.DEFAULT_GOAL := all
B := build
CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
PYTHON ?= python3
# The PATH of a Debian user lacks these, where setcap, mkfs and losetup are.
export PATH := $(PATH):/usr/sbin:/sbin

# Blanks end a word for make, and blanks and colons one of LD_PRELOAD.
ifneq ($(words $(CURDIR))$(findstring :,$(CURDIR)),1)
$(error the path of this checkout ($(CURDIR)) has a blank or a colon; move it to one without)
endif

# The CUDA toolkit: only headers for the library itself; nvcc for the test programs. Without one, `make deps` fetches
# a pinned 13.0 from the Python index into build/toolkit.
CUDA_HOME ?= $(firstword $(wildcard $(CURDIR)/$(B)/toolkit/cuda /usr/local/cuda))
include deps.mk
NVCC := $(CUDA_HOME)/bin/nvcc
CUDA_INC := -isystem $(CUDA_HOME)/include

WARN := -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wvla -Werror
OPT ?= -O2 -g
# SAN=address,undefined or SAN=thread builds everything under build/<name> with that sanitizer.
comma := ,
ifdef SAN
B := build/san-$(subst $(comma),-,$(SAN))
SANFLAGS := -fsanitize=$(SAN) -fno-omit-frame-pointer
endif
CFLAGS_ALL := -std=gnu11 $(OPT) $(WARN) -fPIC -fvisibility=hidden -I. -I$(B)/gen $(SANFLAGS)
INSTALLED := $(B)/liboffload.so $(B)/liboffload-adam.so $(B)/offload $(B)/offload-probe
# It is compiled and linked with these; tests/check/symbols reads the results.
HARDEN_CFLAGS := -fstack-protector-strong
HARDEN := -Wl,-z,relro,-z,now,-z,noexecstack $(HARDEN_CFLAGS)

## help: this list
.PHONY: help
help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST) | awk -F': ' '{printf "  %-16s %s\n", $$1, $$2}' | sort

include $(wildcard shim/build.mk adam/build.mk policy/build.mk nvme/build.mk tests/gpusim/build.mk tests/build.mk \
  integration/build.mk integration/charlm/build.mk integration/pytorch/cublas/build.mk \
  integration/pytorch/nccl/build.mk integration/pytorch/build.mk integration/gpu/build.mk)
include check.mk

## all: the library, its companion, the program `offload`, the simulated GPU and the demo program
.PHONY: all
all: $(ALL)

## clean: remove everything that was built (the fetched toolkit stays; `make distclean` removes it too)
.PHONY: clean distclean
clean:
	@find build -mindepth 1 -maxdepth 1 ! -name toolkit ! -name downloads -exec rm -rf {} + 2>/dev/null || true
distclean:
	rm -rf build

PREFIX ?= /usr/local
## install: the library, its companion, the program `offload`, its man pages and completion under PREFIX (/usr/local)
.PHONY: install
install: $(INSTALLED) $(MANUALS)
	install -d $(foreach folder,lib bin include share/man/man1 share/man/man7 share/bash-completion/completions,'$(DESTDIR)$(PREFIX)/$(folder)')
	install -m 755 $(B)/liboffload.so $(B)/liboffload-adam.so $(B)/offload-probe '$(DESTDIR)$(PREFIX)/lib'
	install -m 755 $(B)/offload '$(DESTDIR)$(PREFIX)/bin'
	install -m 644 policy/offload.h '$(DESTDIR)$(PREFIX)/include'
	install -m 644 $(B)/man/offload.1 '$(DESTDIR)$(PREFIX)/share/man/man1'
	install -m 644 $(B)/man/liboffload.7 '$(DESTDIR)$(PREFIX)/share/man/man7'
	install -m 644 $(B)/man/offload.bash '$(DESTDIR)$(PREFIX)/share/bash-completion/completions/offload'
	@case '$(PREFIX)' in \
	  *[\ :]*) echo 'installed; LD_PRELOAD carries no blanks and colons: ln -s '\''$(PREFIX)/lib'\'' /tmp/offload and preload /tmp/offload/liboffload.so' ;; \
	  *) echo 'use it: LD_PRELOAD=$(PREFIX)/lib/liboffload.so PROGRAM, or: $(PREFIX)/bin/offload run -- PROGRAM' ;; esac
