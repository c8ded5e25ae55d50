"""When the SCF builds exchange in float32: far from the end, never at it.

Float32 products leave noise of about 1e-4 Eh in the orbital gradient of a medium molecule and 1e-6 to
1e-5 Eh in the energy, which does no harm while the gradient is larger than that. Once it falls below
SINGLE_UNTIL, or an iteration gains too little, every further build is float64, and convergence is
judged between two float64 energies only, so that the converged state is that of a float64 SCF.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SINGLE_UNTIL = 1e-3  # Eh, norm of the orbital gradient
SINGLE_GAIN = (
    0.8  # of the best gradient so far: an iteration that leaves more has met the noise, or has trouble of its own
)
SINGLE_PATIENCE = 4  # iterations before that is asked: the first ones may go up and down
SINGLE_LEAST = 128  # basis functions from which float32 products save time


def uses_single(precision: str, nao: int) -> bool:
    """Whether a density-fitted SCF of this precision and number of basis functions begins in float32."""
    return precision != "fp64" and nao >= SINGLE_LEAST


class ExchangeSchedule:
    """Switches `fitted.single` from one SCF iteration to the next.

    Parameters
    ----------
    fitted : an object with the attribute `single` (dfmp2.reference.density_fitting)
    """

    def __init__(self, fitted: Any) -> None:
        self._fitted = fitted
        self._last_was_double = False
        self._gradients: list[float] = []
        fitted.single = True

    def converged(self, envs: dict[str, Any]) -> bool:
        """PySCF's own criterion, asked of two float64 energies in a row; called once per iteration."""
        double = not self._fitted.single
        both, self._last_was_double = double and self._last_was_double, double
        gradient = float(envs["norm_gorb"])
        self._observe(gradient)
        change = abs(float(envs["e_tot"]) - float(envs["last_hf_e"]))
        return both and change < envs["conv_tol"] and gradient < envs["conv_tol_grad"]

    def finish(self) -> None:
        """Float64 from here on."""
        self._fitted.single = False

    def state(self) -> dict[str, Any]:
        """What the next decisions depend on, as plain values."""
        return {"last_was_double": self._last_was_double, "gradients": list(self._gradients)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned; `fitted.single` is the caller's."""
        self._last_was_double = bool(state["last_was_double"])
        self._gradients = [float(gradient) for gradient in state["gradients"]]

    def _observe(self, gradient: float) -> None:
        self._gradients.append(gradient)
        stalled = len(self._gradients) > SINGLE_PATIENCE and gradient > SINGLE_GAIN * min(self._gradients[:-1])
        if gradient < SINGLE_UNTIL or stalled:
            self.finish()
