"""Render Markdown of a member or a model as safe HTML. Imported at the first use."""

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
    """`text` as HTML. HTML in it stays text, no picture is loaded, and links may only be http or https."""
    return mark_safe(  # noqa: S308 - built from escaped tokens, and cleaned
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
    """Headings at a lower level than the page's. Links that open in another tab."""

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
