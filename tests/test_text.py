"""Plain text of printed objects: as wide as the terminal."""

from rich.text import Text

from gyroscope._text import WIDTH, to_text

SENTENCE = Text(" ".join(["norm"] * 100))


def test_printed_text_fits_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    lines = to_text(SENTENCE).splitlines()
    assert max(map(len, lines)) == 69  # fourteen words


def test_printed_text_has_a_fixed_width_without_a_terminal_and_if_a_caller_says_so(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.__stdout__", None)
    assert max(map(len, to_text(SENTENCE).splitlines())) == WIDTH - 1
    monkeypatch.setenv("COLUMNS", "72")
    assert max(map(len, to_text(SENTENCE, width=30).splitlines())) == 29
