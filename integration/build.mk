# Programs run under the preload.

## demo: a program that runs out of device memory trains with the preload; table, and build/demo.json
.PHONY: demo
demo: deps
	@$(MAKE) --no-print-directory all
	$(PYTHON) integration/demo.py --build $(B) --cuda-libraries $(CUDA_HOME)/lib64
