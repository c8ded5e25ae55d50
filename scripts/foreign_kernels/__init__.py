"""What `check_foreign_kernels.py` needs: the dialects of public kernels, and the kernels that are known."""
