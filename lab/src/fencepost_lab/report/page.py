"""Markdown as one page that needs nothing else: pictures inside, light and dark, wide and narrow."""

import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files

from markdown_it import MarkdownIt

from fencepost_lab.report.plots import own

_PROSE = {"what it claims", "what was seen", "measured"}
"""The columns of tables that are read rather than compared."""


def page(title: str, text: str, pictures: Mapping[str, str]) -> str:
    """The page of a Markdown text; an image whose file is among ``pictures`` (name -> SVG) becomes part of it."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)

    def inside(match: re.Match[str]) -> str:
        name, caption = match[1], match[2]
        if name not in pictures:
            return match[0]
        svg = own(pictures[name], name.removesuffix(".svg")).replace("<svg ", f'<svg aria-label="{caption}" ', 1)
        return f'<div class="wide">{svg}</div>'

    body = re.sub(r'<p><img src="([^"]*)" alt="([^"]*)" /></p>', inside, body)
    body = re.sub(r"<table>.*?</table>", _wide, body, flags=re.DOTALL)
    body = re.sub(r"<h2>(.*?)</h2>", lambda match: f'<h2 id="{_anchor(match[1])}">{match[1]}</h2>', body)
    body = body.replace(">as claimed</td>", ' class="held">as claimed</td>')
    body = body.replace(">NOT as claimed</td>", ' class="broken">NOT as claimed</td>')
    style = (files("fencepost_lab.report") / "page.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )


def _wide(match: re.Match[str]) -> str:
    """The table in a frame that scrolls; one of prose can be read below each other instead, so its cells get labels."""
    table = match[0]
    titles = re.findall(r"<th>(.*?)</th>", table)
    if not _PROSE & set(titles):
        return f'<div class="wide">{table}</div>'

    def row(match: re.Match[str]) -> str:
        cells = zip(titles, re.findall(r"<td>(.*?)</td>", match[0], re.DOTALL), strict=True)
        return "<tr>" + "".join(f'<td data-title="{title}">{cell}</td>' for title, cell in cells) + "</tr>"

    table = table.replace("<table>", '<table class="prose">')
    rows = re.sub(r"<tr>\s*<td>.*?</tr>", row, table, flags=re.DOTALL)
    return f'<div class="wide">{rows}</div>'


def _anchor(heading: str) -> str:
    plain = re.sub(r"<[^>]*>|&\w+;", "", heading).lower().replace(" ", "-")
    return "".join(each for each in plain if each.isalnum() or each in "-_")
