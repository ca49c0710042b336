"""`gyroscope watch` prints a line for each incident of a run that is being written."""

from gyroscope.live import run_index
from gyroscope.live.incident_lines import IncidentLines
from gyroscope.live.run_index import RunIndex
from gyroscope.store import Sample, open_run
from tests.render import make


def test_an_incident_is_one_line_when_it_happens_and_not_again(tmp_path, monkeypatch):
    monkeypatch.setattr(run_index, "FRESH", 0.0)
    story = make.healthy(**make.SMALL)
    place = make.PER_LAYER.index("weight_decay")
    said = []
    lines = IncidentLines(RunIndex(tmp_path), said.append)
    with make.writer(tmp_path / "run", story) as writer:
        for step, layers in make.samples(story, 0):
            for layer in layers:
                layer.scalars[place] *= 100 if step >= 200 else 1
            writer.put(Sample(step, 1.7e9 + step, dict(enumerate(layers))))
            if step % 50 == 0:
                writer.flush()
                lines.look()
            if step == 190:
                assert said == []
    lines.look()
    assert len(said) == 1
    assert said[0].startswith("run: ! Between steps 191 and 200 weight decay changed from 0.5 to 50.")


def test_a_run_that_has_ended_is_not_read(tmp_path):
    make.run_at(tmp_path / "run", make.healthy(**make.SMALL))
    lines = IncidentLines(RunIndex(tmp_path), lambda text: None)
    lines.look()
    assert lines._followed == {}


def test_an_incident_between_the_samples_of_a_thinned_run_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("gyroscope.store.reader.MAX_DIAGNOSED_SAMPLES", 10)
    story = make.healthy(**make.SMALL)
    place = make.PER_LAYER.index("weight_decay")
    with make.writer(tmp_path, story) as writer:
        for step, layers in make.samples(story, 0):
            for layer in layers:
                layer.scalars[place] *= 100 if step == 210 else 1
            writer.put(Sample(step, 1.7e9 + step, dict(enumerate(layers))))
    with open_run(tmp_path) as run, run.thinned(10) as thinned:
        assert 210 in run.steps
        assert 210 not in thinned.steps
        sentences = [finding.sentence for finding in run.diagnose() if finding.kind == "incident"]
    assert len(sentences) == 1
    assert sentences[0].startswith("Between steps 201 and 210 weight decay changed")
