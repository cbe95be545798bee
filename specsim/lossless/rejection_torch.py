"""The torch twin of the token rule: same inputs, same uniforms, same result, on any device.

p = target law, q = draft law. torch is imported inside, when it is first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def verify_tokens_torch(
    draft_SG: Tensor,
    target_SGV: Tensor,
    draft_SGV: Tensor,
    verify_len_S: Tensor,
    accept_SG: Tensor,
    pick_S: Tensor,
) -> tuple[Tensor, Tensor]:
    """Verify many blocks by token-level rejection sampling (see `rejection.verify_tokens`).

    Args:
        draft_SG: drafted tokens, int64 `[S, G]`.
        target_SGV: p after the context and 0..G drafts, `[S or 1, G + 1, V]`.
        draft_SGV: q that each draft was drawn from, `[S or 1, G, V]`.
        verify_len_S: how many drafts of each block are verified, int64.
        accept_SG: uniforms for acceptance, `[S, G]`.
        pick_S: uniforms for the correction or bonus token, `[S]`.

    Returns:
        num_accepted_S and the correction or bonus token_S, int64.
    """
    import torch

    num_blocks, gamma = draft_SG.shape
    vocabulary = target_SGV.shape[-1]
    target_SGV = target_SGV.expand(num_blocks, gamma + 1, vocabulary)
    draft_SGV = draft_SGV.expand(num_blocks, gamma, vocabulary)
    index_SG1 = draft_SG.unsqueeze(-1)
    p_SG = target_SGV[:, :gamma].gather(-1, index_SG1).squeeze(-1)
    q_SG = draft_SGV.gather(-1, index_SG1).squeeze(-1)
    position_G = torch.arange(gamma, device=draft_SG.device)
    accepted_SG = (accept_SG * q_SG < p_SG) & (position_G < verify_len_S.unsqueeze(1))
    num_accepted_S = accepted_SG.long().cumprod(dim=1).sum(dim=1)
    rows_S = torch.arange(num_blocks, device=draft_SG.device)
    p_SV = target_SGV[rows_S, num_accepted_S]
    law_SV = p_SV
    if gamma:
        q_SV = draft_SGV[rows_S, num_accepted_S.clamp(max=gamma - 1)]
        left_SV = (p_SV - q_SV).clamp(min=0)
        use_left_S = (num_accepted_S < verify_len_S) & (left_SV.sum(dim=1) > 0)
        law_SV = torch.where(use_left_S.unsqueeze(1), left_SV, p_SV)
    cumulative_SV = law_SV.cumsum(dim=1)
    level_S = pick_S * cumulative_SV[:, -1]
    token_S = (cumulative_SV <= level_S.unsqueeze(1)).sum(dim=1)
    last_S = vocabulary - 1 - (law_SV.flip(1) > 0).long().argmax(dim=1)
    return num_accepted_S, torch.minimum(token_S, last_S)
