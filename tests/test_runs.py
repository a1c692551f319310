"""Runs: identity, making once, noticing what changed, sharing, and surviving a bad end."""

import dataclasses
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pandas as pd
import pytest

from agentrl import runs
from agentrl.runs import Run, RunConfig, ensure, output_folder, source_digests, table

ROOT = Path(runs.__file__).parents[1]
LOG: list[str] = []  # the runs made in this process, in order


def make(config, folder, inputs):
    """A maker: notes that it ran, writes a table."""
    LOG.append(config.name)
    base = sum(run.frame("numbers")["x"].sum() for run in inputs.values())
    pd.DataFrame({"x": [base + config.values.get("x", 1)], "at": [config.seed]}).to_parquet(
        folder / "numbers.parquet"
    )
    return {"made": config.name}


def fail(config, folder, inputs):
    LOG.append(config.name)
    (folder / "half.txt").write_text("half")
    if config.values["flag"] and not Path(config.values["flag"]).exists():
        raise RuntimeError("no flag")
    return None


def run_config(name="a", seed=0, values=None, inputs=None, maker="make"):
    return RunConfig(
        "test", name, f"{__name__}:{maker}", seed, {"x": 1} if values is None else values, inputs or {}
    )


@pytest.fixture
def said():
    LOG.clear()
    lines = []
    yield lines
    LOG.clear()


# Identity


def test_identity_does_not_depend_on_order():
    a = run_config(
        values={"x": 1, "y": {"p": 1, "q": 2}}, inputs={"m": run_config("m"), "n": run_config("n")}
    )
    b = run_config(
        values={"y": {"q": 2, "p": 1}, "x": 1}, inputs={"n": run_config("n"), "m": run_config("m")}
    )
    assert a.identity == b.identity
    assert len(a.identity) == 64 and int(a.identity, 16)


def test_identity_changes_with_everything_that_decides():
    start = run_config(values={"x": 1}, inputs={"m": run_config("m")})
    others = [
        dataclasses.replace(start, kind="other"),
        dataclasses.replace(start, name="b"),
        dataclasses.replace(start, maker="agentrl.data:run"),
        dataclasses.replace(start, seed=1),
        dataclasses.replace(start, values={"x": 2}),
        dataclasses.replace(start, values={"x": 1, "y": None}),
        dataclasses.replace(start, values={"x": "1"}),
        dataclasses.replace(start, values={}),
        dataclasses.replace(start, inputs={}),
        dataclasses.replace(start, inputs={"n": run_config("m")}),
        dataclasses.replace(start, inputs={"m": run_config("m", seed=1)}),
        dataclasses.replace(start, inputs={"m": run_config("m", inputs={"deep": run_config("d")})}),
    ]
    assert len({c.identity for c in [start, *others]}) == 13


def test_folder_names_kind_name_and_identity(tmp_path, said):
    config = run_config("fine-name")
    run = ensure(config, tmp_path, say=said.append)
    assert run.folder == tmp_path / "runs" / f"test-fine-name-{config.identity[:8]}"


# Making


def test_made_once_then_loaded(tmp_path, said):
    first = ensure(run_config(), tmp_path, say=said.append)
    assert LOG == ["a"] and any("making" in line for line in said)
    said.clear()
    second = ensure(run_config(), tmp_path, say=said.append)
    assert LOG == ["a"] and said == [] and second == first
    assert second.frame("numbers")["x"].tolist() == [1]
    assert json.loads((first.folder / "config.json").read_text())["values"] == {"x": 1}


def test_out_may_be_a_string(tmp_path, said):
    assert ensure(run_config(), str(tmp_path), say=said.append).folder.is_dir()


def test_manifest_has_provenance_and_the_maker_s_facts(tmp_path, said):
    manifest = ensure(run_config(), tmp_path, say=said.append).manifest
    assert manifest["made"] == "a" and manifest["wall_s"] >= 0
    assert {"versions", "python", "commit", "platform", "cpus"} <= manifest.keys()
    assert "torch" in manifest["versions"]


def test_inputs_are_made_first_and_once(tmp_path, said):
    base = run_config("base", values={"x": 10})
    left, right = run_config("left", inputs={"b": base}), run_config("right", inputs={"b": base})
    top = run_config("top", values={"x": 5}, inputs={"l": left, "r": right})
    run = ensure(top, tmp_path, say=said.append)
    assert LOG == ["base", "left", "right", "top"]
    assert run.frame("numbers")["x"].tolist() == [(10 + 1) + (10 + 1) + 5]


def test_seeds_are_separate_runs(tmp_path, said):
    made = [ensure(run_config(seed=s), tmp_path, say=said.append) for s in (0, 1, 0)]
    assert LOG == ["a", "a"] and made[0] == made[2] != made[1]


# Changes


@pytest.fixture
def sources(monkeypatch):
    digests = {"data.py": "1", "rollout.py": "1"}
    monkeypatch.setattr(runs, "source_digests", lambda maker: dict(digests))
    return digests


@pytest.mark.parametrize(
    "change, named, unnamed",
    [
        (lambda d: d.update({"rollout.py": "2"}), "rollout.py", "data.py"),
        (lambda d: d.pop("data.py"), "data.py", "rollout.py"),
        (lambda d: d.update({"new.py": "1"}), "new.py", "data.py"),
    ],
)
def test_changed_source_makes_it_again(tmp_path, said, sources, change, named, unnamed):
    run = ensure(run_config(), tmp_path, say=said.append)
    (run.folder / "left_over.txt").write_text("old")
    change(sources)
    said.clear()
    ensure(run_config(), tmp_path, keep_stale=True, say=said.append)
    assert LOG == ["a"]
    ensure(run_config(), tmp_path, say=said.append)
    assert LOG == ["a", "a"]
    assert any(named in line for line in said) and not any(unnamed in line for line in said)
    assert not (run.folder / "left_over.txt").exists()
    ensure(run_config(), tmp_path, say=said.append)
    assert LOG == ["a", "a"]


def test_input_made_again_makes_it_again(tmp_path, said):
    base = run_config("base")
    top = run_config("top", inputs={"start": base})
    ensure(top, tmp_path, say=said.append)
    (ensure(base, tmp_path, say=said.append).folder / "_SUCCESS").unlink()
    said.clear()
    ensure(top, tmp_path, keep_stale=True, say=said.append)
    assert LOG == ["base", "top", "base"]  # the input was not finished; the stale run itself is kept
    ensure(top, tmp_path, say=said.append)
    assert LOG == ["base", "top", "base", "top"] and any("start" in line for line in said)
    ensure(top, tmp_path, say=said.append)
    assert len(LOG) == 4


def test_source_digests_follow_imports():
    found = source_digests("agentrl.train.rl:run")
    assert {
        "train/rl.py", "train/sft.py", "losses.py", "rollout.py", "chat.py", "rewards.py", "types.py",
        "records.py", "settings.py", "policy/hf.py", "policy/base.py", "data.py", "world/tasks.py",
        "world/families.py",
        "sandbox/local.py", "sandbox/zygote/program.py",
    } <= found.keys()  # fmt: skip
    assert not {"show.py", "figures.py", "evaluate.py", "study/__init__.py", "config.py"} & found.keys()
    assert {len(d) for d in found.values()} == {64}
    assert "losses.py" not in source_digests("agentrl.train.sft:run")
    assert source_digests("json:dumps") == {}


def test_source_digests_read_the_files(tmp_path, monkeypatch):
    package = tmp_path / "agentrl"
    (package / "sub").mkdir(parents=True)
    files = {
        "__init__.py": "",
        "a.py": "import agentrl.b\nfrom agentrl import c\nfrom agentrl.d import name\nimport json\n",
        "b.py": "def late():\n    from agentrl.sub import e\n",
        "c.py": "from agentrl.a import x\n",
        "d.py": "",
        "sub/__init__.py": "from . import f\nfrom .g import y\n",
        "sub/e.py": "from .. import h\n",
        "sub/f.py": "",
        "sub/g.py": "",
        "h.py": "",
        "unused.py": "",
    }
    for name, source in files.items():
        (package / name).write_text(source)
    monkeypatch.setattr(runs, "PACKAGE", package)
    before = source_digests("agentrl.a:run")
    assert set(before) == set(files) - {"unused.py"}
    (package / "sub" / "g.py").write_text("changed = True\n")
    after = source_digests("agentrl.a:run")
    assert {k for k in after if after[k] != before[k]} == {"sub/g.py"}


# Bad ends


def test_maker_that_raises_leaves_no_success(tmp_path, said):
    flag = tmp_path / "flag"
    config = run_config("f", values={"flag": str(flag)}, maker="fail")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no flag"):
            ensure(config, tmp_path, say=said.append)
        (folder,) = (tmp_path / "runs").iterdir()
        assert not (folder / "_SUCCESS").exists()
    flag.touch()
    assert ensure(config, tmp_path, say=said.append).manifest["wall_s"] >= 0
    assert LOG == ["f"] * 3
    ensure(config, tmp_path, say=said.append)
    assert LOG == ["f"] * 3


@pytest.mark.parametrize(
    "broken", [b"", b"{", b'{"sources": {"a.py": "12', b"\xff\xfe", b"null", b"{}", b"[]"]
)
def test_half_written_success_is_no_success(tmp_path, said, broken):
    run = ensure(run_config(), tmp_path, say=said.append)
    (run.folder / "_SUCCESS").write_bytes(broken)
    ensure(run_config(), tmp_path, say=said.append)
    assert LOG == ["a", "a"]


def test_folder_without_success_is_cleared(tmp_path, said):
    run = ensure(run_config(), tmp_path, say=said.append)
    (run.folder / "_SUCCESS").unlink()
    (run.folder / "model").mkdir()
    (run.folder / "model" / "half").write_text("half")
    ensure(run_config(), tmp_path, say=said.append)
    assert LOG == ["a", "a"] and not (run.folder / "model").exists()


MAKER = """
import sys, time
from pathlib import Path
from agentrl.runs import RunConfig, ensure

def make(config, folder, inputs):
    with open(config.values["log"], "a") as file:
        file.write("made\\n")
    Path(config.values["log"]).with_name("started").touch()
    while not Path(config.values["log"]).with_name("go").exists():
        time.sleep(0.02)

if __name__ == "__main__":
    log, out = sys.argv[1:]
    print("asking", flush=True)
    config = RunConfig("test", "shared", "shared_maker:make", 0, {"log": log})
    ensure(config, Path(out), say=lambda line: print(line, flush=True))
    print("done", flush=True)
"""


@pytest.fixture
def ask(tmp_path):
    """Starts a process that asks for the shared run."""
    (tmp_path / "shared_maker.py").write_text(MAKER)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    started = []

    def start():
        command = [
            sys.executable,
            "-u",
            str(tmp_path / "shared_maker.py"),
            str(tmp_path / "log"),
            str(tmp_path),
        ]
        process = subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for(process, text):
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"the process ended without saying {text!r}")


def test_two_processes_share_a_run(tmp_path, ask):
    first = ask()
    wait_for(first, "making")
    second = ask()
    wait_for(second, "waiting")
    (tmp_path / "go").touch()
    for process in (first, second):
        wait_for(process, "done")
        assert process.wait(timeout=30) == 0
    assert (tmp_path / "log").read_text() == "made\n"


def test_killed_maker_is_followed_by_another(tmp_path, ask):
    first = ask()
    wait_for(first, "making")
    while not (tmp_path / "started").exists():
        assert first.poll() is None
    first.kill()
    first.wait(timeout=30)
    (tmp_path / "go").touch()
    second = ask()
    wait_for(second, "done")
    assert (tmp_path / "log").read_text() == "made\nmade\n"


# Reading


def test_missing_table_names_the_run(tmp_path, said):
    run = ensure(run_config(), tmp_path, say=said.append)
    with pytest.raises(FileNotFoundError, match=run.folder.name):
        run.frame("metrics")


def test_table_has_the_runs_columns_in_front(tmp_path, said):
    made = [
        ensure(run_config(n, seed), tmp_path, say=said.append) for n, seed in (("a", 0), ("a", 1), ("b", 0))
    ]
    frame = table(made, "numbers")
    assert list(frame.columns) == ["run", "kind", "name", "seed", "x", "at"]
    assert frame["name"].tolist() == ["a", "a", "b"] and frame["seed"].tolist() == [0, 1, 0]
    assert frame["run"].tolist() == [r.folder.name for r in made] and set(frame["kind"]) == {"test"}
    assert frame.index.tolist() == [0, 1, 2]


def test_output_folder(tmp_path, monkeypatch):
    assert output_folder("tiny") == ROOT / "outputs" / "tiny"
    assert output_folder("tiny", tmp_path / "x") == tmp_path / "x"
    monkeypatch.chdir(tmp_path)
    assert output_folder("tiny", "here") == tmp_path / "here"
    monkeypatch.setattr(runs, "REPOSITORY", tmp_path / "elsewhere")
    assert output_folder("smoke") == tmp_path / "outputs" / "smoke"


def test_experiments_have_separate_identities():
    study = pytest.importorskip("agentrl.study")
    from agentrl.config import load_profile

    def identities(**overrides):
        profile = load_profile("smoke", **overrides)
        rl = study.rl_run(profile)
        return [
            c.identity
            for c in (
                study.data_run(profile),
                study.sft_run(profile),
                rl,
                study.eval_run(profile, rl, "test"),
            )
        ]

    start = identities()

    def changed(**overrides):
        return [a != b for a, b in zip(start, identities(**overrides), strict=True)]

    assert changed() == [False] * 4
    assert changed(**{"rl.lr": 1e-4}) == [False, False, True, True]
    assert changed(**{"sft.lr": 1e-4}) == [False, True, True, True]
    assert changed(**{"teacher.trajectories": 300}) == [True] * 4
    assert changed(**{"eval.samples": 2}) == [False, False, False, True]
    assert changed(**{"recipe": "GRPO-T"}) == [False, False, True, True]
    assert changed(seed=1) == [True] * 4


def test_run_is_a_plain_value(tmp_path):
    config = run_config()
    assert Run(config, tmp_path) == Run(run_config(), tmp_path)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 3


def test_a_damaged_run_is_made_again(tmp_path, monkeypatch):
    module = types.ModuleType("damaged_maker")
    module.make = lambda config, folder, inputs: (folder / "table.parquet").write_bytes(b"12345") and None
    monkeypatch.setitem(sys.modules, "damaged_maker", module)
    config, said = RunConfig("data", "x", "damaged_maker:make", 0, {}), []
    folder = ensure(config, tmp_path, say=said.append).folder
    ensure(config, tmp_path, say=said.append)
    assert sum("made in" in line for line in said) == 1
    (folder / "table.parquet").write_bytes(b"12")
    ensure(config, tmp_path, say=said.append)
    assert any("its file table.parquet changed" in line for line in said)
    assert (folder / "table.parquet").read_bytes() == b"12345"
    (folder / "table.parquet").unlink()
    ensure(config, tmp_path, say=said.append)
    assert (folder / "table.parquet").exists()
