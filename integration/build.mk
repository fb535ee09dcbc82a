# Programs run under the preload.

## demo: a program that runs out of device memory trains with the preload; table, and build/demo.json
.PHONY: demo
demo: deps
	@$(MAKE) --no-print-directory all
	$(PYTHON) integration/demo.py --build $(B) --cuda-libraries $(CUDA_HOME)/lib64

## demo-pytorch: train_gpt.py in real PyTorch on the simulated GPU, without and with the preload; build/demo_pytorch.json
.PHONY: demo-pytorch
demo-pytorch: deps
	@$(MAKE) --no-print-directory all pytorch
	$(PYTHON) integration/demo_pytorch.py --build $(B)
