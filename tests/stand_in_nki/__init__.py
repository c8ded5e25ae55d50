"""A stand-in for AWS's packages, for tests only: it lies outside dfmp2 and is put on the module
path by a fixture.

`packages/` holds imitations of nki, nrtpy and torch_xla as far as dfmp2 calls them. Their numbers
come from dfmp2's own interpreter, so a right result proves the launching and not the kernels. What
should go wrong is named in STAND_IN_NKI.
"""
