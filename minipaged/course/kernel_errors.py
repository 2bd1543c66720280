"""What went wrong in a kernel, out of the errors that Triton wraps it into.

Nothing here imports Triton: where it is not there, no error is of its kind.
"""

from __future__ import annotations


def chain_of(error: BaseException) -> list[BaseException]:
    """An error and, where Triton wrapped another into it, that one too: the last of them is what
    happened, and the tracebacks of all, in this order, are the way there."""
    chain = [error]
    while _wraps(chain[-1]) and chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    return chain


def message_of(error: BaseException) -> str | None:
    """What the compiler says of a kernel and the line that it points to; None for other errors.

    Its own text begins with a dozen lines of the kernel, and a first line is what people read.
    """
    reason = getattr(error, "error_message", None)
    if not (_is_of(error, "CompilationError") and isinstance(reason, str)):
        return None
    place = str(error).removesuffix(reason).rstrip().splitlines()[-2:]
    return "\n".join([reason.strip(), *place])


def _wraps(error: BaseException) -> bool:
    if _is_of(error, "InterpreterError"):
        return True
    if error.__cause__ is not None and _is_of(error.__cause__, "CompilationError"):
        return True  # whoever asked for the code says so in words of their own
    # An error inside of a function that a kernel calls: the outer one only says where.
    return _is_of(error, "CompilationError") and getattr(error, "error_message", None) is None


def _is_of(error: BaseException, name: str) -> bool:
    return any(
        c.__name__ == name and c.__module__.startswith("triton.") for c in type(error).__mro__
    )
