"""Every notebook keeps to the house rules; the slow test runs them all at the smallest profile."""

import ast
from pathlib import Path

import nbformat
import pytest

import run_all

NOTEBOOKS = sorted((Path(run_all.ROOT) / "notebooks").glob("*.ipynb"))
MAX_LINES = 40  # of a code cell


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_backbone_is_there():
    numbers = {path.name[:2] for path in NOTEBOOKS}
    assert {"00", "01", "02", "03", "09", "10"} <= numbers


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_house_rules(path):
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)

    first = notebook.cells[0]
    assert first.cell_type == "markdown" and first.source.startswith("# "), "the first cell is the heading"
    kinds = "".join(cell.cell_type[0] for cell in notebook.cells)
    assert "ccc" not in kinds, "text stands before every second code cell at the latest"
    prose, code = (
        "".join(c.source for c in notebook.cells if c.cell_type == k) for k in ("markdown", "code")
    )
    assert len(prose) > len(code), "more is explained than run"

    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        assert not cell.outputs and cell.execution_count is None, f"cell {number}: strip outputs (nbstripout)"
        assert len(cell.source.splitlines()) <= MAX_LINES, f"cell {number}: too long; call the package"
        source = "\n".join(line for line in cell.source.splitlines() if not line.startswith(("%", "!")))
        defined = [
            node.name
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]
        assert not defined, f"cell {number} defines {defined}; that belongs in the package"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_parameters_are_literals(path):
    notebook = nbformat.read(path, as_version=4)
    tagged = [cell for cell in code_cells(notebook) if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    values = {}
    for statement in ast.parse(tagged[0].source).body:
        assert isinstance(statement, ast.Assign | ast.AnnAssign), "the parameters cell only assigns"
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        values |= {target.id: ast.literal_eval(statement.value) for target in targets}
    assert set(run_all.PARAMETERS) <= set(values)
    assert (values["profile"], values["seed"], values["overrides"], values["out"]) == ("tiny", 0, {}, None)


@pytest.mark.slow
def test_all_notebooks_run_at_the_smallest_profile(tmp_path):
    assert run_all.main(["--profile", "smoke", "--out", str(tmp_path)]) == 0
    assert len(list((tmp_path / "notebooks").glob("*.ipynb"))) == len(NOTEBOOKS)
