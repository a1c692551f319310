#!/usr/bin/env python3
"""Run the workbook: execute notebooks/NN_name.ipynb in order, each in a process of its own.

What is done and unchanged is skipped. Executed notebooks, manifest, figures and tables lie under
outputs/<profile>/ (or --out). This file knows files and processes; of what the notebooks compute it knows
nothing.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentrl.config import load_profile, profile_values, resolve_key

ROOT = Path(__file__).resolve().parent
PARAMETERS = ("profile", "seed", "overrides", "out")  # what every notebook's parameters cell holds
VERSIONS = ("torch", "transformers", "trl", "numpy", "papermill")
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PROGRESS = re.compile(r"(?<![\w/.])\d+/\d+(?![\w/])|\d\s?%|\bleft\b")  # "rl 12/40 ... 35 s left"
QUIET_S = 10.0  # between two progress lines where the output is no terminal
# Results repeat; the kernel is this environment's, whatever the user has registered; no noise.
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "JUPYTER_PREFER_ENV_PATH": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
GRACE_S = ((signal.SIGINT, 5.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0))


class Usage(Exception):
    """A request that can't be met: one line that says what is wrong and what to do. Exit code 2."""


# ---- notebooks, as files -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Notebook:
    """A source notebook, with all that planning needs from it."""

    path: Path
    title: str
    source: str  # digest of what is executed: cells and tags, without outputs and other metadata
    expected_s: dict[str, float]  # by profile, from metadata.agentrl.expected_s

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def number(self) -> str:
        return self.name[:2]


def read_notebooks(folder: Path) -> list[Notebook]:
    """The notebooks of `folder` in order. Raises Usage on one that can't be read."""
    found = [read_notebook(path) for path in sorted(folder.glob("[0-9][0-9]_*.ipynb"))]
    if not found:
        raise Usage(f"no notebooks NN_name.ipynb in {folder}")
    return found


def read_notebook(path: Path) -> Notebook:
    """One notebook; refused where the parameters cell lacks a name, since papermill would only warn."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        cells = [(c["cell_type"], "".join(c["source"]), tags(c)) for c in content["cells"]]
        parameters = next((text for _, text, t in cells if "parameters" in t), "")
        statements = ast.parse(parameters).body
    except (OSError, ValueError, KeyError, TypeError, SyntaxError) as error:
        raise Usage(f"{path}: not a readable notebook ({type(error).__name__}: {error})") from None
    targets = [t for s in statements for t in getattr(s, "targets", [getattr(s, "target", None)])]
    missing = [p for p in PARAMETERS if p not in {getattr(t, "id", None) for t in targets}]
    if missing:
        raise Usage(f"{path}: the cell tagged 'parameters' does not set {', '.join(missing)}; add it there")
    prose = "\n".join(text for kind, text, _ in cells if kind == "markdown")
    heading = re.search(r"^#+ +(.+)$", prose, re.MULTILINE)
    expected = content.get("metadata", {}).get("agentrl", {}).get("expected_s", {})
    return Notebook(path, heading[1].strip() if heading else path.stem, digest(cells), expected)


def tags(cell: dict) -> list[str]:
    return cell.get("metadata", {}).get("tags", [])


def select(
    notebooks: list[Notebook], only: str | None, first: str | None, last: str | None
) -> list[Notebook]:
    """The notebooks that --only, --from and --to leave. Raises Usage on an unknown one, or if none is."""

    def find(selector: str) -> int:
        text = selector.strip().removesuffix(".ipynb")
        for i, notebook in enumerate(notebooks):
            if text == notebook.name or (text.isdecimal() and int(text) == int(notebook.number)):
                return i
        raise Usage(f"no notebook {selector!r}; there are: {', '.join(n.name for n in notebooks)}")

    low = find(first) if first else 0
    high = find(last) if last else len(notebooks) - 1
    wanted = {find(s) for s in only.split(",") if s.strip()} if only else set(range(len(notebooks)))
    chosen = [n for i, n in enumerate(notebooks) if i in wanted and low <= i <= high]
    if not chosen:
        raise Usage("--only, --from and --to leave no notebook; --list shows all")
    return chosen


def find_problem(executed: Path, kernel_died: bool) -> dict[str, Any] | None:
    """Why an executed notebook doesn't count as done, with the cell where it ended; None where it does.

    A cell that calls sys.exit(0) leaves papermill's exit code at 0, and a killed kernel leaves cells that
    never ran marked "completed": so every code cell has to show that it ran.
    """
    number, last = 0, None  # the number is the source's: papermill's own cells don't count
    for cell in json.loads(executed.read_text(encoding="utf-8"))["cells"]:
        number += not {"injected-parameters", "papermill-error-cell-tag"} & set(tags(cell))
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] != "code" or not source:
            continue
        state = cell["metadata"].get("papermill", {})
        if kernel_died and not state.get("start_time"):
            break
        last = {"cell": number, "source": source.splitlines()[:3]}
        errors = [o for o in cell["outputs"] if o["output_type"] == "error"]
        if errors:
            trace = [x for t in errors[0]["traceback"] for x in ANSI.sub("", t).rstrip().splitlines()]
            return last | {"why": trace[-8:] or [f"{errors[0]['ename']}: {errors[0]['evalue']}"]}
        if not kernel_died and (cell["execution_count"] is None or state.get("status") != "completed"):
            return last | {"why": ["this cell did not run to its end"]}
    if kernel_died and last:
        return last | {"why": ["the kernel died here: killed, or out of memory"]}
    return None


# ---- the plan ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A notebook, what a run of it now would rest on, and why it has to run (None: it stands)."""

    notebook: Notebook
    inputs: dict[str, Any]
    reason: str | None
    chosen: bool
    expected_s: float | None


def digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def package_digest() -> str:
    """Digest of the package's source, its templates and small models included."""
    kinds = {".py", ".jinja", ".json", ".safetensors"}
    files = sorted(p for p in (ROOT / "agentrl").rglob("*") if p.suffix in kinds)
    return digest([(str(p.relative_to(ROOT)), hashlib.sha256(p.read_bytes()).hexdigest()) for p in files])


def make_plan(
    notebooks: list[Notebook], chosen: list[Notebook], parameters: dict, records: dict, out: Path, force: bool
) -> list[Step]:
    """A step for every notebook. What it rests on includes the notebooks before it, as they will be then."""
    steps, before, package = [], [], package_digest()
    for notebook in notebooks:
        record = records.get(notebook.name, {})
        inputs = {"source": notebook.source, "package": package, "earlier notebooks": digest(before)}
        inputs |= {k: parameters[k] for k in ("profile", "seed", "overrides")}
        done, reason = record.get("inputs"), None  # inputs are recorded after a success only
        if not done or not (out / "notebooks" / notebook.path.name).exists():
            reason = {"failed": "failed", "interrupted": "interrupted"}.get(record.get("status"), "never run")
        elif done != inputs:
            reason = "changed: " + ", ".join(k for k in inputs if inputs[k] != done.get(k))
        elif force and notebook in chosen:
            reason = "--force"
        expected_s = (done and record["wall_s"]) or notebook.expected_s.get(parameters["profile"])
        steps.append(Step(notebook, inputs, reason, notebook in chosen, expected_s))
        before.append(digest(inputs if notebook in chosen else done))
    return steps


def left(steps: list[Step], elapsed_s: float = 0.0) -> str:
    """How long these steps take in all, in words, the first being `elapsed_s` old. Empty where unknown."""
    if not steps or any(s.expected_s is None for s in steps):
        return ""
    seconds = sum(s.expected_s for s in steps) - min(elapsed_s, steps[0].expected_s)
    if seconds < 1:
        return ""
    return f"about {seconds:.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} min"


# ---- running one notebook --------------------------------------------------------------------------------


class Console:
    """One line an event; on a terminal, one line that is overwritten shows the progress in between."""

    def __init__(self, stream):
        self.stream, self.live = stream, stream.isatty()
        self.last, self.last_s = "", -QUIET_S

    def say(self, text: str = "") -> None:
        print(("\r\x1b[K" if self.live else "") + text, file=self.stream, flush=True)

    def progress(self, text: str, is_news: bool) -> None:
        """Show how far a notebook is; where the output is no terminal, news only, every QUIET_S seconds."""
        text = text[: shutil.get_terminal_size().columns - 1] if self.live else text
        if self.live and text != self.last:
            print("\r\x1b[K" + text, end="", file=self.stream, flush=True)
            self.last = text
        elif not self.live and is_news and time.monotonic() - self.last_s > QUIET_S:
            self.last_s = time.monotonic()
            self.say(text)


class Family:
    """A process and all it starts. A kernel is in a session of its own: signals to a group would miss it."""

    def __init__(self, process: subprocess.Popen):
        self.process, self.seen, self.peak_mb = process, {}, 0.0

    def alive(self) -> list:
        """Who lives. Looks for new members first, and adds up the memory (pages shared count for each)."""
        import psutil

        if self.process.poll() is None:
            with contextlib.suppress(psutil.Error):
                root = psutil.Process(self.process.pid)
                self.seen |= {hash(p): p for p in (root, *root.children(recursive=True))}
        members, rss = [], 0
        for member in self.seen.values():
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                if member.is_running() and member.status() != psutil.STATUS_ZOMBIE:
                    rss += member.memory_info().rss
                    members.append(member)
        self.seen = {hash(p): p for p in members}
        self.peak_mb = max(self.peak_mb, rss / 2**20)
        return members

    def end(self) -> None:
        """Interrupt who is left, then terminate, then kill."""
        import psutil

        for signum, grace_s in GRACE_S:
            deadline, told = time.monotonic() + grace_s, set()
            while (members := self.alive()) and time.monotonic() < deadline:
                for member in set(members) - told:
                    with contextlib.suppress(psutil.Error):
                        member.send_signal(signum)
                told |= set(members)
                time.sleep(0.1)


def execute(
    notebook: Notebook, target: Path, parameters: dict, tick: Callable, stopped: list[int]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Run one notebook with papermill into `target`: (its record, its problem or None).

    `tick(seconds, last progress line, is it new)` is called now and then; a signal number in `stopped` ends
    the run. `target` appears only after a success; else what there is lies beside it as NN_name.failed.ipynb.
    """
    import yaml  # its writer, since YAML reads JSON's 1e-05 as text

    target.parent.mkdir(parents=True, exist_ok=True)
    running, failed, log = (target.with_suffix(s) for s in (".running.ipynb", ".failed.ipynb", ".log"))
    for old in (running, failed, target):
        old.unlink(missing_ok=True)
    command = [sys.executable, *"-m papermill -k python3 -l python --log-output --no-progress-bar".split()]
    command += ["--cwd", str(notebook.path.parent), str(notebook.path), str(running)]
    command += ["-b", base64.b64encode(yaml.safe_dump(parameters).encode()).decode()]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    start, last, looked_s = time.monotonic(), "", 0.0
    with log.open("wb") as sink, log.open(encoding="utf-8", errors="replace") as lines:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, process_group=0,
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": path},
        )  # fmt: skip
        family = Family(process)
        try:
            while process.poll() is None and not stopped:
                seconds = time.monotonic() - start
                if seconds - looked_s > 1:
                    looked_s = seconds
                    family.alive()
                news = [x for x in lines.read().splitlines() if PROGRESS.search(x) and "Notebook:" not in x]
                last = ANSI.sub("", news[-1]).strip() if news else last
                tick(seconds, last, bool(news))
                time.sleep(0.1)
        finally:
            family.end()
    died = process.wait() == 138  # papermill's code for it
    said = {"why": log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]}
    try:
        problem = find_problem(running, died) or (said if process.returncode else None)
    except (OSError, ValueError):  # none was written, or not to its end
        problem = said
    problem = {"why": ["interrupted"]} if stopped else problem
    if running.exists():
        running.replace(failed if problem else target)
    record = {
        "status": "interrupted" if stopped else "failed" if problem else "done",
        "wall_s": round(time.monotonic() - start, 1),
        "peak_rss_summed_mb": round(family.peak_mb),  # over the notebook's processes, looked at every second
        "finished_utc": utc_now(),
        "output": f"notebooks/{(failed if problem else target).name}",  # in the output folder
    }
    return record, problem


# ---- provenance ------------------------------------------------------------------------------------------


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def provenance() -> dict[str, Any]:
    """Code, versions and machine, for the manifest."""
    import psutil

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
            )
        except OSError:  # no git here
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit, status = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", ".")
    versions = {}
    for name in VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "git": {"commit": commit, "dirty": bool(status)} if commit else None,
        "versions": {"python": platform.python_version()} | versions,
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "ram_gb": round(psutil.virtual_memory().total / 2**30, 1),
    }


def read_manifest(out: Path) -> dict[str, Any]:
    path = out / "manifest.json"
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise Usage(f"{path}: not readable ({error}); delete it to run everything again") from None


def write_manifest(out: Path, manifest: dict) -> None:
    temporary = out / f"manifest.json.{os.getpid()}"
    temporary.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    temporary.replace(out / "manifest.json")


@contextlib.contextmanager
def locked(out: Path):
    """Hold the output folder for this process alone; the lock goes with the process, however it ends."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / ".run_all.lock").open("a+")
    except OSError as error:
        raise Usage(f"can't write to {out} ({error.strerror}); choose another --out") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise Usage(
                f"another run_all.py (process {file.read().strip()}) works in {out}; wait for it, end it, or "
                "choose another --out"
            ) from None
        file.truncate(0)
        print(os.getpid(), file=file, flush=True)
        yield


@contextlib.contextmanager
def signals_noted():
    """A list that gets the number of the first signal that asks this process to end."""
    stopped: list[int] = []
    asked = [signal.SIGINT]  # even where it is ignored, as in a shell's background jobs
    asked += [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]  # nohup
    before = {s: signal.signal(s, lambda number, _: stopped.append(number)) for s in asked}
    try:
        yield stopped
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


# ---- the command -----------------------------------------------------------------------------------------


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run_all.py", description="Run the workbook's notebooks in order.")
    add = parser.add_argument
    add("--profile", default="tiny", help="the scale (default: tiny)")
    add("--list", action="store_true", help="show the notebooks and what stands, and run nothing")
    add("--only", metavar="NN,..", help="these notebooks alone: 03, 3 or 03_name, with commas between")
    add("--from", dest="first", metavar="NN", help="this notebook and those after it")
    add("--to", dest="last", metavar="NN", help="up to and with this notebook")
    add("--force", action="store_true", help="execute the chosen notebooks even if unchanged (finished runs "
        "inside them are still reused: delete outputs/<profile>/runs to make those again)")  # fmt: skip
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="change a profile value, such as "
        "rl.steps=20 or recipe=GRPO-T; repeatable")  # fmt: skip
    add("--dry-run", action="store_true", help="show the plan and the settings, and run nothing")
    add("--out", type=Path, help="where everything is written (default: outputs/<profile>)")
    add("--json", action="store_true", help="one JSON object on stdout; text for people goes to stderr")
    return parser.parse_args(argv)


def read_settings(profile: str, assignments: list[str]) -> dict[str, Any]:
    """Profile, seed and overrides as notebooks get them, and the table of values. Raises Usage."""
    overrides = {}
    try:
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals:
                raise ValueError(f"--set {assignment}: write KEY=VALUE")
            try:
                value = json.loads(text)
            except json.JSONDecodeError:  # a bare word is text
                value = text
            if isinstance(value, list | dict):
                raise ValueError(f"{key}: expected a single value, got {text}")
            overrides[resolve_key(key)] = value
        loaded = load_profile(profile, **overrides)
    except ValueError as error:
        raise Usage(str(error)) from None
    overrides.pop("seed", None)
    return {"profile": profile, "seed": loaded.seed, "overrides": overrides, "values": profile_values(loaded)}


def show(
    args: argparse.Namespace, steps: list[Step], settings: dict, records: dict, console: Console
) -> None:
    """--list and --dry-run."""
    rows = []
    for step in (s for s in steps if s.chosen):
        name, record = step.notebook.name, records.get(step.notebook.name, {})
        status = "done" if step.reason is None else "stale" if record.get("inputs") else "never"
        wall_s = record["wall_s"] if record.get("inputs") else None
        row = {"name": name, "title": step.notebook.title, "status": status, "reason": step.reason}
        rows.append(row | {"last_wall_s": wall_s, "expected_s": step.expected_s})
        if args.list:
            took = "-" if wall_s is None else clock(wall_s)
            console.say(f"{name:<24} {status:<6} {took:>7}  {step.notebook.title}")
        else:
            console.say(f"{'run ' if step.reason else 'skip'}  {name:<24} {step.reason or 'unchanged'}")
    to_run = [s for s in steps if s.chosen and s.reason]
    if args.dry_run:
        console.say(f"time: {left(to_run) or ('unknown' if to_run else 'nothing to run')}")
        base = profile_values(load_profile(settings["profile"]))
        for key, value in settings["values"].items():
            mark = "" if value == base[key] else f"   <- set here; the profile has {base[key]!r}"
            console.say(f"  {key} = {value!r}{mark}")
    if args.json:
        print(json.dumps({"notebooks": rows, "settings": settings}))


def clock(seconds: float) -> str:
    minutes, s = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{s:02d}" if minutes >= 60 else f"{minutes}:{s:02d}"


def run(steps: list[Step], settings: dict, manifest: dict, out: Path, again: str, console: Console) -> int:
    """Execute the chosen steps in order, keeping the manifest up to date. Returns the exit code."""
    records, chosen = manifest["notebooks"], [s for s in steps if s.chosen]
    for step in steps:
        if step.reason and "inputs" in records.get(step.notebook.name, {}):
            records[step.notebook.name]["status"] = "stale"
    parameters = {k: settings[k] for k in ("profile", "seed", "overrides")} | {"out": str(out)}
    with signals_noted() as stopped:
        for i, step in enumerate(chosen):
            name, head = step.notebook.name, f"[{i + 1}/{len(chosen)}] {step.notebook.name}"
            if step.reason is None:
                records[name]["status"] = "skipped"
                console.say(f"{head} skipped: unchanged since {records[name]['finished_utc']}")
                continue
            to_run = [s for s in chosen[i:] if s.reason]

            def tick(seconds, line, is_news, head=head, to_run=to_run):
                total = left(to_run, seconds)
                total = total and f" ({total} left in all)"
                console.progress(f"{head} {clock(seconds)}{total}  {line}", is_news)

            total = left(to_run)
            console.say(f"{head} starts ({step.reason}){total and f'; {total} left in all'}")
            records[name] = {"status": "interrupted"}  # until we know better
            write_manifest(out, manifest)
            target = out / "notebooks" / step.notebook.path.name
            records[name], problem = execute(step.notebook, target, parameters, tick, stopped)
            if problem is None:
                records[name] |= {"inputs": step.inputs, "fingerprint": digest(step.inputs)}
            write_manifest(out, manifest)
            console.say(f"{head} {records[name]['status']} after {clock(records[name]['wall_s'])}")
            if problem is None:
                continue
            if not stopped:
                tell_problem(problem, records[name], target, console)
            rest = "" if "--only" in again else f" --from {step.notebook.number}"
            console.say(f"to go on: {again}{rest}")
            return 128 + stopped[0] if stopped else 1
    return 0


def tell_problem(problem: dict, record: dict, target: Path, console: Console) -> None:
    if "cell" in problem:
        console.say(f"  in cell {problem['cell']}:")
    for line in [*(f"| {line}" for line in problem.get("source", [])), *problem["why"]]:
        console.say(f"    {line}")
    executed = target.with_name(Path(record["output"]).name)
    if executed.exists():
        console.say(f"executed so far: {executed}")
    console.say(f"all output: {target.with_suffix('.log')}")


def main(argv: list[str] | None = None, notebooks: Path = ROOT / "notebooks") -> int:
    args = parse(argv)
    console = Console(sys.stderr if args.json else sys.stdout)
    try:
        settings = read_settings(args.profile, args.set)
        found = read_notebooks(notebooks)
        chosen = select(found, args.only, args.first, args.last)
        out = (args.out or ROOT / "outputs" / args.profile).resolve()
        looking = args.list or args.dry_run
        with contextlib.nullcontext() if looking else locked(out):
            records = read_manifest(out).get("notebooks", {})
            steps = make_plan(found, chosen, settings, records, out, args.force and not args.list)
            if looking:
                show(args, steps, settings, records, console)
                return 0
            start, manifest = time.monotonic(), {**settings, "started_utc": utc_now(), "finished_utc": None}
            manifest |= {**provenance(), "notebooks": records}
            code = run(steps, settings, manifest, out, command_again(args), console)
            manifest |= {"finished_utc": utc_now(), "wall_s": round(time.monotonic() - start, 1)}
            write_manifest(out, manifest)
    except Usage as error:
        print(f"run_all.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before or after the notebooks; while they run it is noted and dealt with
        return 130
    except BrokenPipeError:  # the reader has gone, as with a pipe into head; a notebook was ended on the way
        os.dup2(os.open(os.devnull, os.O_WRONLY), console.stream.fileno())
        return 1
    if code == 0:
        tell_end(manifest, out, console)
    if args.json:
        print(json.dumps(manifest))
    return code


def command_again(args: argparse.Namespace) -> str:
    """The command that goes on where this one ended, but for --from."""
    parts = ["python", "run_all.py", "--profile", args.profile]
    parts += [x for assignment in args.set for x in ("--set", assignment)]
    for flag, value in (("--out", args.out), ("--only", args.only), ("--to", args.last)):
        parts += [flag, str(value)] if value else []
    return shlex.join(parts)


def tell_end(manifest: dict, out: Path, console: Console) -> None:
    summary = out / "tables" / "summary.txt"
    if summary.exists():
        console.say("\n" + summary.read_text(encoding="utf-8").rstrip() + "\n")
    peak_mb = max(r.get("peak_rss_summed_mb", 0) for r in manifest["notebooks"].values())
    console.say(
        f"all done in {clock(manifest['wall_s'])}; at most {peak_mb / 1024:.1f} GB of memory in use, of this "
        f"machine's {manifest['ram_gb']:.0f} GB"
    )
    for folder in ("figures", "tables", "notebooks"):
        if (out / folder).exists():
            console.say(f"  {out / folder}")


if __name__ == "__main__":
    sys.exit(main())
