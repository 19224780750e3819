"""Render Markdown of a member or a model as safe HTML. Imported at the first use."""

from __future__ import annotations

from collections.abc import Sequence

import nh3
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from roster.admin.present import leads_to_the_web


def to_html(text: str) -> SafeString:
    """`text` as HTML. HTML in it stays text, no picture is loaded, and links may only be http or https."""
    return mark_safe(f'<div class="markdown">{_clean(_MARKDOWN.render(text), _TAGS)}</div>')  # noqa: S308 - cleaned


def to_inline_html(text: str) -> SafeString:
    """Like `to_html`, but only with emphasis, code and links. The style of the page decides about its lines."""
    return mark_safe(_clean(_MARKDOWN.renderInline(text), _INLINE_TAGS))  # noqa: S308 - cleaned


def _clean(html: str, tags: set[str]) -> str:
    return nh3.clean(
        html,
        tags=tags,
        attributes={"a": {"href", "title", "target"}, "ol": {"start"}, "th": {"class"}, "td": {"class"}},
        url_schemes={"http", "https"},
        link_rel="noopener noreferrer nofollow",
    )


_INLINE_TAGS = {"em", "strong", "s", "code", "a"}
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
    parser.core.ruler.push("tick_boxes", _tick_boxes)
    parser.validateLink = leads_to_the_web  # type: ignore[method-assign,assignment]  # the library's own way
    return parser


def _tick_boxes(state: StateCore) -> None:
    """`- [x] done` begins with a box, which nobody can click."""
    for before, token in zip(state.tokens[1:], state.tokens[2:], strict=False):
        text = token.children[0] if token.type == "inline" and token.children else None
        if text and text.type == "text" and before.type == "paragraph_open" and before.level and before.level % 2 == 0:
            box = _BOXES.get(text.content[:4].lower())
            text.content = box + text.content[4:] if box else text.content


_BOXES = {"[ ] ": "☐ ", "[x] ": "☑ "}
_MARKDOWN = _markdown_parser()
