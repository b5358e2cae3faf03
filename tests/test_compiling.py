"""What is compiled: found without a compiler, which takes minutes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import compile as compiler
from tools.compile import SOURCES


def test_a_module_that_is_named_is_compiled_or_the_build_fails(tmp_path: Path) -> None:
    for name in compiler.modules(SOURCES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert compiler.modules(tmp_path)
    (tmp_path / "penstock/server/tasks.py").write_text("class Unready(msgspec.Struct): ...")
    (tmp_path / "penstock/store/layer.py").unlink()
    with pytest.raises(SystemExit, match=r"^tasks\.py, layer\.py: named in COMPILED"):
        compiler.modules(tmp_path)


def native_classes(name: str) -> set[str]:
    """The classes of a compiled module that become types of C: those without bases, and those derived from them."""
    native: set[str] = set()
    for node in ast.parse((SOURCES / name).read_text()).body:
        if isinstance(node, ast.ClassDef):
            may_be_derived = any("allow_interpreted_subclasses" in ast.unparse(each) for each in node.decorator_list)
            if not may_be_derived and {ast.unparse(base) for base in node.bases} <= native:
                native.add(node.name)
    return native


def test_no_class_that_is_not_compiled_derives_from_one_that_is() -> None:
    """Nobody could make one: "interpreted classes cannot inherit from compiled"."""
    compiled = set(compiler.modules(SOURCES))
    native = {name.removesuffix(".py").replace("/", "."): native_classes(name) for name in compiled}
    assert "AsyncShard" in native["penstock.server.tasks"] and "Call" in native["penstock.server.shard"]
    derived = []
    for path in sorted(SOURCES.rglob("*.py")):
        if str(path.relative_to(SOURCES)) in compiled:
            continue
        tree = ast.parse(path.read_text())
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        known = {each.name for node in imports for each in node.names if each.name in native.get(str(node.module), ())}
        derived += [
            f"{path.name}: {node.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and known & {ast.unparse(base) for base in node.bases}
        ]
    assert not derived


def test_sources_that_change_meanwhile_make_no_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel would have the old code compiled beside the new sources."""
    prints = iter(("before", "after", "before", "before"))
    monkeypatch.setattr(compiler, "fingerprint", lambda: next(prints))
    monkeypatch.setattr(compiler, "compile_in", lambda output, names: None)
    output = ["--force", f"--output={tmp_path / 'made'}"]
    with pytest.raises(SystemExit, match="have changed while they were compiled"):
        compiler.main(output)
    assert not (tmp_path / "made" / compiler.STAMP).exists()
    compiler.main(output)
    assert (tmp_path / "made" / compiler.STAMP).read_text() == "before"
