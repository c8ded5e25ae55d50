"""Loaded by the fork server (`dfmp2.host.processes.start_server`), so that the workers of a pool have
their libraries at once."""

from contextlib import suppress

from dfmp2.errors import InputError
from dfmp2.execution.pool import load_libraries
from dfmp2.host.threads import set_environment

set_environment(1)  # each worker sets its own number for its calculations
with suppress(InputError):  # which each worker reports
    load_libraries()
