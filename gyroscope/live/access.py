"""Access to the server: from this machine by its own host names, from elsewhere only with the printed token."""

import hashlib
import hmac
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Host names of this machine in a request. Any other name is a foreign site that points here (DNS rebinding).
LOCAL_NAMES = ("127.0.0.1", "localhost", "::1", "[::1]")
# Headers of every answer. A page loads nothing from elsewhere and sends nothing anywhere.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def access_middleware(token: str | None) -> list[Middleware]:
    """Return the check of every request: by the token if there is one, otherwise by the host name of the request."""
    if token is None:
        check = Middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_NAMES, www_redirect=False)
    else:
        check = Middleware(TokenMiddleware, token=token)
    # Headers first, because refusals have them too.
    return [Middleware(HeadersMiddleware), check]


class HeadersMiddleware:
    """Adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, with_headers)


class TokenMiddleware:
    """Lets requests with the token pass, and gives a browser that has it a cookie.

    A browser sends a cookie to every port of a host, so the cookie is not the token. Its name is derived from the
    token: servers on one host do not overwrite each other's cookies. Its value is derived from the token and the
    client's address: a server at another port, which receives it, cannot use it from its own address.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.token = token
        self.cookie = f"gyroscope-{hashlib.sha256(token.encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (self.app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """Return the answer to a request that is refused, or None for one that may pass."""
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"))
        value = self._cookie_value(scope)
        if _equal(dict(query).get("token", ""), self.token):
            # The token moves from the address to a cookie. In the address it would stay in the browser's history.
            rest = urlencode([(key, value) for key, value in query if key != "token"])
            answer = RedirectResponse("." + scope["path"] + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(self.cookie, value, httponly=True, samesite="strict")
            return answer
        cookies = cookie_parser(Headers(scope=scope).get("cookie", ""))
        if _equal(cookies.get(self.cookie, ""), value):
            return None
        return PlainTextResponse("Open the address that the server printed. It contains the token.", 401)

    def _cookie_value(self, scope: Scope) -> str:
        address = scope["client"][0] if scope.get("client") else ""
        return hmac.new(self.token.encode(), address.encode(), hashlib.sha256).hexdigest()


def _equal(given: str, expected: str) -> bool:
    """Compare in a time that does not depend on where the two differ."""
    return hmac.compare_digest(given.encode(), expected.encode())
