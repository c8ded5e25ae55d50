"""Imitates torch_xla.runtime."""


def device_type():
    """Type of the device that was taken."""
    from torch_xla import PLATFORM

    return PLATFORM
