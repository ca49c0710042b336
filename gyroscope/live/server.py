"""The server of `gyroscope watch`: pages that follow the runs below a directory while they are written."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from functools import partial
from html import escape
from typing import final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gyroscope._json import clean_text
from gyroscope.live.access import access_middleware
from gyroscope.live.feed import Feed, Layers, Position
from gyroscope.live.run_index import RunIndex
from gyroscope.render import theme
from gyroscope.render.page import linked, page_json, plotly
from gyroscope.render.run_page import SCRIPTS, body
from gyroscope.render.theme import asset
from gyroscope.report.comparison import shared_layers
from gyroscope.report.run_gather import make_report
from gyroscope.store import RunError

# Seconds between updates of a page.
TICK = 1.0
# Largest number of runs that one page compares.
MOST_RUNS = 8
# Seconds without a viewer after which a run is closed.
IDLE = 60.0
# A position that no data extend, which leads to a reset.
NOWHERE = Position(-1, 0, 0)

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

    def __init__(self, index: RunIndex, stopping: Callable[[], bool] = lambda: False) -> None:
        self.index = index
        self.stopping = stopping
        self.feeds: dict[str, Feed] = {}
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
            Route("/update", self.update),
            Route("/events", self.events),
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
        """Serve the data of the page, and the last step that they contain."""
        return await run_in_threadpool(_answer, partial(_report, await self._feeds(request)))

    async def update(self, request: Request) -> Response:
        """Serve new data, for browsers without events."""
        feeds = await self._feeds(request)
        updates = await run_in_threadpool(_updates, feeds, _positions(request, len(feeds)))
        return Response(f"[{','.join(updates)}]", media_type="application/json")

    async def events(self, request: Request) -> Response:
        """Serve new data as events."""
        feeds = await self._feeds(request)
        stream = self._stream(feeds, _positions(request, len(feeds)), request)
        # The header keeps a proxy from holding events back.
        return StreamingResponse(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _stream(self, feeds: list[Feed], positions: list[Position], request: Request) -> AsyncIterator[str]:
        yield ": hello\n\n"
        last: list[str] = []
        while not self.stopping():
            updates = await run_in_threadpool(_updates, feeds, positions)
            # The same problem is sent once.
            if updates and updates != last:
                last = updates
                yield "".join(f"data: {update}\n\n" for update in updates)
            elif not updates:
                yield ": nothing new\n\n"
            # Five checks per tick whether to end.
            for _ in range(5):
                await asyncio.sleep(TICK / 5)
                if self.stopping() or await request.is_disconnected():
                    return

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


def _report(feeds: list[Feed]) -> dict[str, object]:
    """Return the report on some runs, and the position of each."""
    if not feeds:
        raise RunError("Name a run to look at.")
    whole = [feed.whole(layers) for feed, layers in zip(feeds, _shown_layers(feeds), strict=True)]
    positions = {run.id: position for position, run in whole}
    return {"report": make_report([run for _, run in whole], [feed.layers for feed in feeds]), "at": positions}


def _shown_layers(feeds: list[Feed]) -> list[Layers]:
    """Return the layers that the page of some runs shows: all of one run, or those that several share."""
    if len(feeds) == 1:
        return [None]
    return [tuple(layers) for layers in shared_layers([(feed.name, feed.layers) for feed in feeds])]


def _updates(feeds: list[Feed], positions: list[Position]) -> list[str]:
    """Return the new data of each run, and update `positions`."""
    updates = []
    for number, feed in enumerate(feeds):
        try:
            new = feed.since(positions[number], _shown_layers(feeds)[number])
        except Exception as error:
            updates.append(page_json({"id": feed.id, "problem": _problem(error)}))
            continue
        if new is not None:
            positions[number], text = new
            updates.append(text)
    return updates


def _positions(request: Request, count: int) -> list[Position]:
    """Return the viewer's position in each run. An invalid one leads to a reset."""
    positions = []
    for text in request.query_params.getlist("at")[:count]:
        numbers = [int(part) if part.isdecimal() and len(part) < 12 else -1 for part in text.split(".")]
        positions.append(Position(*numbers) if len(numbers) == 3 else NOWHERE)
    return positions + [NOWHERE] * (count - len(positions))


def application(index: RunIndex, token: str | None = None, stopping: Callable[[], bool] = lambda: False) -> Starlette:
    """Return the server. With a token, it answers only requests that have the token."""
    # Level 2 of gzip, so that a page of a megabyte does not slow down training on the same machine.
    middleware = [*access_middleware(token), Middleware(GZipMiddleware, minimum_size=2000, compresslevel=2)]
    routes = RunServer(index, stopping).routes()
    return Starlette(routes=routes, middleware=middleware, exception_handlers={UnknownRunError: _unknown_run})
