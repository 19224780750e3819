"""Every screen of a hall, found as a user finds them: by following links from the first page."""

from __future__ import annotations

import html
import re
from urllib.parse import urljoin, urlsplit

import requests

from tests.browser.rig import BrowserHall

LINK = re.compile(r'<a\s[^>]*?href="([^"#][^"]*)"', re.DOTALL)
NOT_SCREENS = re.compile(r"/logout/|/jsi18n/")
MOST_SCREENS = 120
# How many pixels the page is wider than its window.
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def screens_of(hall: BrowserHall, *more: str) -> list[str]:
    """One address for each kind of page under /admin/, and `more`; parts of pages and downloads are none."""
    screens, waiting = {"/admin/login/"}, ["/admin/", *more]
    kinds = {kind_of(path) for path in [*waiting, *screens]}
    with requests.Session() as session:
        for cookie in hall.login_cookies:
            session.cookies.set(cookie["name"], cookie["value"])
        while waiting and len(screens) < MOST_SCREENS:
            path = waiting.pop(0)
            page = session.get(urljoin(hall.url, path), timeout=30)
            if not page.headers.get("Content-Type", "").startswith("text/html") or "</html>" not in page.text:
                continue
            screens.add(path)
            for link in LINK.findall(page.text):
                address = urlsplit(urljoin(page.url, html.unescape(link)))
                is_ours = address.netloc == urlsplit(hall.url).netloc and address.path.startswith("/admin/")
                if is_ours and not NOT_SCREENS.search(address.path) and kind_of(address.path) not in kinds:
                    kinds.add(kind_of(address.path))
                    waiting.append(address.path)
    return sorted(screens)


def kind_of(path: str) -> str:
    """The address without the row's number."""
    return re.sub(r"/\d+(?=/)", "/N", path)
