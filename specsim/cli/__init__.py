"""The command line: one verb a file, no logic.

Nothing heavy is imported here: each verb's module is loaded when the verb is used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError
from cyclopts.exceptions import UnusedCliTokensError

from specsim import __version__
from specsim.errors import InputError, MissingDependencyError, SpecsimError, nearest

VERBS: tuple[tuple[str, str, str], ...] = (
    ("run", "specsim.cli.run:run", "Run a scenario and answer its question."),
    (
        "check",
        "specsim.cli.check:check",
        "Say everything that is wrong with scenarios, studies, tables and traces.",
    ),
    ("init", "specsim.cli.init:init", "Write a scenario with comments, to be changed."),
    (
        "list",
        "specsim.cli.listing:listing",
        "List shipped scenarios, studies, profiles or schedulers.",
    ),
    ("sweep", "specsim.cli.sweep:sweep", "Run every point of a study; go on where it was killed."),
    ("pareto", "specsim.cli.pareto:pareto", "Draw throughput against the speed of one user."),
    (
        "capacity",
        "specsim.cli.capacity:capacity",
        "Find the largest load that holds an SLO.",
    ),
    (
        "compare",
        "specsim.cli.compare:compare",
        "Compare two stored runs or studies, with intervals.",
    ),
    ("tune", "specsim.cli.tune:tune", "Search a policy's parameters under an SLO."),
    ("import", "specsim.cli.import_:import_", "Read files of vLLM, SGLang, AIPerf and others."),
    (
        "export",
        "specsim.cli.export:export",
        "Write a run for another tool, or its policy for an engine.",
    ),
    ("report", "specsim.cli.report:report", "Draw a stored run or study as a page."),
    ("rerun", "specsim.cli.rerun:rerun", "Run a stored run again and compare the bytes."),
    ("validate", "specsim.cli.validate:validate", "Compare specsim with published measurements."),
    (
        "bench",
        "specsim.cli.bench:bench",
        "Time this machine: simulated tokens a second, and plans.",
    ),
    ("trace", "specsim.cli.trace:app", "Make and inspect acceptance traces."),
    ("lossless", "specsim.cli.lossless:app", "Prove or refute that a scheduler is lossless."),
    ("profile", "specsim.cli.profile:app", "Measure and convert step-cost tables."),
    ("completion", "specsim.cli.completion:completion", "Print completion for a shell."),
    ("schema", "specsim.cli.schema:schema", "Print the JSON schema of scenario files."),
)
"""Verb, where its code is, and what it does."""

_EXTRAS = {
    "torch": "drafter",
    "safetensors": "drafter",
    "gguf": "drafter",
    "tokenizers": "drafter",
    "transformers": "drafter",
    "huggingface_hub": "drafter",
    "distributed": "cluster",
    "dask": "cluster",
    "perfetto": "trace",
    "optuna": "tune",
}


FAULT = 70
"""Exit code of a fault of ours: EX_SOFTWARE of sysexits.h."""
_SHOWN_FRAMES = 8


def make_app() -> App:
    """Put the verbs together without importing any of them."""
    app = App(
        name="specsim",
        help="Which speculative-verification policy should a serving fleet run, and what does it "
        "buy?",
        version=__version__,
        help_format="plaintext",
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for sort_key, (name, target, text) in enumerate(VERBS):
        app.command(target, name=name, help=text, sort_key=sort_key)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: done. 1: a comparison or a point of a study that fails. 2: a mistake in what was given. 3: a
    scheduler that is not what it says it is. 70: a fault of specsim. 130: interrupted.

    Args:
        argv: arguments after the program's name; those of the process if None.
    """
    # A scheduler in the user's own file is imported from the working directory; last, so that no
    # file there can stand in for a library.
    with contextlib.suppress(FileNotFoundError):  # the folder we stand in has been removed
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        _refuse_unknown_verb(tokens)
        found = make_app()(tokens, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        return _mistake(_unreadable(error))
    except SpecsimError as error:
        return _mistake(error)
    except KeyboardInterrupt:
        _say("specsim: interrupted")
        return 130
    except BrokenPipeError:
        # The reader of our output is gone, as in `specsim list | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if _stdout_failed(error):
            return _mistake(InputError(f"the output cannot be written: {error}"))
        missing = _missing(error)
        if missing:
            return _mistake(missing)
        if isinstance(error, OSError) and error.filename is not None:
            return _mistake(InputError(f"{error.filename}: {error.strerror or error}"))
        return _fault()
    return found if isinstance(found, int) else 0


def _unreadable(error: CycloptsError) -> InputError:
    """Say what the parser could not make sense of, and whose help to read."""
    verb = " ".join(["specsim", *(error.command_chain or ())])
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        left = ", ".join(error.unused_tokens)
        return InputError(f"`{verb}` takes no more names: {left} is too many. See `{verb} --help`.")
    return InputError(f"{error} See `{verb} --help`.")


def _refuse_unknown_verb(tokens: Sequence[str]) -> None:
    # The parser would import every verb's module to find the nearest name.
    legal = [*(name for name, _, _ in VERBS), "--help", "-h", "--version"]
    if tokens and tokens[0] not in legal:
        close = nearest(tokens[0], legal)
        raise InputError(
            f'there is no command "{tokens[0]}"{"; " + close if close else ""} '
            f"(legal are {', '.join(legal)})"
        )


def _say(text: str) -> None:
    # What cannot be shown (half characters in a file's name) must not hide the rest.
    encoding = sys.stderr.encoding or "utf-8"
    sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def _mistake(error: SpecsimError) -> int:
    problems = getattr(error, "problems", ())
    lines = [str(problem) for problem in problems] or [str(error)]
    if len(lines) == 1:
        _say(f"specsim: error: {lines[0]}")
    else:
        _say(f"specsim: {len(lines)} errors")
        for line in lines:
            _say(f"  {line}")
    return 2


def _stdout_failed(error: Exception) -> bool:
    """Say whether an error is that of writing to where stdout goes: a full disk, or nowhere."""
    if sys.stdout is None:
        return isinstance(error, AttributeError)
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EBADF, errno.EIO):
        return False
    # Python writes what is left at exit, and would fail once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _missing(error: BaseException | None) -> MissingDependencyError | None:
    """Turn the absence of an optional package into what to install."""
    while error is not None:
        name = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
        if name in _EXTRAS:
            return MissingDependencyError(
                f'this needs the package "{name}", which is not installed; install '
                f'"specsim-serving[{_EXTRAS[name]}]"'
            )
        error = error.__cause__
    return None


def _fault() -> int:
    import platform
    import traceback

    # The innermost frames say where; the outermost are the parser's.
    python, system = platform.python_version(), platform.system()
    _say(traceback.format_exc(limit=-_SHOWN_FRAMES))
    _say(
        f"specsim: this is a fault of specsim {__version__} (Python {python}, {system}), not of "
        "what you gave it.\nPlease report it, as CONTRIBUTING.md says, with the lines above, the "
        "command, and the\nscenario or input files of it. What was finished before is kept."
    )
    return FAULT
