"""Every screen of a hall, found as a user finds them: by following links from the first page."""

from __future__ import annotations

import html
import re
from urllib.parse import urljoin, urlsplit

import requests

from tests.end_to_end.browser.rig import BrowserHall

LINK = re.compile(r'<a\s[^>]*?href="([^"#][^"]*)"', re.DOTALL)
NOT_SCREENS = re.compile(r"/logout/|/jsi18n/|\.(js|css|json|csv|txt|log)$|/(export|download)\b")
MOST_SCREENS = 120
# How many pixels the page is wider than its window.
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def screens_of(hall: BrowserHall, *more: str) -> list[str]:
    """One address for each kind of page under /admin/, the members' own pages each; `more` are taken in any case."""
    found = {"/admin/login/": "/admin/login/", **{path: path for path in more}}
    waiting = ["/", *more]
    with requests.Session() as session:
        for cookie in hall.login_cookies:
            session.cookies.set(cookie["name"], cookie["value"])
        while waiting and len(found) < MOST_SCREENS:
            page = session.get(urljoin(hall.url, waiting.pop(0)), timeout=30)
            if "text/html" not in page.headers.get("Content-Type", ""):
                continue
            for link in LINK.findall(page.text):
                address = urlsplit(urljoin(page.url, html.unescape(link)))
                path = address.path
                if address.netloc != urlsplit(hall.url).netloc or not path.startswith("/admin/"):
                    continue
                if not NOT_SCREENS.search(path) and kind_of(path) not in found:
                    found[kind_of(path)] = path
                    waiting.append(path)
    return sorted(found.values())


def kind_of(path: str) -> str:
    """The address without the row's number."""
    return re.sub(r"/\d+(?=/)", "/N", path)
