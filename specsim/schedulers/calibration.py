"""Online calibration of confidences: sequential temperature scaling, refitted while serving.

The head says c, the truth is about sigmoid(logit(c) / T_k) with a temperature T_k for each
position. `OnlineTemperatures` keeps, for each position, how often drafts in each bin of logits were
accepted, fades the past, and finds the T_k with the best log-likelihood, shrunk to the fit over all
positions. A draft counts only where it was judged: verified, with all drafts before it accepted.

Source: STS as in the DSpark paper; binned online form with 49 log-spaced temperatures in
[0.125, 8], decay and a pooled prior of weight 64 as in a vLLM branch (its issue 52053); scored by
likelihood here, by calibration error there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specsim.schedulers.base import FloatArray, IntArray

_BINS = 32
_REACH = 8.0
_TEMPERATURES = np.geomspace(0.125, 8.0, 49)
_TINY = 1e-12


def logit(confidence: FloatArray) -> NDArray[np.float64]:
    """Return log(c / (1 - c)); infinite at 0 and 1."""
    c = np.asarray(confidence, dtype=np.float64)
    with np.errstate(divide="ignore"):
        found: NDArray[np.float64] = np.log(c) - np.log1p(-c)
    return found


def scaled(confidence: FloatArray, temperature: FloatArray | float) -> NDArray[np.float64]:
    """Return sigmoid(logit(c) / T); 0 and 1 stay themselves."""
    z = logit(confidence) / temperature
    found: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-np.clip(z, -700, 700)))
    sure = np.asarray(confidence)
    return np.where(sure <= 0, 0.0, np.where(sure >= 1, 1.0, found))


def conditional(survival_RG: FloatArray) -> NDArray[np.float64]:
    """Return the confidences behind survivals: ratios along gamma, 0 where nothing survives."""
    a = np.asarray(survival_RG, dtype=np.float64)
    before = np.ones_like(a)
    before[:, 1:] = a[:, :-1]
    return np.divide(a, before, out=np.zeros_like(a), where=before > 0)


@dataclass(slots=True)
class OnlineTemperatures:
    """Temperatures by position, from judged drafts.

    Attributes:
        gamma: positions.
        memory: weight that the past keeps at each step.
        prior: judged drafts that the pooled fit counts as at each position.
        least: judged drafts below which everything stays as the head said.
    """

    gamma: int
    memory: float
    prior: float = 64.0
    least: float = 64.0
    temperature_G: NDArray[np.float64] = field(init=False)
    _judged_GV: NDArray[np.float64] = field(init=False)
    _accepted_GV: NDArray[np.float64] = field(init=False)
    _logit_GV: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.temperature_G = np.ones(self.gamma)
        self._judged_GV = np.zeros((self.gamma, _BINS))
        self._accepted_GV = np.zeros((self.gamma, _BINS))
        self._logit_GV = np.zeros((self.gamma, _BINS))

    def add(self, confidence_RG: FloatArray, verified_R: IntArray, accepted_R: IntArray) -> None:
        """Count one step's judged drafts.

        Args:
            confidence_RG: what the head said of them, `[R, gamma]`.
            verified_R: drafts verified of each request.
            accepted_R: drafts accepted of those.
        """
        for table_GV in (self._judged_GV, self._accepted_GV, self._logit_GV):
            table_GV *= self.memory
        position_G = np.arange(self.gamma)
        judged_RG = (position_G < verified_R[:, None]) & (position_G <= accepted_R[:, None])
        sure_RG = (np.asarray(confidence_RG) <= 0) | (np.asarray(confidence_RG) >= 1)
        row, k = np.nonzero(judged_RG & ~sure_RG)  # no temperature moves a 0 or a 1
        z = np.clip(logit(confidence_RG[row, k]), -_REACH, _REACH)
        v = np.minimum(((z + _REACH) / (2 * _REACH) * _BINS).astype(np.int64), _BINS - 1)
        np.add.at(self._judged_GV, (k, v), 1.0)
        np.add.at(self._accepted_GV, (k, v), (k < accepted_R[row]).astype(np.float64))
        np.add.at(self._logit_GV, (k, v), z)

    def refit(self) -> None:
        """Find the temperatures anew; the identity while too little was judged."""
        pooled = float(self._judged_GV.sum())
        if pooled < self.least:
            return
        loss_GT = np.stack([self._loss_T(k) for k in range(self.gamma)])
        share = self.prior / pooled
        best_G = np.argmin(loss_GT + share * loss_GT.sum(axis=0), axis=1)
        self.temperature_G = _TEMPERATURES[best_G]

    def _loss_T(self, k: int) -> NDArray[np.float64]:
        """Return minus the log-likelihood of position k at each temperature."""
        judged_V, accepted_V = self._judged_GV[k], self._accepted_GV[k]
        mean_V = self._logit_GV[k] / np.maximum(judged_V, _TINY)
        p_TV = 1 / (1 + np.exp(-mean_V / _TEMPERATURES[:, None]))
        p_TV = np.clip(p_TV, _TINY, 1 - _TINY)
        likelihood_TV = accepted_V * np.log(p_TV) + (judged_V - accepted_V) * np.log1p(-p_TV)
        loss_T: NDArray[np.float64] = -likelihood_TV.sum(axis=1)
        return loss_T
