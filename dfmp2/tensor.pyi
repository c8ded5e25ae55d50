# `import dfmp2.tensor` is dfmp2/interop/tensor.py; type checkers look for it here.
from dfmp2.interop.tensor import *  # noqa: F403
