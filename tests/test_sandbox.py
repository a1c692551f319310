"""The sandbox at level L0: how each kind of program ends, and that nothing of it is left."""

import glob
import math
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

import pytest

from agentrl.sandbox import RunResult, Sandbox, Status
from agentrl.sandbox.zygote import scratch

LINUX = sys.platform == "linux"
linux_only = pytest.mark.skipif(not LINUX, reason="uses /proc")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MAX_CHARS = 100_000


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(workers=2, level="L0", max_output_chars=MAX_CHARS) as opened:
        yield opened


@pytest.fixture(autouse=True)
def next_call_works(request):
    """After every test that uses the shared sandbox, both workers still answer."""
    yield
    if "sandbox" in request.fixturenames:
        shared = request.getfixturevalue("sandbox")
        results = shared.run_many([{"code": "print(1)"}] * 2)
        assert [r.stdout for r in results] == ["1\n", "1\n"]


def command_lines():
    """The command line of every process, by pid."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                found[int(path.split("/")[2])] = file.read()
        except OSError:
            pass
    return found


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_dead(pid, patience_s=3.0):
    end = time.monotonic() + patience_s
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not alive(pid)


def scratch_bases():
    return set(glob.glob(os.path.join(tempfile.gettempdir(), "agentrl-sandbox-*")))


# How programs end


def test_ok(sandbox):
    result = sandbox.run("print(6 * 7)")
    assert isinstance(result, RunResult)
    assert (result.status, result.stdout, result.stderr) == (Status.OK, "42\n", "")
    assert (result.exit_code, result.truncated, result.level) == (0, False, "L0")
    assert 0 < result.wall_s < 5 and 0 < result.cpu_s < 5 and 1 < result.peak_mb < 200
    assert str(result.status) == result.status == "OK"


@pytest.mark.parametrize(
    "statement, exit_code, stderr",
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit(-1)", 255, ""),
        ("sys.exit('bye')", 1, "bye\n"),
        ("raise SystemExit(4)", 4, ""),
        ("os._exit(5)", 5, ""),
        ("atexit.register(print, 'late', file=sys.stderr)", 0, "late\n"),
    ],
)
def test_exit_codes(sandbox, statement, exit_code, stderr):
    result = sandbox.run(f"import atexit, os, sys\n{statement}")
    assert (result.exit_code, result.stderr) == (exit_code, stderr)
    assert result.status == (Status.OK if exit_code == 0 else Status.ERROR)


def test_traceback_has_only_own_frames(sandbox):
    code = "def f(text):\n    import json\n    return json.loads(text)\n\nf('{')\n"
    result = sandbox.run(code)
    assert (result.status, result.exit_code) == (Status.ERROR, 1)
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line for line in lines if "File" in line] == [
        '  File "<code>", line 5, in <module>',
        '  File "<code>", line 3, in f',
    ]
    assert "    return json.loads(text)" in lines
    assert lines[-1].startswith("json.decoder.JSONDecodeError")


def test_traceback_of_a_chain_and_of_a_thread(sandbox):
    chain = sandbox.run("try:\n    int('x')\nexcept ValueError as e:\n    raise KeyError(1) from e")
    assert "direct cause" in chain.stderr and chain.stderr.count("<code>") == 2
    thread = sandbox.run("import threading\nthreading.Thread(target=lambda: 1 / 0).start()")
    assert thread.status == Status.OK
    assert "ZeroDivisionError" in thread.stderr and "threading.py" not in thread.stderr


@pytest.mark.parametrize(
    "code, last_line",
    [
        ("x = (", "SyntaxError: '(' was never closed"),
        ("a\0b", None),
        ("x = '\ud800'", None),
        ("print(chr(0xd800))", None),
        ("(" * 5000, None),
        ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
        ("input()", "EOFError: EOF when reading a line"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_errors(sandbox, code, last_line):
    result = sandbox.run(code)
    assert result.status in ([Status.ERROR] if last_line else [Status.ERROR, Status.OOM])
    assert result.exit_code == 1 and result.stderr
    if last_line:
        assert result.stderr.splitlines()[-1] == last_line


@pytest.mark.parametrize("code", ["", "\n", "# only a comment", "\x0cpass\r\npass"])
def test_programs_without_output(sandbox, code):
    result = sandbox.run(code, echo_last=True)
    assert (result.status, result.stdout, result.stderr) == (Status.OK, "", "")


@pytest.mark.parametrize(
    "code",
    [
        "print('before')\nwhile True: pass",
        "import time\nprint('before')\ntime.sleep(100)",
        "print('before')\nwhile True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import signal, time\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except OSError: pass\nprint('before')\ntime.sleep(100)",
        "import threading, time\nprint('before')\nthreading.Thread(target=time.sleep, args=(99,)).start()",
        "import atexit, time\nprint('before')\natexit.register(time.sleep, 100)",
        "import os, signal\nprint('before')\nos.kill(os.getpid(), signal.SIGSTOP)",
    ],
)
def test_timeout(sandbox, code):
    result = sandbox.run(code, timeout_s=0.4)
    assert (result.status, result.exit_code) == (Status.TIMEOUT, None)
    assert result.stdout == "before\n"
    assert 0.39 < result.wall_s < 1.5


def test_cpu_limit(sandbox):
    result = sandbox.run("while True: pass", timeout_s=10, cpu_limit_s=1)
    assert result.status == Status.CPU_LIMIT
    assert 0.9 < result.cpu_s < 1.5


@pytest.mark.skipif(not LINUX, reason="macOS doesn't keep the limit")
@pytest.mark.parametrize(
    "code",
    [
        "bytearray(4 << 30)",
        "x = []\nwhile True: x.append('a' * 1000)",
        "a = [1]\nfor x in a: a.append(x)",
    ],
)
def test_out_of_memory(sandbox, code):
    result = sandbox.run(code, memory_limit_mb=200)
    assert (result.status, result.exit_code) == (Status.OOM, 1)
    assert "MemoryError" in result.stderr and result.peak_mb < 220


@pytest.mark.skipif(not LINUX, reason="macOS doesn't keep the limit")
def test_caught_memory_error_and_absurdly_small_limit(sandbox):
    caught = sandbox.run("try: bytearray(4 << 30)\nexcept MemoryError: print('caught')")
    assert (caught.status, caught.stdout) == (Status.OK, "caught\n")
    assert sandbox.run("x = list(range(10**6))", memory_limit_mb=1).status == Status.OOM


@pytest.mark.parametrize(
    "code, number",
    [
        ("import ctypes; ctypes.string_at(0)", signal.SIGSEGV),
        ("import os; os.abort()", signal.SIGABRT),
        ("import os; os.kill(os.getpid(), 9)", signal.SIGKILL),
    ],
)
def test_signaled(sandbox, code, number):
    result = sandbox.run(code)
    assert (result.status, result.exit_code) == (Status.SIGNALED, -number)


# Output and input


@pytest.mark.parametrize(
    "code",
    [
        "print('x' * 100_000_000)",
        "for _ in range(100): print('x' * 999_999)",
        "while True: print('x')",
        f"print('x' * {MAX_CHARS})",  # the newline is the one too many
    ],
)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_limit(sandbox, code, stream):
    started = time.monotonic()
    result = sandbox.run(f"import sys\nsys.stdout = sys.{stream}\n{code}")
    assert (result.status, result.exit_code, result.truncated) == (Status.OUTPUT_LIMIT, None, True)
    assert len(getattr(result, stream)) == MAX_CHARS
    assert time.monotonic() - started < 3


def test_output_exactly_at_the_cap_in_characters(sandbox):
    result = sandbox.run(f"print('é' * {MAX_CHARS}, end='')")
    assert (result.status, result.truncated) == (Status.OK, False)
    assert result.stdout == "é" * MAX_CHARS


def test_bad_bytes_are_replaced(sandbox):
    result = sandbox.run("import os\nos.write(1, b'a\\xffb\\xc3')")
    assert (result.status, result.stdout) == (Status.OK, "a\ufffdb\ufffd")


def test_streams_interleaved_and_190_kb():
    with Sandbox(workers=1, level="L0") as roomy:
        code = "import sys\nfor _ in range(1000):\n    for s in (sys.stdout, sys.stderr): s.write('y' * 1000)"
        result = roomy.run(code)
        assert (result.status, len(result.stdout), len(result.stderr)) == (Status.OK, 10**6, 10**6)
        assert len(roomy.run("print('x' * 190_000)").stdout) == 190_001


def test_a_closed_stdout(sandbox):
    assert sandbox.run("import os; os.close(1)").status == Status.OK
    assert sandbox.run("import os; os.close(1); print(1)").status == Status.ERROR


def test_stdin(sandbox):
    assert sandbox.run("print(input() + input())", stdin="ü\nb\n").stdout == "üb\n"
    assert sandbox.run("print(len(open(0).read()))", stdin="z" * 10**7).stdout == "10000000\n"
    assert sandbox.run("pass", stdin="z" * 10**7).status == Status.OK
    assert sandbox.run("print(input())", stdin="a\ud800\n").stdout == "a?\n"
    if LINUX:
        assert sandbox.run("import os; os.write(0, b'x')", stdin="a").status == Status.ERROR


@pytest.mark.parametrize(
    "code, stdout",
    [
        ("for i in range(3):\n    print(i)", "0\n1\n2\n"),
        ("x=3\nx # note", "3\n"),
        ("def f(a): return a\nf(\n 1\n)", "1\n"),
        ("x=3\nx;", ""),
        ("x=3\n(x\n) ; # note", ""),
        ("x=3\nx # a ; in a note", "3\n"),
        ("x=3\n'a;' ", "'a;'\n"),
        ("printer=3\nprinter", "3\n"),
        ("x = 5", ""),
        ("print(1)", "1\n"),
        ("None", ""),
        ("if True:\n    5", ""),
        ("'a docstring'", "'a docstring'\n"),
        ("from __future__ import annotations\ndef f(a: nope): pass\nf.__annotations__", "{'a': 'nope'}\n"),
        ("a = 1; a + 1", "2\n"),
        ("é = '\u2028'\né", "'\\u2028'\n"),
    ],
)
def test_echo(sandbox, code, stdout):
    result = sandbox.run(code, echo_last=True)
    assert (result.status, result.stdout, result.stderr) == (Status.OK, stdout, "")


def test_no_echo_unless_asked(sandbox):
    assert sandbox.run("3").stdout == ""


def test_echo_whose_repr_fails(sandbox):
    code = "class A:\n    def __repr__(self): return 1 / 0\nA()"
    result = sandbox.run(code, echo_last=True)
    assert result.status == Status.ERROR and "ZeroDivisionError" in result.stderr


# What a program finds, and what it leaves


def test_environment_is_clean(sandbox, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    code = "import os\nprint(dict(os.environ))\nprint(open('/proc/self/environ').read())"
    with Sandbox(workers=1, level="L0") as fresh:
        result = fresh.run(code if LINUX else code.rpartition("\n")[0])
    assert result.status == Status.OK
    assert "SECRET" not in result.stdout and "hunter2" not in result.stdout


@linux_only
def test_only_standard_descriptors(sandbox):
    code = "import os\nfolder = '/proc/self/fd/'\nprint([n for n in os.listdir(folder) if os.path.exists(folder + n)])"
    assert sandbox.run(code).stdout == "['0', '1', '2']\n"


def test_runs_as_main_with_modules(sandbox):
    code = """
        import sys, dataclasses, pickle, json
        @dataclasses.dataclass
        class Point:
            x: int
        print(__name__, sys.argv, pickle.loads(pickle.dumps(Point(3))))
        open("wire.py", "w").write("value = 9")  # the zygote has a module of this name
        import wire
        print(wire.value)
    """
    assert sandbox.run(textwrap.dedent(code)).stdout == "__main__ ['<code>'] Point(x=3)\n9\n"


def test_scratch_is_fresh_and_removed():
    before = scratch_bases()
    with Sandbox(workers=1, level="L0") as single:
        first = single.run(
            "import os, tempfile\n"
            "open('left', 'w').write('x')\n"
            "os.makedirs('d/e'); open('d/e/f', 'w'); os.symlink('/', 'd/link'); os.mkfifo('p')\n"
            "os.chmod('d', 0)\n"
            "print(os.getcwd(), tempfile.gettempdir() == os.getcwd())"
        )
        folder, _, inside = first.stdout.strip().partition(" ")
        assert first.status == Status.OK and inside == "True"
        assert not os.path.exists(folder)
        deep = "import os\nfor i in range(2000):\n    os.mkdir('d' * 9); os.chdir('d' * 9)"
        assert single.run(deep).status == Status.OK
        assert not os.path.exists(folder)
        assert single.run("import os; open('a', 'w'); os._exit(0)").status == Status.OK
        assert single.run("open('a', 'w')\nwhile True: pass", timeout_s=0.2).status == Status.TIMEOUT
        assert single.run("import os; print(os.listdir('.'))").stdout == "[]\n"
    assert scratch_bases() == before


def test_scratch_removal_never_follows_links(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary").write_text("alive")
    top = tmp_path / "top"
    (top / "moved-1" / "a" / "b").mkdir(parents=True)
    (top / "link").symlink_to(outside)
    (top / "moved-1" / "a" / "link").symlink_to(outside)
    scratch.remove(str(top))
    scratch.remove(str(top))
    assert not top.exists() and (outside / "canary").read_text() == "alive"


def test_file_size_limit(sandbox):
    result = sandbox.run("f = open('big', 'wb')\nf.truncate(1 << 40)")
    assert result.status == Status.ERROR and "OSError" in result.stderr


@linux_only
@pytest.mark.parametrize(
    "leave",
    [
        "p = os.fork()\nif p == 0: time.sleep(60)",
        "r, w = os.pipe()\nif os.fork() == 0:\n    os.setsid()\n    p = os.fork()\n"
        "    if p == 0: time.sleep(60)\n    os.write(w, str(p).encode()); os._exit(0)\n"
        "p = int(os.read(r, 99)); os.wait()",
        "p = subprocess.Popen(['sleep', '60'], start_new_session=True).pid",
    ],
    ids=["fork", "double fork and setsid", "subprocess"],
)
@pytest.mark.parametrize("end", ["os._exit(0)", "time.sleep(60)"])
def test_background_processes_die(sandbox, leave, end):
    code = f"import os, subprocess, time\n{leave}\nprint(p, flush=True)\n{end}"
    result = sandbox.run(code, timeout_s=0.5)
    assert result.status == (Status.OK if "_exit" in end else Status.TIMEOUT)
    assert not alive(int(result.stdout.split()[0]))


@linux_only
def test_small_fork_bomb(sandbox):
    code = "import os, time\nfor _ in range(5): os.fork()\nprint(os.getpid())\ntime.sleep(60)"
    result = sandbox.run(code, timeout_s=1)
    pids = [int(line) for line in result.stdout.split()]
    assert result.status == Status.TIMEOUT and len(pids) == 32
    assert not any(alive(pid) for pid in pids)


def test_two_runs_are_byte_identical(sandbox):
    code = (
        "import os, sys, time, locale\n"
        "print({'a', 'b', 'c', 'dd'}, hash('x'), time.tzname, locale.getlocale(), sys.flags)\n"
        "print(sorted(os.environ), sys.path, sys.argv, open('f', 'w').encoding)"
    )
    results = sandbox.run_many([{"code": code}] * 8)
    assert all(r.status == Status.OK for r in results)
    assert len({r.stdout for r in results}) == 1


@linux_only
def test_addresses_repeat_in_fresh_workers():
    printed = set()
    for _ in range(2):
        with Sandbox(workers=1, level="L0") as fresh:
            printed.add(fresh.run("class A: pass\nprint(A(), id([]), print, A.__init__)").stdout)
    if "ffff" not in next(iter(printed)):
        pytest.skip("this kernel or container refuses fixed addresses")
    assert len(printed) == 1


# Callers


@pytest.mark.parametrize(
    "arguments, error",
    [
        ({"code": 5}, TypeError),
        ({"code": b"print(1)"}, TypeError),
        ({"code": "1", "stdin": b"x"}, TypeError),
        ({"code": "1", "timeout_s": "5"}, TypeError),
        ({"code": "1", "timeout_s": True}, TypeError),
        ({"code": "1", "timeout_s": 0}, ValueError),
        ({"code": "1", "timeout_s": -1}, ValueError),
        ({"code": "1", "timeout_s": math.nan}, ValueError),
        ({"code": "1", "timeout_s": math.inf}, ValueError),
        ({"code": "1", "memory_limit_mb": 0}, ValueError),
        ({"code": "1", "cpu_limit_s": -1}, ValueError),
        ({"code": "1", "unknown": 1}, TypeError),
    ],
)
def test_bad_arguments(sandbox, arguments, error):
    with pytest.raises(error):
        sandbox.run(**arguments)
    [result] = sandbox.run_many([arguments])
    assert result.status == Status.ERROR and error.__name__ in result.stderr


def test_bad_sandboxes(capsys):
    with pytest.raises(ValueError, match="L0"):
        Sandbox(level="L2")
    for workers in (0, -1):
        with pytest.raises(ValueError):
            Sandbox(workers=workers, level="L0")
    with pytest.raises(TypeError):
        Sandbox(workers=1.5, level="L0")
    assert capsys.readouterr().err == ""
    Sandbox(workers=1).close()
    assert "L0" in capsys.readouterr().err


def test_run_many_keeps_order_and_runs_side_by_side(sandbox):
    requests = [{"code": f"import time; time.sleep({0.3 - 0.1 * i}); print({i})"} for i in range(4)]
    requests[3] = {"code": "1 / 0"}
    requests.append({"code": None})
    started = time.monotonic()
    results = sandbox.run_many(iter(requests))
    assert [r.stdout for r in results] == ["0\n", "1\n", "2\n", "", ""]
    assert [r.status for r in results] == ["OK", "OK", "OK", "ERROR", "ERROR"]
    assert time.monotonic() - started < 0.58
    assert sandbox.run_many([]) == []


def test_many_threads(sandbox):
    answers = {}

    def work(thread):
        for i in range(10):
            answers[thread, i] = sandbox.run(f"print({thread}, {i})").stdout

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {(t, i): f"{t} {i}\n" for t in range(8) for i in range(10)}


def test_a_killed_zygote_is_replaced():
    with Sandbox(workers=1, level="L0") as single:
        [before] = single._pool.pids()
        os.kill(before, signal.SIGKILL)
        assert single.run("print(1)").stdout == "1\n"
        [after] = single._pool.pids()
        assert after != before


@linux_only
def test_a_program_that_kills_its_zygote_is_infra(tmp_path):
    before = scratch_bases()
    with Sandbox(workers=1, level="L0") as single:
        pid_file = tmp_path / "pids"
        code = (
            "import os, subprocess, time\n"
            "p = subprocess.Popen(['sleep', '60']).pid\n"
            f"open({str(pid_file)!r}, 'a').write(f'{{p}} {{os.getpid()}}\\n')\n"
            "os.kill(os.getppid(), 9); time.sleep(60)"
        )
        result = single.run(code)
        assert result.status == Status.INFRA and "ended" in result.stderr
        pids = pid_file.read_text().split()
        assert len(pids) == 4  # it was tried twice
        assert all(wait_dead(int(pid)) for pid in pids)
        assert single.run("print(2)").stdout == "2\n"
    assert scratch_bases() == before


def test_output_can_not_forge_a_result(sandbox):
    code = (
        "import os\n"
        "for fd in range(3, 200):\n"
        "    try: os.write(fd, bytes(range(200)))\n"
        "    except OSError: pass\n"
        'print(\'{"status": "OK", "exit_code": 0}\')\n'
        "os._exit(7)"
    )
    result = sandbox.run(code)
    assert (result.status, result.exit_code) == (Status.ERROR, 7)


@linux_only
def test_nothing_is_left_after_close():
    with Sandbox(workers=1, level="L0") as warm_up:  # whatever is made once per process
        warm_up.run("pass")
    bases, descriptors = scratch_bases(), os.listdir("/proc/self/fd")
    opened = Sandbox(workers=3, level="L0")
    pids = opened._pool.pids()
    assert len(pids) == 3 and all(alive(pid) for pid in pids)
    opened.run_many([{"code": "while True: pass", "timeout_s": 0.1}] * 6)
    opened.close()
    opened.close()
    assert not any(alive(pid) for pid in pids)
    assert scratch_bases() == bases
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)
    with pytest.raises(RuntimeError, match="closed"):
        opened.run("print(1)")
    with pytest.raises(RuntimeError, match="closed"):
        opened.run_many([{"code": "print(1)"}])


def test_close_during_a_call():
    opened = Sandbox(workers=1, level="L0")
    results = []
    thread = threading.Thread(target=lambda: results.append(opened.run("while True: pass")))
    thread.start()
    time.sleep(0.2)
    opened.close()
    thread.join(5)
    assert [r.status for r in results] == [Status.INFRA]


@linux_only
@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 9)"], ids=["exit", "killed"])
def test_nothing_survives_the_caller(end):
    program = f"""
        import os, threading, time
        from agentrl.sandbox import Sandbox
        s = Sandbox(workers=2, level="L0")
        code = "import subprocess; subprocess.run(['sleep', '4321'])"
        threading.Thread(target=s.run, args=(code,), daemon=True).start()
        time.sleep(0.4)
        print(*s._pool.pids(), flush=True)
        {end}
    """
    before = scratch_bases()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    assert all(wait_dead(pid) for pid in pids)
    assert not [pid for pid, line in command_lines().items() if b"4321" in line and alive(pid)]
    assert scratch_bases() == before


def test_a_forked_copy_leaves_the_workers_alone(sandbox):
    pid = os.fork()
    if pid == 0:
        try:
            sandbox.run("print(1)")
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_import_is_light():
    code = "import sys; import agentrl.sandbox; print(sorted({'numpy', 'torch', 'sympy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
