"""`gyroscope watch`: the runs below a directory on a local page that follows them while they are written."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from functools import partial
from html import escape
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import gyroscope
from gyroscope._json import dumps
from gyroscope.live.access import Guard
from gyroscope.live.feed import At, Feed
from gyroscope.live.run_index import Shelf
from gyroscope.render import theme
from gyroscope.render.gather_runs import ordered
from gyroscope.render.page import asset, linked, plotly
from gyroscope.render.run_data import Report
from gyroscope.render.run_page import body
from gyroscope.store import RunError

TICK = 1.0
"""Seconds between updates of a page."""
MOST_RUNS = 8
"""Runs that one page compares at most."""
IDLE = 60.0
"""Seconds after which a run at which nobody looks any more is closed."""

LIST = """<button class="theme" type="button">Dark</button><h1>Runs</h1><p class="settings">{root}</p>
<p id="said" role="status"></p>
<form action="view"><div class="wide"><table><thead><tr><th>run</th><th>state</th><th>samples</th><th>step</th>
<th>layers</th><th>last sign</th><th>compare</th></tr></thead><tbody id="runs"></tbody></table></div>
<p><button>Compare the chosen</button></p></form>"""


class Watch:
    """The pages of a directory of runs."""

    def __init__(self, shelf: Shelf, stopping: Callable[[], bool] = lambda: False) -> None:
        self.shelf, self.stopping = shelf, stopping
        self.feeds: dict[str, Feed] = {}
        self.assets: dict[str, tuple[Callable[[], str], str]] = {
            "style.css": (lambda: theme.style() + asset("report.css"), "text/css"),
            "theme.js": (theme.script, "text/javascript"),
            "plotly.js": (plotly, "text/javascript"),
            **{name: (partial(asset, name), "text/javascript") for name in ("report.js", "live.js", "list.js")},
        }

    def routes(self) -> list[Route]:
        """Every address there is."""
        return [
            Route("/", self.index),
            Route("/runs", self.runs),
            Route("/view", self.view),
            Route("/data", self.data),
            Route("/update", self.update),
            Route("/events", self.events),
            Route("/distribution", self.distribution),
            Route("/assets/{name}", self.asset),
        ]

    def feed(self, id: str) -> Feed:
        """The run with an id that the shelf knows."""
        if id not in self.feeds:
            path = self.shelf.path(id)
            self.feeds[id] = Feed(id, self.shelf.name(path), path)
        return self.feeds[id]

    def asked(self, request: Request) -> list[Feed]:
        """The runs of a request; `RunError` where one is unknown."""
        ids = list(dict.fromkeys(request.query_params.getlist("run")))[:MOST_RUNS]
        try:
            return [self.feed(id) for id in ids]
        except KeyError:
            raise RunError("There is no such run here: it was moved or deleted, or never was.") from None

    async def index(self, request: Request) -> Response:
        """The list of runs."""
        return shell("Runs", LIST.format(root=escape(str(self.shelf.root))), "theme.js", "list.js")

    async def runs(self, request: Request) -> Response:
        """The list, as data."""
        entries = await run_in_threadpool(self.shelf.entries)
        await run_in_threadpool(self.tidy)
        listed = [{**asdict(entry), "idle": time.time() - entry.heartbeat} for entry in entries]
        return Response(dumps(listed), media_type="application/json")

    async def view(self, request: Request) -> Response:
        """The page of one run or several; its script asks for the data."""
        feeds = await self._feeds(request)
        if isinstance(feeds, Response):
            return shell("No such run", '<p>There is no such run here. <a href="./">All runs</a></p>', code=404)
        names = ", ".join(feed.name for feed in feeds)
        back = '<p class="screen"><a href="./">All runs</a> <span id="said" role="status"></span></p>'
        return shell(names, back + body(names), "theme.js", "plotly.js", "report.js", "live.js")

    async def data(self, request: Request) -> Response:
        """What the page shows, and how far that goes."""
        feeds = await self._feeds(request)
        return feeds if isinstance(feeds, Response) else await run_in_threadpool(guarded, whole, feeds)

    async def update(self, request: Request) -> Response:
        """What came since, for browsers without events."""
        feeds = await self._feeds(request)
        if isinstance(feeds, Response):
            return feeds
        found = await run_in_threadpool(news, feeds, places(request, len(feeds)))
        return Response(f"[{','.join(found)}]", media_type="application/json")

    async def events(self, request: Request) -> Response:
        """What comes, as it comes."""
        feeds = await self._feeds(request)
        if isinstance(feeds, Response):
            return feeds
        stream = self._stream(feeds, places(request, len(feeds)), request)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _stream(self, feeds: list[Feed], at: list[At], request: Request) -> AsyncIterator[str]:
        yield ": hello\n\n"
        said: list[str] = []
        while not self.stopping():
            found = await run_in_threadpool(news, feeds, at)
            if found and found != said:
                said = found
                yield "".join(f"data: {one}\n\n" for one in found)
            elif not found:
                yield ": nothing new\n\n"
            for _ in range(5):
                await asyncio.sleep(TICK / 5)
                if self.stopping() or await request.is_disconnected():
                    return

    async def distribution(self, request: Request) -> Response:
        """The neurons of a layer at a step."""
        feeds = await self._feeds(request)
        if isinstance(feeds, Response):
            return feeds
        asked = request.query_params
        step = asked.get("step", "")
        if not feeds or not step.isdecimal() or len(step) > 18:
            return JSONResponse({"error": "Name a run, a layer, a quantity and a step."}, 400)
        found = (feeds[0].distribution, asked.get("layer", ""), asked.get("quantity", ""), int(step))
        return await run_in_threadpool(guarded, lambda call, *rest: dumps(call(*rest)), *found)

    async def asset(self, request: Request) -> Response:
        """Scripts and style, from a fixed list."""
        found = self.assets.get(request.path_params["name"])
        if found is None:
            return Response("There is no such file.", 404)
        text, kind = found
        return Response(await run_in_threadpool(text), media_type=kind)

    async def _feeds(self, request: Request) -> list[Feed] | Response:
        try:
            return await run_in_threadpool(self.asked, request)
        except RunError as error:
            return problem(error, 404)

    def tidy(self) -> None:
        """Close what nobody has looked at for a while."""
        for id, feed in list(self.feeds.items()):
            if time.monotonic() - feed.asked > IDLE:
                feed.close()
                del self.feeds[id]


def shell(title: str, inside: str, *scripts: str, code: int = 200) -> Response:
    """A page whose scripts are files, so that nothing in it can be made to run."""
    return HTMLResponse(linked(title, inside, scripts), code)


def problem(error: Exception, code: int = 409) -> Response:
    """A sentence, as data."""
    return JSONResponse({"error": str(error)}, code)


def guarded(call: Callable[..., str], *arguments: Any) -> Response:
    """JSON that a call makes, or the sentence that says why not."""
    try:
        return Response(call(*arguments), media_type="application/json")
    except RunError as error:
        return problem(error)


def whole(feeds: list[Feed]) -> str:
    """The report on some runs, and how far each goes."""
    if not feeds:
        raise RunError("Name a run to look at.")
    found = [feed.whole() for feed in feeds]
    layers = [[layer.name for layer in run.layers] for _, run in found]
    if any(set(names) != set(layers[0]) for names in layers):
        raise RunError("These runs have different layers: only runs of the same model can be compared.")
    at = {run.id: place for place, run in found}
    return dumps({"report": Report(ordered([run for _, run in found]), gyroscope.__version__), "at": at})


def news(feeds: list[Feed], at: list[At]) -> list[str]:
    """What came since, of each run; `at` moves on."""
    found = []
    for number, feed in enumerate(feeds):
        try:
            new = feed.since(at[number])
            if new is not None:
                at[number] = new[0]
                found.append(new[1])
        except RunError as error:
            found.append(dumps({"id": feed.id, "problem": str(error)}))
    return found


def places(request: Request, count: int) -> list[At]:
    """How far the viewer says to be with each run; whatever makes no sense leads to a reset."""
    found = []
    for text in request.query_params.getlist("at")[:count]:
        numbers = [int(part) if part.isdecimal() and len(part) < 12 else -1 for part in text.split(".")]
        found.append(At(*numbers) if len(numbers) == 3 else At(-1, 0, 0))
    return found + [At(-1, 0, 0)] * (count - len(found))


def application(shelf: Shelf, token: str | None = None, stopping: Callable[[], bool] = lambda: False) -> Starlette:
    """The server; with a token, only for those who have it."""
    middleware = [Middleware(Guard, token=token), Middleware(GZipMiddleware, minimum_size=2000, compresslevel=2)]
    return Starlette(routes=Watch(shelf, stopping).routes(), middleware=middleware)
