"""The server of `gyroscope watch`: pages that follow the runs below a directory while they are written."""

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from html import escape
from typing import final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from gyroscope._json import clean_text
from gyroscope.live.access import access_middleware
from gyroscope.live.feed import Feed, LivePage
from gyroscope.live.run_index import RunIndex
from gyroscope.render import theme
from gyroscope.render.page import linked, page_json, plotly
from gyroscope.render.run_page import SCRIPTS, body
from gyroscope.render.theme import asset
from gyroscope.store import RunError

# Largest number of runs that one page compares.
MOST_RUNS = 8
# Seconds without a viewer after which a run is closed.
IDLE = 60.0

LIST = """<button class="theme" type="button">Dark</button><h1>Runs</h1><p class="settings">{root}</p>
<p id="message" role="status"></p>
<form action="view"><div class="wide"><table><thead><tr><th>run</th><th>state</th>
<th>final loss</th><th>run length</th><th>step</th><th>last written</th><th>compare</th></tr>
</thead><tbody id="runs"></tbody></table></div>
<p><button>Compare the chosen</button></p></form>"""


class UnknownRunError(Exception):
    """A request names a run that is not here."""


@final
class RunServer:
    """The pages of a directory of runs, and their data."""

    def __init__(self, index: RunIndex) -> None:
        self.index = index
        self.feeds: dict[str, Feed] = {}
        self.pages: dict[tuple[str, ...], LivePage] = {}
        self.assets: dict[str, tuple[Callable[[], str], str]] = {
            "style.css": (lambda: theme.style() + asset("report.css"), "text/css"),
            "theme.js": (theme.script, "text/javascript"),
            "plotly.js": (plotly, "text/javascript"),
            **{name: (partial(asset, name), "text/javascript") for name in SCRIPTS},
            **{name: (partial(asset, name), "text/javascript") for name in ("live.js", "list.js")},
        }

    def routes(self) -> list[Route]:
        """Return every address there is."""
        return [
            Route("/", self.list_page),
            Route("/runs", self.runs),
            Route("/view", self.run_page),
            Route("/data", self.data),
            Route("/layer", self.layer),
            Route("/distribution", self.distribution),
            Route("/assets/{name}", self.asset),
        ]

    async def list_page(self, request: Request) -> Response:
        """Serve the list of runs. Its script requests the data."""
        inside = LIST.format(root=escape(clean_text(str(self.index.root))))
        return HTMLResponse(linked("Runs", inside, ("theme.js", "list.js")))

    async def runs(self, request: Request) -> Response:
        """Serve the list, as data."""
        listed = await run_in_threadpool(self.index.runs)
        await run_in_threadpool(self.close_unused)
        now = time.time()
        return _json([{**asdict(run), "idle": now - run.heartbeat} for run in listed])

    async def run_page(self, request: Request) -> Response:
        """Serve the page of one run or several. Its script requests the data."""
        feeds = await self._feeds(request)
        names = ", ".join(feed.name for feed in feeds)
        back = '<p class="screen"><a href="./">All runs</a> <span id="message" role="status"></span></p>'
        return HTMLResponse(linked(names, back + body(names), ("theme.js", "plotly.js", *SCRIPTS, "live.js")))

    async def data(self, request: Request) -> Response:
        """Serve the data of the page, or status 304 if the browser has them."""
        feeds = await self._feeds(request)
        if not feeds:
            return JSONResponse({"error": "Name a run to look at."}, 409)
        page = self.pages.setdefault(tuple(feed.id for feed in feeds), LivePage(feeds))
        try:
            tag, text = await run_in_threadpool(page.read)
        except Exception as error:
            return JSONResponse({"error": _problem(error)}, 409)
        headers = {"ETag": tag}
        if request.headers.get("If-None-Match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(text, media_type="application/json", headers=headers)

    async def layer(self, request: Request) -> Response:
        """Serve the series of a layer."""
        feeds = await self._feeds(request)
        if not feeds:
            return JSONResponse({"error": "Name a run and a layer."}, 400)
        return await run_in_threadpool(_answer, partial(feeds[0].series, request.query_params.get("layer", "")))

    async def distribution(self, request: Request) -> Response:
        """Serve the neurons of a layer at a step."""
        feeds = await self._feeds(request)
        query = request.query_params
        step = query.get("step", "")
        # 18 digits fit into 64 bits.
        if not feeds or not step.isdecimal() or len(step) > 18:
            return JSONResponse({"error": "Name a run, a layer, a quantity and a step."}, 400)
        wanted = partial(feeds[0].distribution, query.get("layer", ""), query.get("quantity", ""), int(step))
        return await run_in_threadpool(_answer, wanted)

    async def asset(self, request: Request) -> Response:
        """Serve scripts and style, from a fixed list."""
        known = self.assets.get(request.path_params["name"])
        if known is None:
            return Response("There is no such file.", 404)
        text, kind = known
        return Response(await run_in_threadpool(text), media_type=kind)

    def close_unused(self) -> None:
        """Close the runs that were not viewed for a while."""
        for id, feed in list(self.feeds.items()):
            if time.monotonic() - feed.used_at > IDLE:
                feed.close()
                del self.feeds[id]
                self.pages = {ids: page for ids, page in self.pages.items() if id not in ids}

    async def _feeds(self, request: Request) -> list[Feed]:
        """Return the runs that a request names. Raise `UnknownRunError` if one of them is not here."""
        # Each run once, in the order of the request.
        ids = list(dict.fromkeys(request.query_params.getlist("run")))[:MOST_RUNS]
        try:
            return await run_in_threadpool(lambda: [self._feed(id) for id in ids])
        except KeyError:
            raise UnknownRunError from None

    def _feed(self, id: str) -> Feed:
        if id not in self.feeds:
            path = self.index.path(id)
            self.feeds[id] = Feed(id, self.index.name(path), path)
        return self.feeds[id]


async def _unknown_run(request: Request, error: Exception) -> Response:
    if request.scope["path"] == "/view":
        return HTMLResponse(linked("No such run", '<p>There is no such run here. <a href="./">All runs</a></p>'), 404)
    return JSONResponse({"error": "Run not found. It may have been moved or deleted."}, 404)


def _json(value: object) -> Response:
    return Response(page_json(value), media_type="application/json")


def _answer(compute: Callable[[], object]) -> Response:
    """Return a result as JSON, or the reason why there is none."""
    try:
        return _json(compute())
    except Exception as error:
        return JSONResponse({"error": _problem(error)}, 409)


def _problem(error: Exception) -> str:
    """Return a sentence for any error, because a run is a file of unknown origin."""
    if isinstance(error, RunError):
        return clean_text(str(error))
    return clean_text(f"This run cannot be shown: {type(error).__name__}: {str(error)[:200]}.")


def application(index: RunIndex, token: str | None = None) -> Starlette:
    """Return the server. With a token, it answers only requests that have the token."""
    # Level 2 of gzip, so that a page of a megabyte does not slow down training on the same machine.
    middleware = [*access_middleware(token), Middleware(GZipMiddleware, minimum_size=2000, compresslevel=2)]
    routes = RunServer(index).routes()
    return Starlette(routes=routes, middleware=middleware, exception_handlers={UnknownRunError: _unknown_run})
