"""Found by Python at its start through PYTHONPATH: has the fallback operators installed once a script imports torch.

Nothing happens in processes that don't, and none of it needs a device: the operators are registered with PyTorch's
dispatcher alone, so that children may still be forked.
"""

import importlib.abc
import importlib.machinery
import sys


class _AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torch as the others would and loads it with their loader, then installs."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        import gpusim_operators

        gpusim_operators.install()


sys.meta_path.insert(0, _AfterTorch())
