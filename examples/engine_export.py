"""From a simulated winner to the flags of an engine.

    python engine_export.py                      # about three seconds; in runs/engine_export/

Runs a small frontier, takes the lossless policy that holds the most at the SLO, and writes it as
vLLM's `--speculative-config` and as SGLang's flags, step table and calibration. What the engine
does otherwise than the policy that was simulated is said, not hidden.
"""

import json
from pathlib import Path

from specsim.study.exports import best_policy, export
from specsim.study.run import run_scenario

SCENARIO = "hello"
OUT = Path("runs/engine_export")
QUESTION = {
    "kind": "frontier",
    "concurrency": [8, 16, 32, 64],
    "slo_tok_s_user": [130],
    "headline_slo": 130,
    "baseline": "no_speculation",
}
CONTEXT = (
    612  # tokens of context that SGLang's step table is written for: prompt and half an output
)

if __name__ == "__main__":
    run = run_scenario(
        SCENARIO,
        overrides=[f"question={json.dumps(QUESTION)}", "stop.num_requests=200"],
        out=OUT,
    )
    winner = best_policy(run.summary)
    print(f"{winner} holds the most at {QUESTION['headline_slo']} tok/s a user\n")

    for engine in ("vllm", "sglang"):
        made = export(run.directory, f"{engine}-policy", policy=winner, context_tokens=CONTEXT)
        folder = OUT / engine
        folder.mkdir(exist_ok=True)
        for name, content in made.files.items():
            (folder / name).write_text(content)
        print(f"{engine}: {', '.join(made.files)} in {folder}")
        for flag in made.flags:
            print(f"  {flag}")
        for note in made.notes:
            print(f"  beware: {note}")
        print()
