"""Sessions: conversations whose every turn carries the context of the turns before it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specsim.rng import stream
from specsim.workload.feed import Arrival, LengthPairs, Turn


def sessions(
    starts_s: Iterator[float],
    lengths: LengthPairs,
    *,
    mean_turns: float,
    mean_think_s: float,
    max_context_tokens: int,
    seed: int,
) -> Iterator[Arrival]:
    """Yield the first turn of each session, which carries the others.

    The number of turns is geometric (at least 1), think times are exponential. `lengths` says what
    each turn adds to the context and how much it is answered; a session ends before the turn that
    would pass `max_context_tokens`. All of a session is drawn when it starts, so that it is the
    same whatever the engine does.

    Args:
        starts_s: when sessions start, seconds.
        lengths: new prompt tokens and output tokens of turn after turn.
        mean_turns: at least 1.
        mean_think_s: seconds between an answer and the next turn, at least 0.
        max_context_tokens: longest prompt and answer together.
        seed: the scenario's.
    """
    rng = stream(seed, "sessions")
    for session, start_s in enumerate(starts_s):
        count = int(rng.geometric(1 / mean_turns))
        think_s = rng.exponential(mean_think_s, count) if mean_think_s else np.zeros(count)
        prompt_tokens, output_tokens = next(lengths)
        context = prompt_tokens + output_tokens
        then = []
        for k in range(1, count):
            new_tokens, answer = next(lengths)
            context += new_tokens + answer
            if context > max_context_tokens:
                break
            then.append(Turn(float(think_s[k]), new_tokens, answer))
        yield Arrival(start_s, prompt_tokens, output_tokens, session=session, then=tuple(then))
