"""How Sphinx builds the site from these documents: ``make docs``.

The pages are plain Markdown, readable in the repository too. A comment such as ``<!-- generated: cli -->`` is replaced
at build time by what ``pages.py`` writes from the code, and links out of ``docs/`` go to the repository.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from docs import pages  # noqa: E402

_PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf-8"))["project"]

project = "fencepost"
author = "the fencepost developers"
copyright = "the fencepost developers, Apache-2.0"
version = release = _PROJECT["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
root_doc = "index"
exclude_patterns = ["_static", "_templates", "**/__pycache__"]
# A page that another branch brings is listed before it is here; one that no toctree lists is an error.
suppress_warnings = ["toc.empty_glob"]

smartquotes = False  # what is quoted is what the program prints
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 6

autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"fencepost {version}"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_favicon = "_static/favicon.svg"
html_css_files = ["fencepost.css"]
html_copy_source = False
html_use_index = False  # the search is better
html_domain_indices = False
html_show_sphinx = False
html_theme_options: dict[str, object] = {"navigation_with_keys": True}
if REPOSITORY := pages.repository():
    html_theme_options |= {"source_edit_link": f"{REPOSITORY}/edit/main/docs/{{filename}}"}

pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
highlight_language = "text"
# The prompt of a console block is not copied, nor what the command prints.
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", pages.read)
    app.connect("autodoc-process-docstring", pages.docstring)
    app.connect("build-finished", pages.repair)
    app.connect("build-finished", pages.simulator)
    app.connect("build-finished", pages.versions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
