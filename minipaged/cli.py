"""The command line: ``minipaged COMMAND``. Each command is a module of its own."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from minipaged import __version__
from minipaged.errors import MinipagedError

#: command -> (module with ``add_arguments`` and ``run``, what it does)
COMMANDS = {
    "generate": ("minipaged.generate", "continue prompts, or answer them"),
    "demo": ("minipaged.demo", "sixteen requests share one paged pool, live in the terminal"),
    "bench": ("minipaged.bench", "measure speed and memory against peers and floors"),
    "kernels": (
        "minipaged.bench.kernel_commands",
        "audit the kernels without a GPU; time them on one",
    ),
    "grade": ("minipaged.course.grade", "points for your exercises, and what to do next"),
    "sync": ("minipaged.course.sync", "write the exercises; bring newer ones into your work"),
    "hint": ("minipaged.course.hint", "a question that helps with a task, then a pointer"),
    "unstick": ("minipaged.course.unstick", "take the answer to one task, for no points"),
    "autograder": ("minipaged.course.autograder", "write a zip that Gradescope grades with"),
    "release": ("minipaged.course.release", "a copy of the course for a class, without answers"),
    "mutants": ("minipaged.course.reject", "grade the grader: every wrong part must be rejected"),
    "sim": ("minipaged.simulation", "serve a workload on a virtual clock, and say where time went"),
    "paper": ("minipaged.paper", "reproduce the paper's figures on the simulated engine"),
    "plan": ("minipaged.plan", "what fits: weights, KV cache and blocks of a model on a GPU"),
    "doctor": ("minipaged.doctor", "check this machine, and say how to mend what is wrong"),
    "fetch": ("minipaged.fetch", "get the small chat model into the user's cache"),
}

#: Those that need modules of stage 10, which a student may have to write.
_SIMULATE = ("bench", "paper", "sim")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0; 1 for an error that is told in a sentence; 2 for bad options;
        130 after Ctrl-C. With MINIPAGED_TRACEBACK set, an error shows where it came from.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        args = _read(arguments)
        return int(importlib.import_module(COMMANDS[args.command][0]).run(args))
    except MinipagedError as error:
        if os.environ.get("MINIPAGED_TRACEBACK"):
            traceback.print_exc()
        print(f"minipaged: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nminipaged: interrupted; nothing is left running", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone: `minipaged … | head`.
        sys.stderr.close()
        return 1


def _read(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command that is asked for; the others are not even imported."""
    parser = _Parser(prog="minipaged", description="PagedAttention, built stage by stage.")
    parser.add_argument("--version", action="version", version=f"minipaged {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        sentence = f"{summary[0].upper()}{summary[1:]}."
        command = commands.add_parser(name, help=summary, description=sentence)
        if name in arguments[:1]:
            if name in _SIMULATE:
                importlib.import_module("minipaged.course.own_modules").use_own_modules()
            importlib.import_module(module).add_arguments(command)
    return parser.parse_args(arguments)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}\n")


if __name__ == "__main__":
    sys.exit(main())
