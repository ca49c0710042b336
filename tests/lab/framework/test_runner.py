"""The lab's runner: what is listed, how claims are judged, what is kept, written and refused."""

import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import combinations
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from gyroscope_lab.framework.catalogue import LAB, SIZES, catalogue, coverage, entry_of, select
from gyroscope_lab.framework.claims import ClaimOutcome, agrees, at_least, at_most, confidence_interval
from gyroscope_lab.framework.console import catalogue_text
from gyroscope_lab.framework.figures import BROWSERS, styled, write_figure
from gyroscope_lab.framework.not_held import KINDS, reason_of
from gyroscope_lab.framework.papers import DRAWINGS, OURS, PAPERS, SETTINGS, TO_DO
from gyroscope_lab.framework.results import ExperimentRecord, describe, write_record
from gyroscope_lab.framework.results_pages import write_pages
from gyroscope_lab.framework.runner import read_result
from gyroscope_lab.framework.trials import run_trials
from rich.console import Console

from gyroscope.cli import main
from gyroscope.render import theme as look

FIGURES = {"re": 15, "smd": 9, "sp": 5, "ct": 16}
TABLES = {"re": 5, "smd": 2, "sp": 5, "ct": 0}


@dataclass(frozen=True)
class Config:
    level: float = 1.0
    seeds: int = 3


@dataclass(frozen=True)
class PartsConfig(Config):
    parts: ClassVar = (1, 2)


def experiment(measure):
    return SimpleNamespace(measure=measure)


def shell(capsys, *argv):
    code = main([str(arg) for arg in argv])
    return code, *capsys.readouterr()


def test_every_figure_and_table_of_the_papers_is_listed():
    wanted = {f"{paper}/fig{i}" for paper, count in FIGURES.items() for i in range(1, count + 1)}
    wanted |= {f"{paper}/table{i}" for paper, count in TABLES.items() for i in range(1, count + 1)}
    assert wanted <= set(catalogue())


def test_what_cannot_be_run_says_why_and_what_can_is_not_listed_twice():
    for entry in catalogue().values():
        assert entry.claim
        assert entry.implemented or entry.note
        assert not entry.implemented or {"quick"} <= set(entry.cost) <= set(SIZES)
    implemented = {name for name, entry in catalogue().items() if entry.implemented}
    covered = {name for entry in catalogue().values() for name in entry.covers}
    assert not (implemented | covered) & {*DRAWINGS, *SETTINGS, *TO_DO}


def test_coverage_counts_the_figures_and_tables_that_claim_something():
    drawn = len(DRAWINGS) + len(SETTINGS)
    assert sum(sum(coverage(paper)) for paper in PAPERS) == sum(FIGURES.values()) + sum(TABLES.values()) - drawn
    assert [sum(counts) for counts in zip(*map(coverage, PAPERS), strict=True)] == [33, 12, 1]
    assert coverage("beyond") == (0, 0, 0)


def test_the_list_shows_the_coverage_of_each_paper(tmp_path, capsys):
    out = " ".join(shell(capsys, "lab", "list", "--out", tmp_path)[1].split())
    assert "Continuous-Time Adam: 10 figures and tables whole, 5 in part" in out
    assert "33 figures and tables whole, 12 in part, 1 missing" in out


def test_listing_imports_neither_torch_nor_plotly():
    check = "import gyroscope.cli, sys; gyroscope.cli.main(['lab', 'list']); "
    check += "assert not {'torch', 'plotly', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)


def test_a_paper_stands_for_all_that_can_be_run_of_it():
    assert {entry.id for entry in select(["smd"])} == {
        name for name, entry in catalogue().items() if name.startswith("smd/") and entry.implemented
    }
    assert len(select(["all"])) == sum(entry.implemented for entry in catalogue().values())


@pytest.mark.parametrize(
    ("argv", "quoted", "remedy"),
    [
        ("lab run smd/fg4", "'smd/fg4'", "did you mean 'smd/fig4'"),
        ("lab show smd_fig4", "'smd_fig4'", "did you mean 'smd/fig4'"),
        ("lab show x", "'x'", "choose one of re/fig1, re/fig2, re/fig3 … (`gyroscope lab list` shows all)"),
        ("lab run re/fig2", "'re/fig2'", "a drawing"),
        ("lab run smd/fig4 --size huge", "'huge'", "quick"),
        ("lab run smd/fig4 --seeds 0", "seeds=0", "1 or above"),
        ("lab run smd/fig4 --seeds x", "'x'", "not a number"),
        ("lab run", "ids", "Missing"),
        ("lab run sp/eq44 --out /proc/no", "/proc/no", "cannot write"),
        ("lab runn", "runn", "run"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(argv, quoted, remedy, capsys):
    code, out, err = shell(capsys, *argv.split())
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert quoted in err
    assert remedy in err


def test_an_interval_is_students_over_seeds():
    interval = confidence_interval([1.0, 2.0, 3.0])
    assert (interval.mean, interval.n) == (2.0, 3)
    assert interval.high - interval.mean == pytest.approx(4.302652729749464 / 3**0.5, rel=1e-12)
    assert confidence_interval(np.array([5.0])).low == 5.0


@pytest.mark.parametrize(
    ("claim", "outcome"),
    [
        (agrees("", 1.0, [0.999, 1.0, 1.001], within=0.01), "holds"),
        (agrees("", 1.0, [0.9, 1.0, 1.1], within=0.01), "undecided"),  # the mean is right, and means nothing
        (agrees("", 1.0, [1.008, 1.01, 1.012], within=0.01), "undecided"),  # across the upper edge
        (agrees("", -1.0, [-1.02, -1.01, -1.0], within=0.01), "undecided"),  # across the lower edge
        (agrees("", 1.1, [0.999, 1.0, 1.001], within=0.01), "does not hold"),
        (agrees("", 0.9, [0.999, 1.0, 1.001], within=0.01), "does not hold"),
        (at_most("", 1.0, [0.9, 0.91]), "holds"),
        (at_most("", 1.0, [0.5, 1.4]), "undecided"),
        (at_most("", 1.0, [1.2, 1.21]), "does not hold"),
        (at_most("", 1.0, [1.2]), "does not hold"),  # one seed has no interval
        (at_least("", 1.0, [1.2, 1.21]), "holds"),
        (at_least("", 1.0, [0.9, 1.5]), "undecided"),
        (at_least("", 1.0, [0.9, 0.91]), "does not hold"),
    ],
)
def test_a_whole_interval_decides_and_one_across_the_edge_does_not(claim, outcome):
    assert claim.outcome == outcome
    assert claim.holds is (outcome == "holds")


@pytest.mark.parametrize("judge", [at_most, at_least, lambda *args: agrees(*args, within=0.5)])
def test_a_measurement_that_is_no_number_never_makes_a_claim_hold(judge):
    assert judge("", 1.0, [1.0, float("nan")]).outcome is ClaimOutcome.DOES_NOT_HOLD


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    calls = []

    def measure(trial):
        calls.append((trial.seed, trial.part))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return {"value": 10 * trial.seed + trial.part, "curve": [trial.seed, trial.part]}

    with pytest.raises(KeyboardInterrupt):
        run_trials(experiment(measure), PartsConfig(), tmp_path)
    result = run_trials(experiment(measure), PartsConfig(), tmp_path)
    assert calls == [(0, 1), (0, 2), (1, 1), (1, 2), (1, 2), (2, 1), (2, 2)]
    assert result["value"].tolist() == [[1, 2], [11, 12], [21, 22]]
    assert result["curve"].shape == (3, 2, 2)


def test_another_config_never_meets_parts_of_this_one_but_more_seeds_do(tmp_path):
    calls = []

    def measure(trial):
        calls.append(trial.seed)
        return {"value": trial.seed}

    for config in (Config(), Config(level=2.0), Config(seeds=5)):
        run_trials(experiment(measure), config, tmp_path)
    assert calls == [0, 1, 2, 0, 1, 2, 3, 4]


def test_progress_rises_to_one():
    shares = []
    run_trials(experiment(lambda trial: {"steps": len(list(trial.steps(200)))}), Config(), report=shares.append)
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


def test_numbers_are_kept_to_seven_digits_so_that_what_is_judged_is_what_is_written():
    result = run_trials(experiment(lambda trial: {"value": 1 / 3}), Config())
    assert result["value"].tolist() == [0.3333333] * 3


def test_a_missing_value_is_named_with_those_there_are():
    result = run_trials(experiment(lambda trial: {"value": 1.0}), Config())
    with pytest.raises(KeyError, match=r"norm.*value"):
        result["norm"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which one short experiment has been run by the command line."""
    out = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gyroscope_lab.framework.figures._svg", lambda figure: "<svg/>")
        assert main(["lab", "run", "sp/eq44", "--seeds", "2", "--out", str(out)]) == 0
    return out


def test_a_record_says_what_made_it(finished):
    data = json.loads((finished / "sp" / "eq44.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert data["id"] == "sp/eq44"
    assert (data["n"], data["seeds"], data["size"]) == (2, [0, 1], "quick")
    assert {"python", "torch", "numpy", "gyroscope"} <= set(data["versions"])
    assert {"commit", "changed", "seconds", "date", "config", "values"} <= set(data)
    assert all({"sentence", "predicted", "measured", "tolerance", "outcome"} <= set(claim) for claim in data["claims"])


def test_a_finished_run_leaves_record_figure_and_readme_and_no_parts(finished):
    page = (finished / "sp" / "eq44.md").read_text()
    assert "gyroscope lab run sp/eq44 --size quick --seeds 2" in page
    assert "| holds |" in page
    assert (finished / "sp" / "eq44.svg").exists()
    assert "![sp/eq44](eq44.svg)" in page
    assert "| [(44)](sp/eq44.md), quick |" in (finished / "README.md").read_text()
    assert not list((finished / ".parts").rglob("*.json"))
    assert (finished / ".parts" / ".gitignore").read_text() == "*\n"


def test_show_and_list_print_what_was_measured(finished, capsys):
    code, out, err = shell(capsys, "lab", "show", "sp/eq44", "--out", finished)
    assert (code, err) == (0, "")
    assert "holds" in out
    assert "n = 2" in out
    code, out, err = shell(capsys, "lab", "list", "--out", finished)
    assert "2 of 2 hold" in " ".join(out.split())
    assert "not run" in out


def test_the_record_of_an_experiment_that_was_removed_is_listed_and_shown(finished, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    data = json.loads((finished / "sp" / "eq44.json").read_text()) | {"id": "beyond/gone", "claim": "It was so (ours)."}
    (tmp_path / "beyond").mkdir()
    (tmp_path / "beyond" / "gone.json").write_text(json.dumps(data))
    lines = shell(capsys, "lab", "list", "--out", tmp_path)[1].splitlines()
    (listed,) = (line for line in lines if line.startswith("beyond/gone "))
    assert "removed" in listed
    code, out, err = shell(capsys, "lab", "show", "beyond/gone", "--out", tmp_path)
    assert (code, err) == (0, "")
    assert "Cannot be run: removed, measured by commit" in " ".join(out.split())
    assert "holds" in out
    write_pages(tmp_path)
    section = (tmp_path / "beyond" / "gone.md").read_text()
    assert "Removed · n = 2" in section
    assert "lab run" not in section
    assert shell(capsys, "lab", "run", "beyond/gone", "--out", tmp_path)[0] == 2
    assert shell(capsys, "lab", "judge", "beyond", "--out", tmp_path)[:2] == (0, "")


def test_what_was_not_run_is_shown_with_how_to_run_it(tmp_path, capsys):
    out = shell(capsys, "lab", "show", "smd/fig4", "--out", tmp_path)[1]
    assert "gyroscope lab run smd/fig4" in " ".join(out.split())
    assert "Cannot be run" in shell(capsys, "lab", "show", "re/fig2", "--out", tmp_path)[1]


@pytest.mark.parametrize(
    ("outcome", "counted"), [("does not hold", "1 of 2 hold, 1 not"), ("undecided", "1 of 2 hold, 1 undecided")]
)
def test_a_claim_that_does_not_hold_or_is_undecided_is_shown_as_such(outcome, counted, finished, tmp_path, capsys):
    data = json.loads((finished / "sp" / "eq44.json").read_text())
    data["claims"][0]["outcome"] = outcome
    (tmp_path / "sp").mkdir()
    (tmp_path / "sp" / "eq44.json").write_text(json.dumps(data))
    write_pages(tmp_path)
    assert f"| **{outcome}** |" in (tmp_path / "sp" / "eq44.md").read_text()
    assert outcome in shell(capsys, "lab", "show", "sp/eq44", "--out", tmp_path)[1]
    printed = io.StringIO()
    Console(width=200, file=printed).print(catalogue_text(tmp_path))  # wide, so that no line is broken
    assert counted in printed.getvalue()


def test_every_claim_that_does_not_hold_has_a_sentence_why():
    results = LAB.parents[1] / "results"
    for entry in select(["all"]):
        record = ExperimentRecord.read(results, entry.id)
        for claim in record.claims if record else ():
            if claim.outcome is ClaimOutcome.DOES_NOT_HOLD:
                why = reason_of(entry.id, claim)
                assert why.startswith(KINDS), (entry.id, claim.sentence)
                assert why.endswith(".")


@pytest.mark.parametrize("name", ["transfer/batch_mlp"])
def test_a_record_whose_config_has_classes_in_it_is_judged_again(name):
    results = LAB.parents[1] / "results"
    experiment, result = read_result(results, name)
    record = ExperimentRecord.read(results, name)
    assert [claim.outcome for claim in experiment.claims(result)] == [claim.outcome for claim in record.claims]
    assert experiment.plot(result).data


def test_every_trial_of_ours_has_a_line_with_its_commit_and_every_named_record_exists():
    results = LAB.parents[1] / "results"
    page = (results / "ours.md").read_text(encoding="utf-8")
    named = re.findall(r"\]\((\w+/\w+)\.md\)", page)
    records = {f"{paper}/{path.stem}" for paper in OURS for path in (results / paper).glob("*.json")}
    assert len(named) == len(set(named))
    assert set(named) == records
    for line in (line for line in page.splitlines() if re.search(r"\]\(\w+/\w+\.md\)", line)):
        trials = re.findall(r"\]\((\w+/\w+)\.md\)", line)
        assert ("\\*" in line.partition(" | ")[0]) == any(name not in catalogue() for name in trials)
        for name in trials:
            assert ExperimentRecord.read(results, name).data["commit"][:10] in line


def test_no_heading_says_that_something_is_proved():
    root = LAB.parents[1]
    for path in (root / "README.md", root / "results" / "README.md"):
        headings = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        assert not [line for line in headings if re.search("prove[dn]", line)]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"claims": [{}]}', '{"claims": [], "versions": null}'])
def test_a_broken_record_is_one_sentence(text, tmp_path, capsys):
    (tmp_path / "sp").mkdir()
    (tmp_path / "sp" / "eq44.json").write_text(text)
    code, out, err = shell(capsys, "lab", "show", "sp/eq44", "--out", tmp_path)
    assert (code, out) == (2, "")
    assert "cannot read" in err


def test_a_number_that_is_not_finite_becomes_null(tmp_path):
    description = describe("sp/eq44", "claim", "quick", Config(), 1.0)
    claim = at_most("", 1.0, [np.nan])
    path = write_record(tmp_path, description, [claim], {"x": np.array([1.0, np.inf, np.nan])})
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["values"]["x"] == [1.0, None, None]
    assert np.isnan(ExperimentRecord.read(tmp_path, "sp/eq44").claims[0].measured.mean)


@pytest.mark.browser
def test_a_browser_draws_the_figure_as_a_small_svg_with_its_labels_whole(tmp_path):
    from plotly.graph_objects import Figure, Scatter

    pytest.importorskip("playwright")
    if not any(map(shutil.which, BROWSERS)):
        pytest.skip("no browser here")
    path = write_figure(styled(Figure(Scatter(y=[0.001, 0.0025, 0.0123])), "a title"), tmp_path / "figure.json")
    text = path.read_text()
    assert path.suffix == ".svg"
    assert "a title" in text
    assert "0.012" in text
    assert len(text) < 30_000


def test_a_figure_has_the_look_of_the_pages():
    from gyroscope_lab.framework.figures import MEASURED, PREDICTED
    from plotly.graph_objects import Figure, Scatter

    figure = styled(Figure(Scatter(y=[1, 2])), "a title")
    assert figure.layout.colorway == look.COLOURS
    assert figure.layout.font.family in look.style()
    for colour in (figure.layout.font.color, figure.layout.paper_bgcolor, figure.layout.xaxis.gridcolor):
        assert colour in look.style().split("dark")[0]
    assert ("dash" in MEASURED, PREDICTED["dash"]) == (False, "dash")


def test_no_experiment_has_colours_of_its_own():
    paths = [path for paper in PAPERS for path in (LAB / paper).glob("*.py")]
    assert len(paths) > 50
    for path in paths:
        assert not re.search(r'"#[0-9a-f]{3,6}"|"(black|red|blue|green|gr[ae]y)"|hsl\(|rgb\(', path.read_text()), path


def test_without_a_browser_the_figure_is_a_page_that_needs_no_network(tmp_path, monkeypatch):
    from plotly.graph_objects import Figure, Scatter

    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)  # importing it fails
    path = write_figure(Figure(Scatter(y=[1, 2])), tmp_path / "figure.json")
    assert path.suffix == ".html"
    assert not re.search(r'src="https?:', path.read_text())


def test_the_transcript_of_a_run_is_ids_then_calls(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr("gyroscope_lab.framework.runner.run", lambda *args: calls.append(args[:4]))
    assert main(["lab", "run", "sp/eq44", "smd/fig4", "--size", "paper", "--seeds", "7", "--out", str(tmp_path)]) == 0
    assert calls == [("sp/eq44", "paper", 7, tmp_path), ("smd/fig4", "paper", 7, tmp_path)]


def test_all_leaves_out_what_has_no_such_size_and_what_this_code_has_finished(monkeypatch, tmp_path, capsys):
    calls = []
    monkeypatch.setattr("gyroscope_lab.framework.runner.run", lambda *args: calls.append(args[0]))
    monkeypatch.setattr("gyroscope_lab.framework.runner.is_finished", lambda name, *_: name == "re/fig4")
    code, out, _ = shell(capsys, "lab", "run", "re", "--size", "medium", "--out", tmp_path)
    assert code == 0
    assert calls == [entry.id for entry in select(["re"], size="medium") if entry.id != "re/fig4"]
    without = len(select(["re"])) - len(select(["re"], size="medium"))
    assert f"{without} experiments have no medium size and are left out: re/fig1," in " ".join(out.split())
    assert "re/fig4: already finished by this code." in out
    # Who names an experiment wants it to be run.
    shell(capsys, "lab", "run", "re/fig4", "--size", "medium", "--out", tmp_path)
    assert calls[-1] == "re/fig4"


def test_a_record_is_finished_for_its_config_its_seeds_and_its_code(finished, monkeypatch):
    from gyroscope_lab.framework import runner

    config = runner.config_of("sp/eq44", "quick", seeds=2)
    assert runner.is_finished("sp/eq44", "quick", config, finished)
    assert not runner.is_finished("sp/eq44", "quick", config, finished / "elsewhere")
    assert not runner.is_finished("sp/eq44", "paper", config, finished)
    assert not runner.is_finished("sp/eq44", "quick", replace(config, seeds=3), finished)
    assert not runner.is_finished("sp/eq44", "quick", config, finished, first_seed=1)
    monkeypatch.setattr(runner, "fingerprint", lambda config: "other code")
    assert not runner.is_finished("sp/eq44", "quick", config, finished)


def test_sizes_differ_and_seeds_can_be_chosen():
    from gyroscope_lab.framework.runner import config_of

    for entry in select(["all"]):
        configs = [config_of(entry.id, size) for size in SIZES if size in entry.cost]
        assert all(config != other for config, other in combinations(configs, 2)), entry.id
        assert config_of(entry.id, "quick", seeds=7) == replace(config_of(entry.id, "quick"), seeds=7)


def test_names_of_several_experiments_mean_those_that_have_the_size():
    from gyroscope_lab.framework.runner import config_of

    medium = select(["all"], size="medium")
    assert {"re/fig4", "ct/fig6"} <= {entry.id for entry in medium} < {entry.id for entry in select(["all"])}
    assert select(["re/fig8"], size="medium")[0].id == "re/fig8"
    with pytest.raises(ValueError, match=r"'re/fig8' has no MEDIUM config. Choose the size quick or paper"):
        config_of("re/fig8", "medium")
    with pytest.raises(ValueError, match=r"'mediun'.*did you mean 'medium'"):
        config_of("re/fig4", "mediun")


def test_an_entry_names_its_module_also_where_two_experiments_share_it():
    assert entry_of("ct/fig3").module == "gyroscope_lab.ct.fig3"
    assert {entry_of(f"smd/{name}").module for name in ("fig4", "fig5")} == {"gyroscope_lab.smd.fig4_fig5"}
    for entry in select(["all"]):
        assert LAB.joinpath(*entry.module.split(".")[1:]).with_suffix(".py").exists()


def test_a_name_stands_in_the_legend_once_whatever_panels_have_it():
    from gyroscope_lab.framework.figures import Panels

    panels = Panels("a", "b", "c", "d", rows=2)
    for panel in range(4):
        panels.line(panel, [0, 1], [0, panel], "measured")
        panels.predicted(panel, [0, 1], [0, panel], "predicted")
    panels.line(3, [0, 1], [1, 1])
    figure = panels.titled("a title")
    assert [trace.name for trace in figure.data if trace.showlegend] == ["measured", "predicted"]
    assert [(trace.xaxis, trace.line.dash) for trace in figure.data[:4]] == [
        ("x", None), ("x", "dash"), ("x2", None), ("x2", "dash"),
    ]  # fmt: skip
    assert figure.data[-1].xaxis == "x4"
