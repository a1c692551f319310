"""Runs: the one unit of work. Identity, folders, locks and provenance; never what is in a run.

A run is a frozen config. Its identity is the hash of that config and of its inputs' identities, and its
folder is `<out>/runs/<kind>-<name>-<hash8>/`. `ensure` gives the finished run: loads it if it stands, makes
it otherwise. `_SUCCESS`, written last, holds a digest of each package file that the maker imports, so a run
made by other code is noticed and made again.
"""

from __future__ import annotations

import ast
import contextlib
import datetime
import fcntl
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent
REPOSITORY = PACKAGE.parent


@dataclass(frozen=True)
class RunConfig:
    """What decides a run. `maker` is "module:function", called as maker(config, folder, inputs) -> facts.

    `values` holds plain JSON values; `inputs` maps a name to the config of another run.
    """

    kind: str
    name: str
    maker: str
    seed: int
    values: dict[str, Any] = field(hash=False)
    inputs: dict[str, RunConfig] = field(default_factory=dict, hash=False)

    @property
    def identity(self) -> str:
        """Hexadecimal SHA-256 of the config and of its inputs' identities."""
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()

    @property
    def lineage(self) -> str:
        """Hexadecimal SHA-256 of what decides the run but for seeds, its own and its inputs'."""
        inputs = {k: v.lineage for k, v in self.inputs.items()}
        decides = [self.kind, self.name, self.maker, self.values, inputs]
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """The config as plain values, inputs by identity."""
        inputs = {k: v.identity for k, v in self.inputs.items()}
        return {
            "kind": self.kind,
            "name": self.name,
            "maker": self.maker,
            "seed": self.seed,
            "values": self.values,
            "inputs": inputs,
            "lineage": self.lineage,
        }


@dataclass(frozen=True)
class Run:
    """A finished run's folder."""

    config: RunConfig
    folder: Path

    @property
    def manifest(self) -> dict[str, Any]:
        """Provenance: versions, commit, machine, seconds, and the facts that the maker returned."""
        return json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))

    def frame(self, name: str):
        """The table `name` (pandas). Raises FileNotFoundError or ValueError naming the run and what to do where
        it is missing or can't be read."""
        import pandas as pd

        path = self.folder / f"{name}.parquet"
        mend = f"delete {self.folder} and run the notebook that makes it again"
        if not path.exists():
            raise FileNotFoundError(f"run {self.folder.name} has no table {name!r}; {mend}")
        try:
            return pd.read_parquet(path)
        except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
            raise ValueError(f"{path} can't be read ({error}); {mend}") from error


def output_folder(profile_name: str, out: str | os.PathLike | None = None) -> Path:
    """Where a profile's outputs lie: `out`, or outputs/<profile> in the repository (or in the working folder,
    where the package is installed without one)."""
    if out is not None:
        return Path(out).resolve()
    root = REPOSITORY if (REPOSITORY / "notebooks").is_dir() else Path.cwd()
    return root / "outputs" / profile_name


def ensure(config: RunConfig, out: Path, keep_stale: bool = False, say: Callable[[str], None] = print) -> Run:
    """The finished run of `config` under `out`, made now if need be, its inputs first.

    Two processes that ask for the same run share it: the second waits. A run whose code, inputs or files
    have changed since is made again, saying which changed, unless `keep_stale`. A maker that raises leaves no
    `_SUCCESS`, so the next call starts that run anew.
    """
    inputs = {name: ensure(c, out, keep_stale, say) for name, c in config.inputs.items()}
    folder = Path(out) / "runs" / f"{config.kind}-{config.name}-{config.identity[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder, say):
        sources = source_digests(config.maker)
        stamps = {name: _digest(run.folder / "_SUCCESS") for name, run in inputs.items()}
        changed = _changed(folder, sources, stamps)
        if changed is not None and (not changed or keep_stale):
            return Run(config, folder)
        if changed:
            say(f"{folder.name}: made again, because {', '.join(changed)} changed")
        for path in folder.iterdir():
            if path.name != ".lock":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        _write_json(folder / "config.json", config.as_json())
        say(f"{folder.name}: making")
        started = time.monotonic()
        module, function = config.maker.split(":")
        facts = getattr(importlib.import_module(module), function)(config, folder, inputs)
        wall_s = time.monotonic() - started
        _write_json(folder / "manifest.json", provenance() | {"wall_s": round(wall_s, 2)} | (facts or {}))
        finished = datetime.datetime.now(datetime.UTC).isoformat()
        success = {"sources": sources, "inputs": stamps, "files": _sizes(folder), "finished": finished}
        _write_json(folder / "_SUCCESS", success)
        say(f"{folder.name}: made in {wall_s:.0f} s")
    return Run(config, folder)


def siblings(config: RunConfig, out: Path) -> list[Run]:
    """The finished runs under `out` that differ from `config` in the seed alone (inputs' seeds included),
    itself among them, by seed. For reading: their configs name no inputs."""
    found = []
    for folder in sorted((Path(out) / "runs").glob(f"{config.kind}-{config.name}-*")):
        if not (folder / "_SUCCESS").exists():
            continue
        known = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if known["lineage"] == config.lineage:
            kept = {k: known[k] for k in ("kind", "name", "maker", "seed", "values")}
            found.append(Run(RunConfig(**kept), folder))
    return sorted(found, key=lambda run: run.config.seed)


def table(runs: list[Run], name: str):
    """One tidy frame of the runs' tables `name`, with columns `run`, `kind`, `name` and `seed` in front."""
    import pandas as pd

    frames = []
    for run in runs:
        frame = run.frame(name)
        for i, column in enumerate(("kind", "name", "seed")):
            frame.insert(i, column, getattr(run.config, column))
        frame.insert(0, "run", run.folder.name)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def source_digests(maker: str) -> dict[str, str]:
    """A digest of each package file that the maker's module imports, directly or through others; of a
    package that is a program by itself (it has a `__main__`), all files."""
    waiting, digests = [maker.split(":")[0]], {}
    while waiting:
        name = waiting.pop()
        path = _module_file(name)
        if path is None or (key := path.relative_to(PACKAGE).as_posix()) in digests:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        digests[key] = _code_digest(tree)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        if path.name == "__init__.py" and (path.parent / "__main__.py").exists():
            waiting += [f"{name}.{p.stem}" for p in path.parent.glob("*.py") if p != path]
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                waiting += [a.name for a in node.names]
            elif isinstance(node, ast.ImportFrom):
                parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                module = ".".join([*parents, *([node.module] if node.module else [])])
                waiting += [module, *(f"{module}.{a.name}" for a in node.names)]
    return dict(sorted(digests.items()))


def _code_digest(tree: ast.Module) -> str:
    """A digest of what the code does: another docstring, comment or layout is no other code."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node, clean=False
        ):
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _module_file(name: str) -> Path | None:
    if name.split(".")[0] != PACKAGE.name:
        return None
    path = PACKAGE.joinpath(*name.split(".")[1:])
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((p for p in candidates if p.is_file()), None)


def _changed(folder: Path, sources: dict, stamps: dict) -> list[str] | None:
    """None where the run is not finished; else the files and inputs that differ from when it was made."""
    try:
        then = json.loads((folder / "_SUCCESS").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(then, dict) or not {"sources", "inputs", "files"} <= then.keys():
        return None
    files = {k for k in then["sources"].keys() | sources if then["sources"].get(k) != sources.get(k)}
    inputs = {f"input {k}" for k in stamps if then["inputs"].get(k) != stamps[k]}
    now = _sizes(folder)
    damaged = {f"its file {k}" for k, size in then["files"].items() if now.get(k) != size}
    return sorted(files | inputs | damaged)


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file of a run but for the lock and the marker itself."""
    paths = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.name not in (".lock", "_SUCCESS"))
    return {p.relative_to(folder).as_posix(): p.stat().st_size for p in paths}


def provenance() -> dict[str, Any]:
    """What made this: package versions, commit, machine."""
    versions = {}
    for name in ("agentrl", "torch", "transformers", "trl", "numpy", "reasoning-gym"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "versions": versions,
        "python": platform.python_version(),
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain")),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
    }


def _git(*args: str) -> str | None:
    try:
        done = subprocess.run(["git", *args], cwd=REPOSITORY, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@contextlib.contextmanager
def _lock(folder: Path, say):
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say(f"{folder.name}: another process is making it, waiting")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield  # the lock goes with the handle, also where the process is killed


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write_json(path: Path, value) -> None:
    """Whole or not at all: a reader never sees half a file."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(path)
