"""The results as one page for each part, because all of them together are too long for a browser."""

import re

INDEX = "results/README.md"
PART = re.compile(r"^## ", re.MULTILINE)
EXPERIMENT = re.compile(r"^### (.+)$", re.MULTILINE)
OUTCOMES = ("holds", "**does not hold**", "**undecided**")
HEADER = "| part | experiments | claims that hold | do not hold | undecided |\n|---|---|---|---|---|"


def split(text: str) -> dict[str, str]:
    """Return the pages of the results by their file in the site. The first one lists the others."""
    introduction, *parts = PART.split(text)
    pages = {}
    rows = [HEADER]
    for part in parts:
        title, _, body = part.partition("\n")
        name = title.partition(":")[0].partition(" (")[0]
        file = f"{slug(name)}.md"
        counts = [body.count(f"| {outcome} |\n") for outcome in OUTCOMES]
        rows.append(f"| [{name}]({file}) | {len(EXPERIMENT.findall(body))} | {' | '.join(map(str, counts))} |")
        experiments = EXPERIMENT.sub(r"## \1", body)
        pages[f"results/{file}"] = f"# {title}\n\n[All results](README.md)\n{experiments}"
    head, answer, counts_by_kind = introduction.partition("All claims:")
    title, _, reading = head.partition("\n")
    listed = "\n".join(rows)
    index = f"{title}\n\n{(answer + counts_by_kind).strip()}\n\n{listed}\n\n## How to read the numbers\n{reading}"
    return {INDEX: index} | pages


def moved(pages: dict[str, str]) -> dict[str, str]:
    """Return where the headings of the whole page are now: the page of each anchor."""
    headings = ((file, title) for file, text in pages.items() for title in re.findall(r"^## (.+)$", text, re.MULTILINE))
    return {f"{INDEX}#{slug(title)}": file for file, title in headings}


def slug(title: str) -> str:
    """Return the anchor that Markdown gives to a heading.

    >>> slug("beyond/network_errors")
    'beyondnetwork_errors'
    """
    return re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-")
