# Included by the Makefile after CUDA_HOME: what a build needs, and the fetched toolkit where there is no other.

# Without nvcc there the variable names no toolkit, whoever set it.
CUDA_HOME_ASKED := $(CUDA_HOME)
ifeq ($(wildcard $(CUDA_HOME)/bin/nvcc),)
override CUDA_HOME := $(CURDIR)/build/toolkit/cuda
endif

## deps: install what is missing (deps/apt.txt; without a CUDA toolkit its compiler, deps/pip.txt)
.PHONY: deps
deps:
	@CUDA_HOME='$(CUDA_HOME_ASKED)' ./deps/install.sh
