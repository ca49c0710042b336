"""The command line as a person meets it: what it says, what it writes, and how it refuses."""

import json
import re
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import version

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyroscope.cli import LAB_COMMANDS, main
from gyroscope.planner.rule_settings import RULES

EXAMPLE = "plan adamw --lr 1e-3 --weight-decay 0.1 --steps 10000 --schedule cosine --warmup 500 --fan-in 512"
ENOUGH = ["--fan-in", "512", "--unit-grad-norm", "0.3", "--shape", "64x512", "--steps", "300"]


def run(capsys, *argv):
    code = main([str(arg) for arg in argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_plan_answers_what_a_practitioner_asks_in_twelve_lines_and_a_picture(capsys):
    code, out, err = run(capsys, *EXAMPLE.split(), "--batch-size", 128, "--dataset-size", 50000)
    assert (code, err) == (0, "")
    before, picture = out.split("\nrotation of weight")
    lines = [" ".join(line.split()) for line in before.splitlines() if line]
    assert len(lines) <= 12
    for line in (
        "settles at 0.00324 rad per step in equilibrium, which the run does not reach",
        "memory 10,000 steps (25.6 epochs) at the peak learning rate",
        "run length 0.5 memories",
        "norm 0.577 at the start, 1.6 in equilibrium",
        "largest angle 0.00778 rad in step 499, 2.4 times that of equilibrium",
        "warmup needed none",
        "end norm 1.02",
    ):
        assert line in lines, line
    assert "⠀" in picture


def test_the_numbers_of_a_plan_are_those_of_its_forecast(capsys):
    argv = "plan adamw --lr 1e-2 --wd 0.5 --betas 0.9,0.99 --fan-in 288 --steps 2000 --schedule cosine"
    data = json.loads(run(capsys, *argv.split(), "--json")[1])
    table = {fact["quantity"]: fact["value"] for fact in data["table"]}
    (layer,) = data["layers"]
    course, settled = layer["forecast"], layer["equilibrium"]
    assert table["settles at"] == f"{settled['angular_update']:.3g} rad per step after {course['settled_at'] + 1} steps"
    assert table["memory"] == f"{settled['timescale']:.0f} steps at the peak learning rate"
    assert table["norm"] == f"{layer['initial_norm']:.3g} at the start, {settled['norm']:.3g} in equilibrium"
    assert table["largest angle"].startswith(f"{max(course['angular_update']):.3g} rad in step 0, ")
    assert table["end"] == f"norm {course['norm'][-1]:.3g}, above equilibrium from step {course['falls_out_at']:,} on"
    assert all(fact["formula"] for fact in data["table"])


def test_a_plan_without_weight_decay_names_no_equilibrium(capsys):
    out = run(capsys, "plan", "adamw", "--wd", 0, "--fan-in", 64, "--steps", 300)[1]
    assert "norm 0.577 at the start, grows without end" in " ".join(out.split())
    assert not re.search("settles at|memory |warmup needed", out)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("option", ["--explain", "--config", "--json", "--html"])
def test_every_option_runs_on_every_rule(rule, option, capsys, tmp_path):
    argv = ["plan", rule, *ENOUGH]
    if option == "--explain":
        plain = run(capsys, *argv)[1]
        code, out, err = run(capsys, *argv, "--explain")
        assert len(out) > len(plain)
        assert "η_r" in out
    elif option == "--config":
        path = tmp_path / "run.toml"
        path.write_text(
            f'optimizer = "{rule}"\nsteps = 300\nschedule = "linear"\nunit_grad_norm = 0.3\n'
            '[[layer]]\nname = "inner"\nfan_in = 64\nshape = [32, 64]\n'
            '[[layer]]\nname = "outer"\nfan_in = 512\ninit_norm = 2.0\nshape = [10, 512]\n'
        )
        code, out, err = run(capsys, "plan", "--config", path)
        assert "inner" in out
        assert "outer" in out
    elif option == "--json":
        code, out, err = run(capsys, *argv, "--json")
        data = json.loads(out)
        assert data["optimizer"]["name"] == rule
        assert len(data["layers"][0]["forecast"]["angular_update"]) == 300
        assert data["summary"]
    else:
        path = tmp_path / "deep" / "plan.html"
        code, out, err = run(capsys, *argv, "--html", path)
        page = path.read_text()
        assert page.startswith("<!doctype html>")
        assert "Plotly.newPlot" in page
        assert "://" not in page.split("<script", 1)[0]  # nothing is fetched
        assert str(path) in err
        err = ""
    assert (code, err) == (0, "")


@pytest.mark.parametrize("rule", [rule for rule, cls in RULES.items() if cls.needs])
def test_what_cannot_be_said_is_left_out_and_the_input_named(rule, capsys):
    code, out, err = run(capsys, "plan", rule)
    assert (code, err) == (0, "")
    for name in RULES[rule].needs:
        assert f"it needs --{name.replace('_', '-')}" in " ".join(out.split())


def test_json_has_null_where_a_number_is_not_finite(capsys):
    code, out, _ = run(capsys, "plan", "adamw", "--weight-decay", 0, "--fan-in", 64, "--json")
    assert code == 0
    data = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert data["layers"][0]["equilibrium"]["norm"] is None


def test_a_command_line_wins_over_the_file(capsys, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('optimizer = "adamw"\nlr = 1e-3\n')
    out = run(capsys, "plan", "--config", path, "--lr", "5e-4")[1]
    assert "AdamW(lr=0.0005" in out


def test_wd_is_short_for_weight_decay(capsys):
    assert "weight_decay=0.05" in run(capsys, "plan", "adamw", "--wd", "0.05", "--steps", "100")[1]


def test_wsd_is_a_schedule_of_plan_transfer_and_convert(capsys):
    wsd = ["--schedule", "wsd", "--decay-share", "0.3", "--final", "0.1"]
    assert "wsd over 100 steps" in run(capsys, "plan", "adamw", *wsd, "--steps", "100")[1]
    tuned = ["adamw", "--lr", "1e-3", "--wd", "0.1"]
    assert run(capsys, "transfer", *tuned, "--steps", "1K", "--to", "steps=2K", *wsd)[::2] == (0, "")
    assert run(capsys, "convert", tuned[0], "lion", *tuned[1:], *wsd)[::2] == (0, "")
    code, _, err = run(capsys, "plan", "adamw", "--schedule", "cosine", "--decay-share", "0.3")
    assert (code, err) == (2, "gyroscope: the cosine schedule has no 'decay', which wsd has\n")


@pytest.mark.parametrize("command", ["plan", "transfer", "convert", "report", "autopsy", "watch"])
def test_help_of_a_command_is_one_short_line_in_the_list_and_has_no_semicolon(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    (line,) = [line for line in run(capsys, "--help")[1].splitlines() if line.startswith(f"  {command} ")]
    assert line.endswith(".")
    assert "..." not in line
    # typer writes a default and its range between brackets, with a semicolon.
    assert ";" not in re.sub(r"\[default.*?\]", "", run(capsys, command, "--help")[1], flags=re.DOTALL)


def test_a_betas_warning_for_an_unstable_pair(capsys):
    out = run(capsys, "plan", "adamw", "--betas", "0.9,0.5")[1]
    assert "outside the stable region" in " ".join(out.split())
    assert "Set beta2 above beta1² = 0.81" in " ".join(out.split())


@pytest.mark.parametrize(
    ("argv", "quoted", "remedy"),
    [
        ("plan adamw --lr -0.1", "lr=-0.1", "0 or above"),
        ("plan muon --shape inf", "shape=", "whole numbers"),
        ("plan adamw --lr nan", "lr=nan", "finite"),
        ("plan adamw --lr fast", "'fast'", "1e-3"),
        ("plan adamw --betas 0.9,1.0", "beta2=1.0", "below 1"),
        ("plan adamw --betas 0.9", "betas=(0.9,)", "pair"),
        ("plan adamw --betas a,b", "betas='a,b'", "commas"),
        ("plan sgdm --momentum 1.5", "momentum=1.5", "below 1"),
        ("plan adamv", "'adamv'", "did you mean 'adamw'"),
        ("plan qqq", "'qqq'", "choose one of adamw"),
        ("plan adamw --steps 0", "steps=0", "1 or above"),
        ("plan adamw --steps 2.5", "'2.5'", "whole number"),
        ("plan adamw --steps 1e12", "steps=1000000000000", "choose at most 3,000,000"),
        ("plan adamw --steps 100 --warmup 101", "warmup=101", "part of the run"),
        ("plan adamw --schedule cosin", "'cosin'", "did you mean 'cosine'"),
        ("plan adamw --schedule step", "milestones", "for example"),
        ("plan adamw --schedule step --milestones 10 --factor -0.1", "factor=-0.1", "between 0 and 1"),
        ("plan adamw --schedule linear --final -1", "final=-1.0", "between 0 and 1"),
        ("plan adamw --factor 0.1", "'factor'", "step"),
        ("plan adamw --momentum 0.9", "'momentum'", "lr, weight_decay, betas"),
        ("plan adamw --fan-in -5", "fan_in=-5", "above 0"),
        ("plan adamw --fan-in 5 --init-std 1 --init-norm 1", "init_norm and init_std", "one of them"),
        ("plan adamw --init-std 1", "init_std=1.0", "needs fan_in"),
        ("plan adamw --batch-size 3", "batch_size", "add dataset_size"),
        ("plan muon --shape 3x", "shape", "numbers"),
        ("plan muon --shape 5", "shape=(5,)", "rows and columns"),
        ("plan adamw --lr 2 --weight-decay 1", "lr=2.0", "below 1"),
        ("plan adamw --lrr 1", "--lrr", "--lr"),
        ("plann adamw", "plann", "plan"),
        ("plan adamw --config nowhere.toml", "'nowhere.toml'", "cannot read"),
        ("plan adamw --html /proc/no/plan.html", "'/proc/no/plan.html'", "cannot write"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(argv, quoted, remedy, capsys):
    code, out, err = run(capsys, *argv.split())
    assert (code, out) == (2, "")
    assert err.startswith("gyroscope: ")
    assert err.count("\n") == 1
    assert quoted in err
    assert remedy in err


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("lrr = 1", "unknown setting 'lrr': did you mean 'lr'?"),
        ("lr = ", "is not TOML"),
        ('lr = "fast"', "lr='fast'"),
        ("[[layer]]\nfanin = 3", "unknown layer setting 'fanin': did you mean 'fan_in'?"),
        ("layer = 3", "write [[layer]]"),
        ("steps = 1.5", "steps=1.5"),
        ("betas = [0.9, 2]", "beta2=2"),
        ("betas = 3", "betas=3"),
        ("fan_in = [1, 2]", "Use [[layer]]"),
        ("milestones = 3\nschedule = 'step'", "milestones=3"),
        ("shape = 'axb'", "shape="),
        ("lr = true", "lr=True must be a finite number"),
        ("fan_in = true", "fan_in=True must be a number"),
        ("init_norm = true", "init_norm=True must be a number"),
        (f"lr = {'[' * 3000}{']' * 3000}", "more than 20 levels of tables or lists"),
        (f"lr{'.a' * 3000} = 1", "more than 20 levels of tables or lists"),
        (f"steps = {'9' * 5000}", "a number of more than 4,300 digits"),
    ],
)
def test_a_slip_in_the_file_is_quoted(text, quoted, capsys, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(text)
    code, out, err = run(capsys, "plan", "--config", path)
    assert (code, out) == (2, "")
    assert quoted in err
    assert err.count("\n") == 1


def test_a_file_may_begin_with_a_byte_order_mark(capsys, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("lr = 5e-4\n", encoding="utf-8-sig")
    code, out, err = run(capsys, "plan", "--config", path, "--steps", "100")
    assert (code, err) == (0, "")
    assert "AdamW(lr=0.0005" in out


def test_the_version_is_printed(capsys):
    code, out, err = run(capsys, "--version")
    assert (code, out, err) == (0, f"gyroscope {version('gyroscope')}\n", "")


@pytest.mark.parametrize(
    "argv",
    [
        "plan adam_l2 --lr 1.7e-07 --weight-decay 1e-05 --unit-grad-norm 1e-320 --shape 64x512",
        "plan muon --weight-decay 1e-320 --fan-in 55 --init-norm 1540 --shape 64x512 --json",
        "plan sgd_mrt --fan-in 1e160 --unit-grad-norm 1e8 --shape 1x1",
        "plan lion --lr 1 --weight-decay 1e-3 --fan-in 1 --unit-grad-norm 1e-160",
        "plan adam_srt --betas 0.999,0.999 --fan-in 1e-8 --unit-grad-norm 1e160 --init-norm 1e160",
        "plan nadam_l2 --lr 0.1 --fan-in 1e20 --unit-grad-norm 0.1",
        "plan adamw --betas 0.99,1e-320 --fan-in 0.07 --unit-grad-norm 1 --explain",
        "plan nadam_l2 --betas 0.86,0.9 --fan-in 1e8 --unit-grad-norm 1e-160 --json",
        "plan sgd_mrt --lr 0.1 --unit-grad-norm 0.01 --batch-size 1e308 --dataset-size 1e-320",
        "plan adamw --lr 0 --weight-decay 0.004 --corrected-decay --fan-in 8",
    ],
)
def test_settings_out_of_all_proportion_show_neither_warning_nor_traceback(argv, capsys):
    """Tests turn warnings into errors, so a warning of NumPy that passes `main` ends as an exception here."""
    code, out, err = run(capsys, *argv.split(), "--steps", 100)
    assert code in (0, 2)
    assert bool(out) == (code == 0)
    assert err.count("\n") == (code == 2)


@pytest.mark.parametrize(
    "argv",
    [
        "convert sgd_mrt muon --lr 0.1 --wd 0.1 --fan-in 1e160 --unit-grad-norm 1e8 --shape 1x1",
        "convert lion adam_srt --lr 1 --wd 1e-3 --fan-in 1 --unit-grad-norm 1e-160",
        "convert nadam_l2 adam_s --lr 0.1 --wd 0.1 --fan-in 1e20 --unit-grad-norm 0.1",
        "convert adamw lion --lr 1e-3 --wd 0.1 --betas 0.99,1e-320 --fan-in 0.07 --unit-grad-norm 1",
        "convert nadam_l2 sgdm --lr 1e-3 --wd 0.1 --betas 0.86,0.9 --fan-in 1e8 --unit-grad-norm 1e-160 --json",
        "convert sgdm adam_srt --lr 0.1 --wd 1e-3 --momentum 0.999999 --fan-in 64 --unit-grad-norm 0.3",
    ],
)
def test_a_conversion_out_of_all_proportion_shows_neither_warning_nor_traceback(argv, capsys):
    code, out, err = run(capsys, *argv.split())
    assert code in (0, 2)
    assert bool(out) == (code == 0)
    assert err.count("\n") == (code == 2)


LONG = "n" * 300


@pytest.mark.parametrize(
    "argv",
    [
        ["report", LONG],
        ["lab", "list", "--out", LONG],
        ["lab", "show", "smd/fig4", "--out", LONG],
        ["lab", "run", "sp/eq44", "--out", LONG],
        ["lab", "run", "sp/eq44", "--out", "/dev/null"],
        ["lab", "run", "sp/eq44", "--out", "/proc/no"],
        ["watch", LONG, "--no-browser"],
        ["plan", "adamw", "--html", LONG],
        ["plan", "adamw", "--config", LONG],
        ["plan", "adamw", "--config", "/dev"],
    ],
)
def test_a_path_that_cannot_be_used_is_one_sentence(argv, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith("gyroscope: ")
    assert err.count("\n") == 1
    assert argv[-1] in err or argv[1] in err


@pytest.mark.slow
def test_a_full_disk_is_one_sentence(tmp_path):
    """A limit on the size of files stands for the disk: trials of an experiment need more."""
    code = (
        "import resource, sys; from gyroscope.cli import main; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); "
        f"sys.exit(main(['lab', 'run', 'sp/eq44', '--seeds', '1', '--out', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gyroscope: cannot write '{tmp_path}")
    assert done.stderr.count("\n") == 1


WITHOUT_LAB = (
    "import importlib.metadata as metadata, sys; metadata.entry_points = lambda **wanted: metadata.EntryPoints(); "
    "from gyroscope.cli import main; sys.exit(main(sys.argv[1:]))"
)


def run_without_lab(*argv):
    """Run a command as where no other distribution has registered any."""
    command = [sys.executable, "-c", WITHOUT_LAB, *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "argv", ["demo", "train --task digits --steps 3", "sweep file.toml", "lab run smd/fig4", "train --help"]
)
def test_a_command_of_the_lab_says_what_to_install_if_the_lab_is_missing(argv):
    done = run_without_lab(*argv.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f'gyroscope: `gyroscope {argv.split()[0]}` needs the lab: pip install "gyroscope[lab]"\n'


def test_help_lists_the_commands_of_the_lab_with_and_without_it(capsys):
    without = run_without_lab("--help").stdout
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for name, purpose in LAB_COMMANDS.items():
        for text in (without, out):
            assert re.search(rf"^  {name} +{re.escape(purpose[:40])}", text, re.MULTILINE), (name, text)


def test_a_report_on_a_sweep_says_what_to_install_if_the_lab_is_missing(tmp_path):
    (tmp_path / "sweep.toml").write_text("")
    done = run_without_lab("report", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert 'needs the lab: pip install "gyroscope[lab]"' in done.stderr


def test_a_page_is_written_through_a_link(capsys, tmp_path):
    target = tmp_path / "target.html"
    target.write_text("old")
    link = tmp_path / "link.html"
    link.symlink_to(target)
    assert run(capsys, "plan", "adamw", "--html", link)[0] == 0
    assert link.is_symlink()
    assert target.read_text().startswith("<!doctype html>")


numbers = st.one_of(
    st.floats().map(str),
    st.integers(-10, 2000).map(str),
    st.sampled_from(
        ["nan", "inf", "-inf", "1e-320", "1e308", "0", "", "x", "1e-3", "0.9,0.99", "3x4", "０.1", "1_0", "--lr", LONG]
    ),
)
names = st.sampled_from([*RULES, "SGD", "adam-w", "", "🌀", "plan", "--", "adamw,lion", "cosine", "step", "linear"])
options = """lr weight-decay betas momentum nesterov linearised corrected-decay cautious-decay steps schedule warmup
final milestones factor fan-in shape init-std init-norm unit-grad-norm batch-size dataset-size json
explain config nothing"""
flags = st.sampled_from([f"--{name}" for name in options.split()])
argument = st.one_of(flags, numbers, names)
vectors = st.one_of(
    st.lists(argument, max_size=10),
    st.builds(lambda rule, options: [rule, *(part for pair in options for part in pair)], names,
              st.lists(st.tuples(flags, st.one_of(numbers, names)), max_size=6)),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(vectors)
def test_no_plan_shows_a_traceback(vector):
    """Whatever is typed: an exit code of 0 or 2, no exception. Runs are kept short."""
    short = ["--steps", "50"] if "--steps" not in vector else []
    assert main(["plan", *vector, *short]) in (0, 2)


# Settings that belong to a rule, of any size: most of these plans are made, and not refused for a setting.
sizes = st.one_of(
    st.floats(-12, 4).map(lambda power: str(10**power)),
    st.sampled_from(["0", "1e-320", "1e308", "1e-160", "1e160", "1e20", "1"]),
)
memories = st.one_of(st.floats(0, 1, exclude_max=True).map(str), st.sampled_from(["0", "0.9", "0.999", "1e-320"]))
kinds = {"betas": st.builds("{},{}".format, memories, memories), "momentum": memories}
common = {
    "fan-in": sizes,
    "unit-grad-norm": sizes,
    "init-norm": sizes,
    "shape": st.sampled_from(["1x1", "64x512", "100000x1"]),
    "schedule": st.sampled_from(["constant", "linear", "cosine", "inverse_sqrt"]),
}


@st.composite
def fitting(draw):
    rule = draw(st.sampled_from([*RULES]))
    own = {field.name: kinds.get(field.name, sizes) for field in fields(RULES[rule]) if field.type != "bool"}
    argv = ["plan", rule, "--steps", draw(st.sampled_from(["1", "2", "50"]))]
    for name, values in {**own, **common}.items():
        if draw(st.booleans()):
            argv += [f"--{name.replace('_', '-')}", draw(values)]
    return [*argv, *draw(st.sampled_from([[], ["--json"], ["--explain"]]))]


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(fitting())
def test_no_plan_with_settings_of_any_size_shows_a_traceback_or_a_warning(argv):
    assert main(argv) in (0, 2)


others = st.sampled_from(
    [["lab"], ["lab", "list"], ["lab", "show"], ["lab", "run"], ["report"], ["watch"], ["demo"], ["plann"], []]
)
words = st.one_of(
    numbers,
    names,
    st.sampled_from(["--out", "--seeds", "--size", "--port", "--host", "--text", "-o", "--help", "--version"]),
    st.sampled_from(["smd/fig4", "smd/fg4", "re/fig1", "quick", "/proc/no", "/dev/null", "\x00", "\udcff", "."]),
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(others, st.lists(words, max_size=5))
def test_no_other_command_shows_a_traceback(command, arguments):
    """The commands that would train or serve get an option that does not exist."""
    stop = ["--nothing"] if command in (["demo"], ["watch"], ["lab", "run"]) else []
    assert main([*command, *stop, *arguments]) in (0, 2)


def test_numbers_in_sentences_read_plainly(capsys):
    out = run(capsys, "plan", "adamw", "--lr", "1e-5", "--weight-decay", "1e-3", "--fan-in", "512")[1]
    assert "100,000,000 steps" in out


def test_the_module_ends_with_the_code_of_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "gyroscope", "lab", "run", "re/fig99"], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"re/fig99" in done.stderr
