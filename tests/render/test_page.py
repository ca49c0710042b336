"""The page in a file, and the report in a terminal, as the command line makes them."""

import base64
import gzip
import json
import re
import sqlite3
import subprocess
import sys

import pytest

from gyroscope.cli import main
from gyroscope.render.run_page import page
from gyroscope.report import gather
from gyroscope.store import Quantity, Sample, Writer
from tests.render import make
from tests.report.test_run_data import diverging


def run(capsys, *argv):
    code = main([*map(str, argv)])
    return code, *capsys.readouterr()


def unpacked(text, name):
    packed = re.search(rf'id="packed-{name}">([^<]*)<', text).group(1)
    return gzip.decompress(base64.b64decode(packed)).decode()


def test_report_writes_one_page_with_plotly_and_its_data_inside(path, tmp_path, capsys):
    out = tmp_path / "deep" / "report.html"
    code, printed, said = run(capsys, "report", path, "-o", out)
    assert (code, printed, said) == (0, "", f"wrote {out}\n")
    text = out.read_text()
    assert text.startswith("<!doctype html>")
    assert "plotly.js v" in unpacked(text, "plotly")[:100]
    assert json.loads(unpacked(text, "data"))["runs"][0]["name"] == "small"


def test_the_page_asks_nobody_for_anything(path):
    text = page(gather([path]))
    assert not re.search(r"""(src|href)=["'](?!#|data:,)""", text)
    assert "default-src &#x27;none&#x27;" in text
    assert "fetch(" not in text


def test_text_has_the_finding_the_remedy_and_every_layer(path, capsys):
    code, printed, _ = run(capsys, "report", path, "--text")
    assert code == 0
    words = " ".join(printed.split())
    for finding in gather([path]).runs[0].findings:
        assert finding["sentence"] in words
        assert finding["remedy"] in words
    assert all(name.removesuffix(".weight") in printed for name in make.NAMES[:2])
    assert "AdamW, learning rate 0.01, weight decay 0.5, 291 steps, run length 1.2 memories" in printed


def with_incident(path, step=200):
    """A run whose weight decay becomes a hundred times as high."""
    story = make.healthy(**make.SMALL)
    place = make.PER_LAYER.index("weight_decay")
    with make.writer(path, story) as writer:
        for number, layers in make.samples(story, 0):
            for layer in layers:
                layer.scalars[place] *= 100 if number >= step else 1
            writer.put(Sample(number, 1.7e9 + number, dict(enumerate(layers))))
    return path


def test_an_incident_is_a_finding_and_a_mark_and_the_page_opens_at_its_step(tmp_path, capsys):
    out = tmp_path / "report.html"
    code, _, _ = run(capsys, "report", with_incident(tmp_path / "run"), "--at", 204, "-o", out)
    assert code == 0
    data = json.loads(unpacked(out.read_text(), "data"))
    assert data["at"] == 204
    assert {"step": 200, "what": "weight decay", "incident": True} in data["runs"][0]["marks"]
    assert "weight decay changed from 0.5 to 50" in data["runs"][0]["findings"][0]["sentence"]
    shown = data["runs"][0]["layers"][0]["distributions"]["angular_update"]
    assert 200 in [each["step"] for each in shown]


@pytest.mark.parametrize("at", ["1000", "-1"])
def test_a_step_that_the_run_does_not_have_is_refused_in_a_sentence(at, path, tmp_path, capsys):
    code, _, said = run(capsys, "report", path, f"--at={at}", "-o", tmp_path / "report.html")
    assert code == 2
    assert "The last measured step is 290" in said


def test_text_says_of_a_layer_that_its_numbers_are_not_finite(tmp_path, capsys):
    code, printed, _ = run(capsys, "report", diverging(tmp_path / "lost"), "--text")
    assert code == 0
    row = [line for line in printed.splitlines() if line.startswith("stem ")][-1]
    assert row.count("not finite") == 3  # rotation, norm and state
    assert not any(line.startswith("block.0.conv1 ") and "not finite" in line for line in printed.splitlines())


def test_text_has_the_last_value_of_all_that_was_logged(path, tmp_path, capsys):
    with make.writer(tmp_path / "run", story := make.healthy(**make.SMALL)) as writer:
        for step, layers in make.samples(story):
            writer.put(Sample(step, 1.7e9, dict(enumerate(layers))))
        writer.put_scalars(
            [(0, {"loss": 2.0, "grad_norm": 1.0}), (5, {"loss": 0.25}), (7, {"grad_norm": float("inf")})]
        )
    _, printed, _ = run(capsys, "report", tmp_path / "run", "--text")
    assert "last logged: loss 0.25, grad_norm inf" in printed
    _, printed, _ = run(capsys, "report", path, "--text")
    assert "last logged" not in printed


def test_json_is_what_the_page_holds(path, capsys):
    code, printed, _ = run(capsys, "report", path, "--json")
    assert code == 0
    assert json.loads(printed) == json.loads(unpacked(page(gather([path])), "data"))


def test_a_name_that_is_a_script_stays_a_name(tmp_path):
    name = "<script>alert(1)<"
    story = make.healthy(**{**make.SMALL, "names": ("</script><img src=x onerror=alert(2)>",)}, config={"user": name})
    text = page(gather([make.run_at(tmp_path / name, story)]))
    assert "<script>alert" not in text
    assert "onerror" not in text
    assert "&lt;script&gt;alert(1)&lt;" in text


def newer(path):
    make.run_at(path, make.healthy(**make.SMALL))
    with sqlite3.connect(path / "run.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def without_tracker(path):
    Writer(path, quantities=[Quantity("loss", "", "", "", per_vector=False)], config={}).close()


def text_file(path):
    path.mkdir()
    (path / "run.sqlite").write_text("what a nice day, and nothing but words in this file" * 100)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda path: None, "no such directory"),
        (lambda path: path.mkdir(), "contains no run"),
        (text_file, "is not a run"),
        (lambda path: make.writer(path, make.healthy()).close(), "no samples yet"),
        (without_tracker, "has no rotation of any layer"),
        (newer, "another version of Gyroscope"),
    ],
)
def test_what_is_no_run_is_one_sentence(tmp_path, capsys, prepare, words):
    prepare(tmp_path / "run")
    code, printed, said = run(capsys, "report", tmp_path / "run", "-o", tmp_path / "x.html")
    assert (code, printed) == (2, "")
    assert said.startswith("gyroscope: ")
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "x.html").exists()


def test_a_report_over_the_database_of_its_run_is_refused(tmp_path, capsys):
    path = with_incident(tmp_path / "run")
    before = (path / "run.sqlite").read_bytes()
    code, _, said = run(capsys, "report", path, "-o", path / "run.sqlite")
    assert code == 2
    assert "is an input, and the output would replace it" in said
    assert (path / "run.sqlite").read_bytes() == before


def test_runs_are_compared_on_the_layers_they_share_with_their_losses_at_the_head(tmp_path, capsys):
    renamed = [name.replace(".weight", ".parametrizations.weight.original") for name in make.NAMES[:2]]
    first = make.log_at(tmp_path / "adamw", make.healthy(**{**make.SMALL, "names": ("wte.weight", *make.NAMES[:2])}))
    second = make.log_at(tmp_path / "gained", make.healthy(**{**make.SMALL, "names": tuple(renamed)}), seed=1)
    report = gather([first, second])
    assert {run.name: [layer.name for layer in run.layers] for run in report.runs} == {
        "adamw": list(make.NAMES[:2]),
        "gained": list(make.NAMES[:2]),
    }
    code, printed, said = run(capsys, "report", first, second, "--text")
    words = " ".join(printed.split())
    assert (code, said) == (0, "")
    assert words.index("adamw 0.01713 AdamW") < words.index("gained 0.03426 AdamW")
    assert "The comparison leaves out layers that only some runs have: wte (adamw)." in words


def test_runs_of_different_models_are_not_compared(path, tmp_path, capsys):
    other = make.run_at(tmp_path / "other", make.healthy(**{**make.SMALL, "names": ("else.weight",)}))
    code, _, said = run(capsys, "report", path, other, "--text")
    assert code == 2
    assert "no layer in common" in said
    assert said.count("\n") == 1


def test_a_report_starts_without_torch(path):
    check = "import sys, gyroscope.cli; gyroscope.cli.main(sys.argv[1:]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check, "report", str(path), "--text"], check=True, stdout=subprocess.DEVNULL)


def test_help_of_report_and_watch_loads_nothing_heavy():
    check = (
        "import sys, gyroscope.cli; gyroscope.cli.main(['report', '--help']); gyroscope.cli.main(['watch', '--help'])\n"
        "assert not {'torch', 'plotly', 'starlette', 'uvicorn', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)
