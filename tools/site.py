"""The documentation site: stage the pages, build them with Zensical, check every link, and write llms.txt.

    python -m tools.site            write build/site
    python -m tools.site --serve    and serve it at 127.0.0.1

`zensical.toml` has the navigation. Pages of docs/ and results/ are staged in build/docs, where links that leave these
folders are replaced: a link to README.md leads to the first page, and a link to source code becomes plain text.
"""

import functools
import http.server
import io
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from tools import gallery, site_links, site_reference, site_text

ROOT = Path(__file__).parent.parent
STAGE = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
CONFIG = ROOT / "zensical.toml"
PORT = 8000
GENERATED = ("docs/gallery/",)
RESULT_FILES = ("*.md", "*/*.md", "*/*.svg")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def sources() -> dict[str, Path]:
    """Return the files of the site by their path in it."""
    docs = ROOT / "docs"
    results = ROOT / "results"
    found = {path.relative_to(docs).as_posix(): path for path in docs.rglob("*") if path.is_file()}
    for pattern in RESULT_FILES:
        found |= {f"results/{path.relative_to(results).as_posix()}": path for path in results.glob(pattern)}
    return found


def stage() -> None:
    """Copy all files of the site to the stage, and adapt the links of its pages."""
    files = sources()
    shutil.rmtree(STAGE, ignore_errors=True)
    for name, path in files.items():
        target = STAGE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".md":
            shutil.copyfile(path, target)
            continue
        adapted = adapt(path.read_text(encoding="utf-8"), name, path, set(files))
        target.write_text(adapted, encoding="utf-8")


def adapt(text: str, name: str, path: Path, files: set[str]) -> str:
    """Return a page with links that lead to other pages of the site, and without links that leave it.

    name   the page's path in the site
    path   the file that it comes from
    files  all paths of the site
    """
    folder = path.parent.relative_to(ROOT).as_posix()

    def replace(match: re.Match[str]) -> str:
        image, words, target, anchor = match.groups()
        place = staged_name(normpath(f"{folder}/{target}"), files)
        if place is None:
            return words
        return f"{image}[{words}]({relpath(place, str(PurePosixPath(name).parent))}{anchor or ''})"

    parts = []
    end = 0
    for fence in FENCE.finditer(text):  # code is not searched for links
        parts += [LINK.sub(replace, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(replace, text[end:])])


def staged_name(target: str, files: set[str]) -> str | None:
    """Return where a file of the repository is in the site, or None if it is not there."""
    if target.startswith(GENERATED):
        return target.removeprefix("docs/")
    if target == "README.md":
        return "index.md"
    name = target.removeprefix("docs/")
    candidates = (name, f"{name}/README.md", f"{name}/index.md")
    return next((candidate for candidate in candidates if candidate in files), None)


def pages(nav: list[dict[str, object]], section: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield section, title and file of each page of a navigation, in order."""
    for entry in nav:
        for title, value in entry.items():
            if isinstance(value, list):
                yield from pages(value, title)
            else:
                yield section, title, str(value)


def main() -> int:
    """Build the site, check it, and serve it if that is asked for."""
    config = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]
    stage()
    for name, page in site_reference.PAGES.items():
        (STAGE / name).write_text(page(), encoding="utf-8")
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # the commands also print
        gallery.write(STAGE / "gallery")
    shutil.rmtree(SITE, ignore_errors=True)
    zensical = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(CONFIG)]
    built = subprocess.run(zensical, cwd=ROOT, check=False)
    if built.returncode:
        return built.returncode
    (SITE / "404.html").unlink(missing_ok=True)  # its links are those of a server's root
    navigation = list(pages(config["nav"]))
    site_text.write(SITE, STAGE, config["site_name"], config["site_description"], navigation)
    problems = site_links.problems(SITE)
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    if problems:
        return 1
    sys.stdout.write(f"{len(list(SITE.rglob('*.html')))} pages in {SITE}: open index.html\n")
    if "--serve" in sys.argv:
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE))
        sys.stdout.write(f"http://127.0.0.1:{PORT}, until Ctrl-C\n")
        http.server.ThreadingHTTPServer(("127.0.0.1", PORT), handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
