"""Every screen of a hall, found by following the links from the first page, as a user does."""

from __future__ import annotations

import html
import re
from urllib.parse import urljoin, urlsplit

import requests

from tests.browser.rig import BrowserHall

LINK = re.compile(r'<a\s[^>]*?href="([^"#][^"]*)"', re.DOTALL)
NOT_SCREENS = re.compile(r"/logout/|/jsi18n/")
NEEDS_QUERY = re.compile(r"/(prompt|resource|template)/$")  # the page is about what the query names
MAX_SCREENS = 120
# How many pixels the page is wider than its window.
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# What scrolls sideways: the page, or a list in it. Long lines of code and wide tables have boxes that may.
SIDEWAYS = """() => [document.documentElement, ...document.querySelectorAll("#changelist, #changelist-form .results")]
  .filter((part) => part.scrollWidth > part.clientWidth)
  .map((part) => `${part.id || part.className || "the page"} is ${part.scrollWidth} pixels wide`)"""


def screens_of(hall: BrowserHall, *more: str) -> list[str]:
    """One address for each kind of page under /admin/, and those of `more` that are there.

    Parts of pages and downloads do not count.
    """
    screens, paths_to_visit = {"/admin/login/"}, ["/admin/", *more]
    kinds = {kind_of(path) for path in [*paths_to_visit, *screens]}
    with requests.Session() as session:
        for cookie in hall.login_cookies:
            session.cookies.set(cookie["name"], cookie["value"])
        while paths_to_visit and len(screens) < MAX_SCREENS:
            path = paths_to_visit.pop(0)
            page = session.get(urljoin(hall.url, path), timeout=30)
            if path in more and not page.ok:
                continue
            if not page.headers.get("Content-Type", "").startswith("text/html") or "</html>" not in page.text:
                continue
            screens.add(path)
            for link in LINK.findall(page.text):
                address = urlsplit(urljoin(page.url, html.unescape(link)))
                is_own = address.netloc == urlsplit(hall.url).netloc and address.path.startswith("/admin/")
                if is_own and not NOT_SCREENS.search(address.path) and kind_of(address.path) not in kinds:
                    kinds.add(kind_of(address.path))
                    query = f"?{address.query}" if NEEDS_QUERY.search(address.path) else ""
                    paths_to_visit.append(address.path + query)
    return sorted(screens)


def kind_of(path: str) -> str:
    """The address without the row's number."""
    return re.sub(r"/\d+(?=/)", "/N", path)
