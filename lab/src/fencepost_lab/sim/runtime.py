"""Python inside the page: Pyodide, as npm has it, and the source that the simulator needs, as one archive."""

import ast
import gzip
import io
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import fencepost
import fencepost_lab
from fencepost.errors import ConfigError

ENTRY = "fencepost_lab.sim.answers"
"""The module that Python inside the page imports."""
_PACKAGES = {name: Path(str(module.__file__)).parent for name, module in (
    ("fencepost", fencepost), ("fencepost_lab", fencepost_lab),
)}  # fmt: skip
_NOTICE = """\
pyodide.mjs, pyodide.asm.mjs, pyodide.asm.wasm.bin (gzip) and python_stdlib.zip are {package} of npm, unchanged:
CPython compiled to WebAssembly. Pyodide is under the Mozilla Public License 2.0, CPython under the PSF License;
their source is at https://github.com/pyodide/pyodide and https://github.com/python/cpython.
fencepost.zip is the source of fencepost and its simulator, under the Apache License 2.0.
"""


def files() -> dict[str, bytes]:
    """Every file that Python inside the page is made of, by its name; ConfigError if Pyodide cannot be downloaded.

    What npm's package holds is taken from the cache, and downloaded into it if it is not there.
    """
    package, folder = _pyodide()
    wasm = (folder / "pyodide.asm.wasm").read_bytes()
    lock = json.loads((folder / "pyodide-lock.json").read_bytes())
    return {
        "pyodide-lock.json": json.dumps({"info": lock["info"], "packages": {}}).encode(),  # it loads no package
        # Compressed here, for not every file server compresses: the worker unpacks it.
        "pyodide.asm.wasm.bin": gzip.compress(wasm, 6, mtime=0),
        "fencepost.zip": source(),
        "NOTICE.txt": _NOTICE.format(package=package).encode(),
        **{name: (folder / name).read_bytes() for name in ("pyodide.mjs", "pyodide.asm.mjs", "python_stdlib.zip")},
    }


def _pyodide() -> tuple[str, Path]:
    """The package that is pinned, and the folder it is unpacked in."""
    from fencepost_lab.servers.downloads import Failure, fetch, one_at_a_time
    from fencepost_lab.servers.programs import PROGRAMS

    pyodide = PROGRAMS["pyodide"]
    try:
        if not (found := pyodide.find()):
            if not shutil.which("npm"):
                raise Failure("npm is not on this machine")
            with one_at_a_time():
                if not pyodide.find():
                    fetch(pyodide.npm, sha256=pyodide.sha256)
            found = pyodide.find()
        if not found:
            raise Failure("npm's archive has no such folder")
    except (Failure, OSError) as error:
        raise ConfigError(
            f"cannot get {pyodide.npm}, which runs the simulator inside the page: {error}\n"
            "Install npm and try again; or export the recorded scenarios only, with --recorded (export(recorded=True))"
        ) from error
    return pyodide.npm, Path(found["PYODIDE"])


def source() -> bytes:
    """The archive of what ``ENTRY`` imports, at once or later; the same source gives the same bytes."""
    archive = io.BytesIO()
    with ZipFile(archive, "w", ZIP_DEFLATED) as made:
        for module, path in sorted(modules(ENTRY).items()):
            name = Path(*module.split(".")[:1], path.relative_to(_PACKAGES[module.split(".")[0]]))
            made.writestr(ZipInfo(name.as_posix()), path.read_bytes(), ZIP_DEFLATED)
    return archive.getvalue()


def modules(entry: str) -> dict[str, Path]:
    """A module and all those of ours that it imports, directly or not, inside functions too; each with its file."""
    found: dict[str, Path] = {}
    left = [entry]
    while left:
        parts = left.pop().split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name not in found and (path := _file(name)):
                found[name] = path
                left += _imports(ast.parse(path.read_bytes()).body)
    return found


def _file(module: str) -> Path | None:
    first, *rest = module.split(".")
    if first not in _PACKAGES:
        return None
    place = _PACKAGES[first].joinpath(*rest)
    found = [path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()]
    return found[0] if found else None


def _imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that are imported; of ``from a import b`` both a and a.b, for b may be a module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports(node.orelse)
        else:
            yield from _imports(ast.iter_child_nodes(node))
