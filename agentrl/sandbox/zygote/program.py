"""Runs source text as `__main__` the way the interpreter would, and returns its exit code."""

from __future__ import annotations
import __future__

import ast
import atexit
import io
import linecache
import os
import sys
import threading
import tokenize
import traceback
import types
from collections.abc import Callable

FILENAME = "<code>"
_MAX_FRAMES_EACH_END = 1000
_FUTURE_FLAGS = 0
for _name in __future__.all_feature_names:
    _FUTURE_FLAGS |= getattr(__future__, _name).compiler_flag


def run(source: str, echo_last: bool, on_memory_error: Callable[[], None]) -> int:
    """Run `source` and return the exit code that the interpreter would have given.

    Standard streams are as the caller set them. `on_memory_error` is called first of all when a
    MemoryError goes uncaught. As in the interpreter, non-daemon threads are awaited and atexit
    functions run; unlike in it, module globals are not torn down (no `__del__` at shutdown).
    """
    module = types.ModuleType("__main__")
    module.__builtins__ = __builtins__
    sys.modules["__main__"] = module
    sys.argv = [FILENAME]
    lines = io.StringIO(source, newline=None).readlines()
    linecache.cache[FILENAME] = (len(source), None, lines, FILENAME)
    threading.excepthook = _thread_excepthook

    exit_code = _guarded(lambda: _execute(source, echo_last, module.__dict__), on_memory_error)
    # Here, as in the interpreter, what happens in threads and exit functions can't change it.
    _guarded(threading._shutdown, on_memory_error)
    _guarded(atexit._run_exitfuncs, on_memory_error)
    return _flush() or exit_code


def _execute(source: str, echo_last: bool, namespace: dict) -> None:
    if not echo_last:
        exec(compile(source, FILENAME, "exec", dont_inherit=True), namespace)
        return
    body, last = _split_echo(source)
    body_code = compile(body, FILENAME, "exec", dont_inherit=True)
    if last is None:
        exec(body_code, namespace)
        return
    flags = body_code.co_flags & _FUTURE_FLAGS
    last_code = compile(last, FILENAME, "eval", flags=flags, dont_inherit=True)
    exec(body_code, namespace)
    value = eval(last_code, namespace)
    if value is not None:
        sys.stdout.write(repr(value) + "\n")


def _split_echo(source: str) -> tuple[ast.Module, ast.Expression | None]:
    """The tree without its last statement, and that statement where a notebook would show it."""
    tree = ast.parse(source, FILENAME)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or _is_print(last.value) or _ends_in_semicolon(source):
        return tree, None
    tree.body.pop()
    return tree, ast.Expression(last.value)


def _is_print(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"


def _ends_in_semicolon(source: str) -> bool:
    if ";" not in source:
        return False
    layout = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    last = ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(source, newline=None).readline):
            if token.type not in layout:
                last = token.string
    except (tokenize.TokenError, SyntaxError):
        pass  # the compiler accepted it; what was read so far decides
    return last == ";"


def _guarded(step: Callable[[], None], on_memory_error: Callable[[], None]) -> int:
    try:
        step()
        return 0
    except SystemExit as error:
        return _exit_code(error)
    except BaseException as error:
        if isinstance(error, MemoryError):
            on_memory_error()
        _report(error)
        return 1


def _exit_code(error: SystemExit) -> int:
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    try:
        print(code, file=sys.stderr)
    except BaseException:
        pass
    return 1


def _report(error: BaseException) -> None:
    try:
        if sys.excepthook is not sys.__excepthook__:
            sys.excepthook(type(error), error, error.__traceback__)
        else:
            sys.stderr.write(_format(error))
        return
    except BaseException:
        pass
    # Formatting failed, for want of memory or by the program's doing. Give back what the program
    # held, then try with less.
    try:
        sys.modules["__main__"].__dict__.clear()
        traceback.clear_frames(error.__traceback__)
        os.write(2, (type(error).__name__ + "\n").encode("utf-8", "replace"))
    except BaseException:
        pass


def _thread_excepthook(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit or args.exc_value is None or sys.stderr is None:
        return
    name = args.thread.name if args.thread is not None else threading.get_ident()
    sys.stderr.write(f"Exception in thread {name}:\n" + _format(args.exc_value))


def _format(error: BaseException) -> str:
    _trim(error)
    return "".join(traceback.TracebackException.from_exception(error).format())


def _trim(error: BaseException) -> None:
    """Reduce the tracebacks of an exception, its causes and its members to the program's frames."""
    seen = set()
    pending = [error]
    while pending:
        current = pending.pop()
        if not isinstance(current, BaseException) or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _own_frames(current.__traceback__)
        pending += [current.__cause__, current.__context__]
        if isinstance(getattr(current, "exceptions", None), tuple):
            pending += current.exceptions


def _own_frames(link: types.TracebackType | None) -> types.TracebackType | None:
    own = []
    while link is not None:
        if link.tb_frame.f_code.co_filename == FILENAME:
            own.append(link)
        link = link.tb_next
    if len(own) > 2 * _MAX_FRAMES_EACH_END:
        own = own[:_MAX_FRAMES_EACH_END] + own[-_MAX_FRAMES_EACH_END:]
    chain = None
    for link in reversed(own):
        chain = types.TracebackType(chain, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return chain


def _flush() -> int:
    """Flush the standard streams; 120 where output was lost, as the interpreter has it."""
    lost = 0
    for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except BaseException:
            if stream in (sys.stdout, sys.__stdout__):
                lost = 120
    return lost
