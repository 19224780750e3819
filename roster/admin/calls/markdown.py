"""Markdown that a member or a model wrote, as HTML that is safe to show. Imported when there is some to show."""

from __future__ import annotations

from collections.abc import Sequence

import nh3
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from roster.admin.present import leads_to_the_web


def to_html(text: str) -> SafeString:
    """`text` laid out. HTML in it stays text, no picture is loaded, links lead to http and https alone."""
    return mark_safe(  # noqa: S308 - made of escaped tokens, and cleaned
        '<div class="markdown">'
        + nh3.clean(
            _MARKDOWN.render(text),
            tags=_TAGS,
            attributes={"a": {"href", "title", "target"}, "ol": {"start"}, "th": {"class"}, "td": {"class"}},
            url_schemes={"http", "https"},
            link_rel="noopener noreferrer nofollow",
        )
        + "</div>"
    )


_TAGS = {
    *("p", "br", "hr", "em", "strong", "s", "code", "pre", "blockquote", "ul", "ol", "li", "a"),
    *("h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"),
}


class _Renderer(RendererHTML):
    """Headings below those of the page, links that open beside it."""

    def heading_open(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        return f"<{_lower_heading(tokens[index].tag)}>"

    def heading_close(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        return f"</{_lower_heading(tokens[index].tag)}>\n"

    def link_open(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        tokens[index].attrSet("target", "_blank")
        return self.renderToken(tokens, index, options, env)

    def fence(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        return f"<pre><code>{escape(tokens[index].content)}</code></pre>\n"


def _lower_heading(tag: str) -> str:
    return f"h{min(6, int(tag[1:]) + 2)}"


def _markdown_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"]).disable(["image", "html_block", "html_inline"])
    parser.validateLink = leads_to_the_web  # type: ignore[method-assign,assignment]  # the library's own way
    return parser


_MARKDOWN = _markdown_parser()
