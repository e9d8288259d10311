"""What the site's pages get from the code at build time: the references, and links that leave ``docs/``."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from docs import switch

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

_GENERATED = re.compile(r"^<!-- generated: (\w+)((?: [\w./*-]+)*) -->$", re.MULTILINE)
_LINK = re.compile(r"(\]\()(?!\w+:|#|/)([^)\s#]+)(#[^)\s]*)?(\))")
_STORY = re.compile(r"\[([^\]]+)\]\(((?:\.\./)*)sim\.md#story=([\w-]+)\)")
_FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2\s*$", re.MULTILINE | re.DOTALL)
_TOCTREE = re.compile(r"^```\{toctree\}.*?^```", re.MULTILINE | re.DOTALL)
_NOWHERE = "\N{REPLACEMENT CHARACTER}"
"""Stands, until the next step, for the address that a link would have had."""
_IMPORTED = {"CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"}
"""Documents of the repository's root that a page of ``docs/project`` shows."""


def repository() -> str:
    """The address of the repository, '' while none is decided: $FENCEPOST_REPOSITORY, else pyproject.toml's."""
    if given := os.environ.get("FENCEPOST_REPOSITORY"):
        return given.rstrip("/")
    return declared(ROOT / "pyproject.toml")


def declared(pyproject: Path) -> str:
    """The address that ``[project.urls]`` has as Repository or Source."""
    project = tomllib.loads(pyproject.read_text("utf-8"))["project"]
    urls = {name.lower(): url for name, url in project.get("urls", {}).items()}
    return str(urls.get("repository") or urls.get("source") or "").rstrip("/")


def read(app: Any, docname: str, source: list[str]) -> None:
    """Sphinx hands over a page's text: put in what is generated, and lead links out of docs/ to the repository."""
    source[0] = text_of(docname, source[0])


def text_of(docname: str, text: str) -> str:
    """A page's Markdown, as the site has it."""
    folder = (DOCS / docname).parent
    text = _outside_fences(text, lambda prose: _STORY.sub(_play, prose))
    text = _outside_fences(text, lambda prose: _linked(prose, folder))
    text = _TOCTREE.sub(lambda listed: _listed(listed[0], folder), text)
    return _GENERATED.sub(lambda found: GENERATORS[found[1]](*found[2].split()), text)


def _listed(toctree: str, folder: Path) -> str:
    """A toctree without the patterns that no page matches: Sphinx warns of them, and some pages come later."""
    lines = toctree.splitlines()
    return "\n".join(line for line in lines if "*" not in line or any(folder.glob(f"{line}.md")))


def _outside_fences(text: str, change: Callable[[str], str]) -> str:
    """``text`` with its prose changed, and its blocks of code as they are."""
    done, parts = 0, []
    for fence in _FENCE.finditer(text):
        parts += [change(text[done : fence.start()]), fence[0]]
        done = fence.end()
    return "".join([*parts, change(text[done:])])


def _linked(prose: str, folder: Path) -> str:
    """Prose with its links as the site needs them; where one leads nowhere, its words alone."""
    changed = _LINK.sub(lambda link: _link(link, folder), prose)
    return re.sub(rf"\[([^\[\]]*)\]{_NOWHERE}", r"\1", changed)


def _play(link: re.Match[str]) -> str:
    """A link to a guided scenario: on the site it opens the simulator with it, in the repository the page about it."""
    words, up, story = link.groups()
    shown = re.sub("`([^`]+)`", r"<code>\1</code>", words)
    return f'<a href="{up}sim/index.html#story={story}&amp;v=0">{shown}</a>'


def _link(link: re.Match[str], folder: Path) -> str:
    """One relative link of a document in ``folder``, as the site needs it."""
    opening, path, anchor, end = link.groups()
    target = (folder / path).resolve()
    anchor = anchor or ""
    if target.is_relative_to(DOCS) and target.suffix in {".md", ".svg", ".png"}:
        return f"{opening}/{target.relative_to(DOCS).as_posix()}{anchor}{end}"
    if target == ROOT / "README.md":
        return f"{opening}/index.md{end}"
    if target.parent == ROOT and target.name in _IMPORTED:
        return f"{opening}/project/{target.name.lower()}{anchor}{end}"
    inside = target.relative_to(ROOT).as_posix()
    if inside.startswith(("deploy/", "examples/")) and target.is_file():
        return f"{opening}path:/../{inside}{end}"  # a download: what people deploy and try comes with the site
    where = repository()
    return (
        f"{opening}{where}/{'tree' if target.is_dir() else 'blob'}/main/{inside}{anchor}{end}"
        if where
        else f"]{_NOWHERE}"
    )


def document(name: str) -> str:
    """A document of the repository's root, as a page."""
    text = (ROOT / name).read_text("utf-8")
    return _outside_fences(text, lambda prose: _linked(prose, ROOT))


# The API, from the docstrings.


def api(*modules: str) -> str:
    """Every public name of these modules, by autodoc, inside a block of reStructuredText."""
    return "\n".join(part for module in modules for part in _module(module))


def _module(path: str) -> Iterator[str]:
    module = importlib.import_module(path)
    yield f"## `{path}`\n"
    yield _rst(f".. automodule:: {path}\n   :no-members:\n")
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.ismodule(value):
            continue  # it has a heading of its own
        home = shown_at(value, path, name)
        if home != f"{path}.{name}":
            yield f"`{path}.{name}` is [`{home}`](#{home}).\n"
            continue
        if inspect.isclass(value):
            yield _rst(f".. autoclass:: {path}.{name}\n{_members(value)}")
        elif inspect.isroutine(value):
            yield _rst(f".. autofunction:: {path}.{name}\n")
        else:
            yield _rst(f".. autodata:: {path}.{name}\n   :no-value:\n")


_KNOWN = ("fencepost", "builtins", "typing", "abc", "enum")
_INHERITED = "   :inherited-members: Exception, BaseException, Protocol, object, tuple, dict, ABC, Enum, int, str\n"


def _members(cls: type) -> str:
    """Which members of a class are shown: ours, and what they inherit unless another package's class is among that."""
    if not cls.__module__.startswith("fencepost"):
        return ""
    inherits = all(each.__module__.startswith(_KNOWN) for each in cls.__mro__)
    return "   :members:\n" + (_INHERITED if inherits else "")


def shown_at(value: object, path: str, name: str) -> str:
    """The one full name under which the reference describes a name that several modules may offer."""
    for module in API:
        offered = importlib.import_module(module)
        for other in offered.__all__:
            if getattr(offered, other) is value and (inspect.isclass(value) or inspect.isroutine(value)):
                return f"{module}.{other}"
    return f"{path}.{name}"


def _api_modules() -> tuple[str, ...]:
    """The modules that the pages of the reference name, in their order."""
    found: list[str] = []
    for page in sorted((DOCS / "reference").glob("api-*.md")):
        for match in _GENERATED.finditer(page.read_text("utf-8")):
            found += match[2].split()
    return tuple(found)


API = _api_modules()


def _rst(text: str) -> str:
    return f"```{{eval-rst}}\n{text}```\n"


def docstring(app: Any, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Our docstrings are plain text with indented examples and literals in backticks: make reStructuredText of them."""
    if what == "data" and lines and lines[0] == inspect.cleandoc(type(value).__doc__ or "").splitlines()[0]:
        lines[:] = []  # of its type, such as a dict
    lines[:] = rst_of(lines)


def rst_of(lines: list[str]) -> list[str]:
    """A docstring's lines, already dedented, as reStructuredText."""
    done: list[str] = []
    for code, part in _blocks(lines):
        if code:
            if done and done[-2:-1] and done[-2].endswith("::"):
                done[-2] = done[-2].removesuffix("::") + ":"
            done += [f".. code-block:: {'python' if is_python(part) else 'text'}", "", *part]
        else:
            done += [_prose(line) for line in part]
    return [*done, ""]


def _blocks(lines: list[str]) -> Iterator[tuple[bool, list[str]]]:
    """The parts of a docstring: indented after an empty line is code, everything else prose."""
    part: list[str] = []
    code = False
    for number, line in enumerate(lines):
        starts = line.startswith("    ") and not (lines[number - 1].strip() if number else "")
        ends = bool(line.strip()) and not line.startswith("    ")
        if (not code and starts) or (code and ends):
            yield code, part
            part, code = [], not code
        part.append(line)
    yield code, part


def examples(text: str) -> list[str]:
    """The Python of a docstring's examples."""
    found = ("\n".join(part) for code, part in _blocks(inspect.cleandoc(text).splitlines()) if code)
    return [textwrap.dedent(each) for each in found if is_python(each.splitlines())]


def is_python(lines: list[str]) -> bool:
    """Whether an indented block is Python, and not a command or a table."""
    try:
        tree = compile(
            textwrap.dedent("\n".join(lines)), "", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        )
    except SyntaxError:
        return False
    return bool(getattr(tree, "body", None))


def _prose(line: str) -> str:
    parts = re.split(r"(``[^`]+``|`[^`]+`|:\w+:`[^`]+`)", line)
    for number, part in enumerate(parts):
        if part.startswith(("``", ":")):
            continue
        if part.startswith("`"):
            parts[number] = f"`{part}`"
        else:
            parts[number] = re.sub(r"([*|\\])", r"\\\1", re.sub(r"(\w)_(?=\W|$)", r"\1\\_", part))
    return "".join(parts)


# The command line, from --help.


def cli() -> str:
    """Every command, from the program's own help."""
    return "\n".join(_commands())


def commands() -> Iterator[tuple[str, Any, Any]]:
    """Each command's whole name, the command and its context, groups before their commands."""
    import typer

    from fencepost.cli.app import app

    def walk(command: Any, name: str, parent: Any) -> Iterator[tuple[str, Any, Any]]:
        context = type(command).context_class(command, info_name=name.rpartition(" ")[2], parent=parent)
        yield name, command, context
        for each, found in _inside(command, context).items():
            yield from walk(found, f"{name} {each}", context)

    yield from walk(typer.main.get_command(app), "fencepost", None)


def _inside(command: Any, context: Any) -> dict[str, Any]:
    """The commands of a group, without hidden ones; none, if it is no group."""
    if not hasattr(command, "list_commands"):
        return {}
    found = {name: command.get_command(context, name) for name in command.list_commands(context)}
    return {name: each for name, each in found.items() if each is not None and not each.hidden}


def _commands() -> Iterator[str]:
    for whole, command, context in commands():
        yield f"## `{whole}`\n" if whole.count(" ") < 2 else f"### `{whole}`\n"
        yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"
        yield _help(command.help or "") + "\n"
        if inner := _inside(command, context):
            links = [(f"[`{each}`](#{_slug(f'{whole} {each}')})", _summary(found)) for each, found in inner.items()]
            yield _table(("command", "what it does"), links)
        rows = [_parameter(each, context) for each in command.params if not getattr(each, "hidden", False)]
        if rows:
            yield _table(("argument or option", "meaning"), rows)
        if command.epilog and whole != "fencepost":
            yield _help(command.epilog) + "\n"


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _summary(command: Any) -> str:
    text = (command.help or command.short_help or "").strip().split("\n\n")[0]
    return _cell(re.sub(r"\s+", " ", text).replace("\b", ""))


def _help(text: str) -> str:
    """A command's help as Markdown: a paragraph after \\b keeps its lines."""
    parts = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if part.startswith("\b"):
            parts.append("```text\n" + textwrap.dedent(part.removeprefix("\b").strip("\n")) + "\n```")
        elif all(line.startswith("  ") for line in part.splitlines()) and part.strip():
            parts.append("```text\n" + textwrap.dedent(part) + "\n```")
        else:
            parts.append(re.sub(r"([<>*\[\]])", r"\\\1", re.sub(r"\s+", " ", part)))
    return "\n\n".join(parts) + "\n"


def _parameter(parameter: Any, context: Any) -> tuple[str, str]:
    """One argument or option, as --help says it."""
    names, text = parameter.get_help_record(context) or (parameter.name, "")
    plain = names.replace(" <str>", "").replace("|", r"\|")
    return f"`{plain}`", _cell(text)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"([<>|*\[\]])", r"\\\1", text)).strip()


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


# Tables.

STORES = {
    "sqlite": ("sqlite",),
    "redis": ("redis", "redis+cluster", "redis+sentinel"),
    "redlock": ("redlock",),
    "etcd": ("etcd",),
    "zookeeper": ("zk",),
    "consul": ("consul",),
    "postgres": ("postgresql",),
}
"""The page of each store, and the schemes that it describes."""


def known_options(scheme: str) -> set[str]:
    """The options that the store of a URL's scheme really takes."""
    from fencepost.address import Address
    from fencepost.driver.threads import Blocking
    from fencepost.registry import find

    class Asked(Exception):
        pass

    found: set[str] = set()

    class Recorder(Address):
        def options(self, **parsers: Any) -> dict[str, Any]:
            found.update(parsers)
            if "node_timeout" in parsers:  # Redlock reads its own option apart, then those of Redis
                return {}
            raise Asked

    where = Recorder(scheme, (("localhost", None), ("localhost", 2), ("localhost", 3)), path="/master/0")
    try:
        find(scheme)(where, Blocking())
    except Asked:
        pass
    return {option for option in found if not _refused(scheme, option)}


def _refused(scheme: str, option: str) -> bool:
    """Whether the store says itself that it has no such option."""
    from fencepost.address import Address
    from fencepost.driver.threads import Blocking
    from fencepost.errors import ConfigError
    from fencepost.registry import find

    try:
        find(scheme)(Address(scheme, (("localhost", None),), path="/x/0", params={option: "?"}), Blocking())
    except ConfigError as error:
        return "has no option" in str(error)
    return False


def option_rows(store: str) -> list[tuple[str, str, str]]:
    """Option, default and meaning, from the table in a store's page."""
    text = (DOCS / f"{store}.md").read_text("utf-8")
    section = re.search(r"^## Options\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    table = re.findall(r"^\|(.+)\|$", section[1] if section else "", re.MULTILINE)
    rows = [tuple(cell.strip() for cell in row.split(" | ")) for row in table[2:]]
    return [(row[0].strip("| "), row[1], row[2].strip("| ")) for row in rows if len(row) == 3]


def options() -> str:
    """The options of all stores' URLs in one table."""
    rows = []
    for store in STORES:
        for names, default, meaning in option_rows(store):
            meaning = _linked(meaning, DOCS)
            meaning = re.sub(r"\]\(#", f"](/{store}.md#", meaning)
            rows.append((f"[{store}](/{store}.md)", names, default, meaning))
    return _table(("store", "option", "default", "meaning"), rows)


def metrics() -> str:
    """Every instrument with its kind, labels and buckets."""
    from fencepost.hooks.instruments import INSTRUMENTS

    rows = []
    for name, instrument in INSTRUMENTS.items():
        label = f"`{instrument.label}`: {', '.join(instrument.values)}" if instrument.label else ""
        buckets = ", ".join(f"{edge:g}" for edge in instrument.buckets)
        rows.append((f"`{name}`", "histogram" if buckets else "counter", label, buckets, instrument.text))
    return _table(("metric", "kind", "label and its values", "buckets", "meaning"), rows)


def events() -> str:
    """Every kind of event, with the comment that explains it in the source."""
    source = (ROOT / "src" / "fencepost" / "events.py").read_text("utf-8")
    kinds = re.search(r"^Kind: TypeAlias = Literal\[\n(.*?)^\]", source, re.MULTILINE | re.DOTALL)
    assert kinds is not None
    rows = re.findall(r'^    "(\w+)",(?:  # (.*))?$', kinds[1], re.MULTILINE)
    return _table(("kind", "meaning"), ((f"`{kind}`", meaning or "") for kind, meaning in rows))


def exits() -> str:
    """The exit codes of the program."""
    from fencepost.cli import exits as codes

    rows = [("0", "", "done"), (str(codes.FAILED), "", "failed; a check found something")]
    rows += [(str(number), f"`{error.__name__}`", meaning) for error, (number, meaning) in codes.CODES.items()]
    rows += [
        (str(codes.NO_EXEC), "", "`fencepost run`: the command cannot be run"),
        (str(codes.NO_COMMAND), "", "`fencepost run`: there is no such command"),
        (f"{codes.SIGNALLED} + n", "", "signal n ended the program, or the command of `fencepost run`; 130 is Ctrl-C"),
    ]
    return _table(("code", "error", "meaning"), rows)


def http() -> str:
    """The contract of the resource service, from its own OpenAPI document."""
    from fencepost.resource.openapi import document as described

    parts = []
    for path, item in described(secured=True, max_body=1 << 20)["paths"].items():
        shared = item.get("parameters", [])
        for method in ("get", "put", "delete", "post"):
            if (operation := item.get(method)) is None:
                continue
            parts.append(f"### `{method.upper()} {path}`\n")
            parts.append(f"{operation.get('summary') or operation.get('description') or ''}\n")
            given = [each for each in [*shared, *operation.get("parameters", [])] if "name" in each]
            if given:
                rows = ((f"`{each['name']}`", each["in"], _cell(each.get("description", ""))) for each in given)
                parts.append(_table(("parameter", "in", "meaning"), rows))
            answers = operation["responses"].items()
            said = ((f"`{code}`", _cell(answer.get("description", ""))) for code, answer in answers)
            parts.append(_table(("answer", "when"), said))
    return "\n".join(parts)


def sql(path: str) -> str:
    """A file of SQL of the package."""
    return f"```postgresql\n{(ROOT / 'src' / 'fencepost' / path).read_text('utf-8')}```\n"


def history() -> str:
    """The kinds of a history's lines, from the docstring of the module that writes them."""
    from fencepost_lab.history import format as module

    text = inspect.cleandoc(module.__doc__ or "")
    intro, _, table = text.partition("\n===")
    rows: list[list[str]] = []
    for line in table.splitlines():
        if not line.strip("= "):
            continue
        if line[:1] != " ":
            rows.append([line[:13].strip(), line[13:].strip()])
        else:
            rows[-1][1] += f" {line.strip()}"
    kinds = [(f"`{kind}`", _cell(meaning)) for kind, meaning in rows if kind != "ev"]
    about = intro.partition("\n\n")[2]
    return f"{about}\n\n{_table(('ev', 'its other fields, and what it means'), kinds)}"


def toctree(*patterns: str) -> str:
    """The pages below this one, which a reader of the repository finds by its links."""
    return f"```{{toctree}}\n:hidden:\n:glob:\n\n{chr(10).join(patterns)}\n```"


def alerts() -> list[dict[str, Any]]:
    """The rules of deploy/prometheus/rules.yml."""
    rules = importlib.import_module("yaml").safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text("utf-8"))
    return [rule for group in rules["groups"] for rule in group["rules"]]


GENERATORS: dict[str, Callable[..., str]] = {
    "document": document,
    "api": api,
    "cli": cli,
    "options": options,
    "metrics": metrics,
    "events": events,
    "exits": exits,
    "http": http,
    "sql": sql,
    "history": history,
    "toctree": toctree,
}


_REPAIRS: tuple[tuple[re.Pattern[str], str], ...] = (
    # What the theme leaves out, and screen readers and keyboards need; each was found by axe-core.
    (re.compile(r'(<p class="caption" role="heading")>'), r'\1 aria-level="2">'),
    (re.compile(r'<aside class="sidebar-drawer">'), '<aside class="sidebar-drawer" aria-label="All pages">'),
    (re.compile(r'<aside class="toc-drawer'), '<aside aria-label="On this page" class="toc-drawer'),
    (
        re.compile(r'<div class="content-icon-container">'),
        '<div class="content-icon-container" role="navigation" aria-label="This page">',
    ),
    (re.compile(r"<pre>"), '<pre tabindex="0">'),
    (re.compile(r'<div class="table-wrapper'), '<div tabindex="0" role="group" class="table-wrapper'),
    (re.compile(r'<th class="head[^"]*"></th>'), "<td></td>"),
    (re.compile(r"<dl>\n((?:<dd>.*?</dd>\n)+)</dl>"), r'<div class="sig-lines">\n\1</div>'),
)
_LINES = re.compile(r'<div class="sig-lines">\n(?:<dd>.*?</dd>\n)+</div>')


def repair(app: Any, failure: Exception | None) -> None:
    """Make the theme's pages usable without a mouse and without eyes."""
    if failure is None and app.builder.name == "html":
        for page in Path(app.outdir).rglob("*.html"):
            page.write_text(repaired(page.read_text("utf-8")), "utf-8")


def repaired(html: str) -> str:
    """One page, repaired; a second time changes nothing."""
    for fault, better in _REPAIRS:
        html = fault.sub(better, html)
    return _LINES.sub(lambda lines: lines[0].replace("<dd>", "<div>").replace("</dd>", "</div>"), html)


def versions(app: Any, failure: Exception | None) -> None:
    """Say that this build is the only version, until ``scripts/site`` publishes it beside others."""
    if failure is None and app.builder.name == "html":
        (Path(app.outdir) / "_static" / "versions.js").write_text(switch.alone(), "utf-8")


def simulator(app: Any, failure: Exception | None) -> None:
    """Put the simulator beside its page."""
    if failure is None and app.builder.name == "html":
        from fencepost_lab.sim.site import export

        export(Path(app.outdir) / "sim")
