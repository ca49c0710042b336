"""Who may look: on this machine everyone who came by its own name, from elsewhere only who has the token."""

import secrets
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "gyroscope"
LOCAL = ("127.0.0.1", "localhost", "[::1]")
"""Names by which a browser on this machine comes; another one would be a foreign site that was led here."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Guard:
    """Lets in, and forbids every page to load or send anything elsewhere."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        refusal = self._refusal(scope)
        app = self.app if refusal is None else refusal

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        return await app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if self.token is None:
            host = headers.get("host", "").rpartition(":")
            name = host[0] if host[1] and host[2].isdecimal() else headers.get("host", "")
            return None if name in LOCAL else PlainTextResponse("Come by the address 127.0.0.1.", 403)
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"))
        if self._right(dict(query).get("token", "")):  # out of the address, into a cookie
            rest = urlencode([(key, value) for key, value in query if key != "token"])
            answer = RedirectResponse("." + scope["path"] + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return answer
        if self._right(cookie_parser(headers.get("cookie", "")).get(COOKIE, "")):
            return None
        return PlainTextResponse("Open the address that the server printed: it carries the token.", 401)

    def _right(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), (self.token or "").encode())
