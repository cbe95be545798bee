"""How well a trace's confidences tell the truth: predicted against observed prefix survival."""

from __future__ import annotations

from typing import Any

import numpy as np

from specsim.acceptance.trace import DenseTrace

BINS = 20


def reliability(trace: DenseTrace, *, gamma: int) -> list[dict[str, Any]]:
    """Return one record a position k = 1..gamma, over all whole blocks of the trace.

    Each has `position`, `ece` (expected calibration error of a[k] against 1[accepted >= k], 20
    equal bins, as a fraction), `predicted` and `observed` means, and `bins`, a list of
    [mean predicted, share observed, share of the blocks] for bins that are not empty. Observations
    are as recorded: a tilted trace is judged after its tilt.

    Args:
        trace: the acceptance trace.
        gamma: positions wanted, at most the trace's.
    """
    whole_N = trace.whole_block_N()
    survival_NG = np.cumprod(trace.confidence_NG[whole_N, :gamma].astype(np.float64), axis=1)
    accepted_N = trace.num_accepted_N[whole_N]
    records = []
    for k in range(survival_NG.shape[1]):
        said_N, true_N = survival_NG[:, k], (accepted_N > k).astype(np.float64)
        bin_N = np.minimum((said_N * BINS).astype(np.int64), BINS - 1)
        count_b = np.bincount(bin_N, minlength=BINS).astype(np.float64)
        said_b = np.bincount(bin_N, weights=said_N, minlength=BINS)
        true_b = np.bincount(bin_N, weights=true_N, minlength=BINS)
        full_b = count_b > 0
        gap = np.abs(said_b[full_b] - true_b[full_b]).sum() / max(count_b.sum(), 1)
        records.append(
            {
                "position": k + 1,
                "ece": round(float(gap), 6),
                "predicted": round(float(said_N.mean()), 6),
                "observed": round(float(true_N.mean()), 6),
                "bins": [
                    [
                        round(float(said_b[b] / count_b[b]), 5),
                        round(float(true_b[b] / count_b[b]), 5),
                        round(float(count_b[b] / count_b.sum()), 5),
                    ]
                    for b in np.flatnonzero(full_b)
                ],
            }
        )
    return records
