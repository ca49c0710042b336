"""The table of norms by optimizer and parameter group."""

import pytest
import torch

import gyroscope as gyro
from gyroscope.cli import main
from gyroscope.report.group_table import UNMEASURED, group_table, parameter_kind
from gyroscope.store import open_run
from tests.render import make


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("transformer.h.0.attn.c_attn.weight", (192, 64), "matrices"),
        ("transformer.wte.weight", (100, 64), "embeddings"),
        ("model.embed_tokens.weight", (100, 64), "embeddings"),
        ("unembed.weight", (100, 64), "matrices"),
        ("lm_head.weight", (100, 64), "head"),
        ("layers.0.feed_forward.router.weight", (8, 64), "router"),
        ("layers.0.block_sparse_moe.gate.weight", (8, 64), "router"),
        ("layers.0.mlp.gate_proj.weight", (256, 64), "matrices"),
        ("h.0.ln_1.weight", (64,), "gains"),
        ("h.0.ln_1.bias", (64,), "biases"),
    ],
)
def test_a_parameter_is_known_by_its_name_and_shape(name, shape, kind):
    assert parameter_kind(name, shape, is_embedding=False, has_experts=True) == kind


def test_without_experts_a_gate_is_a_matrix():
    assert parameter_kind("layers.0.mlp.gate.weight", (256, 64), is_embedding=False) == "matrices"


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A run with matrices, an embedding, a head and gains, in two groups."""
    path = tmp_path_factory.mktemp("groups") / "run"
    torch.manual_seed(0)
    parts = {"embed": torch.nn.Embedding(12, 8), "fc": torch.nn.Linear(8, 8), "ln": torch.nn.LayerNorm(8)}
    model = torch.nn.ModuleDict({**parts, "head": torch.nn.Linear(8, 4, bias=False)})
    weights = [model["embed"].weight, model["fc"].weight, model["head"].weight]
    others = [*model["ln"].parameters(), model["fc"].bias]
    optimizer = torch.optim.AdamW([{"params": weights}, {"params": others, "weight_decay": 0.0}], lr=1e-2)
    with gyro.Tracker(model, optimizer, path, every=1, layers=".") as tracker:
        for _ in range(30):
            x = model["ln"](model["fc"](model["embed"](torch.randint(12, (16,)))))
            torch.nn.functional.cross_entropy(model["head"](x), torch.randint(4, (16,))).backward()
            optimizer.step()
            optimizer.zero_grad()
            tracker.flush()  # on a busy machine samples would be left out
    return path, model


def test_every_kind_has_a_row_with_the_numbers_of_its_vectors(tracked):
    path, model = tracked
    with open_run(path) as run:
        table = group_table(run)
    rows = {row[1].split()[0]: row for row in table.rows}
    assert list(rows) == ["matrices", "embeddings", "head", "gains", "biases"]
    assert [row[0] for row in rows.values()] == ["0 AdamW"] * 3 + ["1 AdamW"] * 2
    norms = model["fc"].weight.detach().norm(dim=1)
    assert float(rows["matrices"][2]) == pytest.approx(float(norms.min()), rel=0.2)
    assert float(rows["matrices"][4]) == pytest.approx(float(norms.max()), rel=0.2)
    assert float(rows["gains"][3]) == pytest.approx(float(model["ln"].weight.detach().norm()), rel=0.1)
    assert rows["gains"][-1] == "0"
    assert table.note == ""


def test_the_command_prints_one_screen_and_says_what_was_not_measured(tmp_path, capsys):
    path = make.run_at(tmp_path / "run", make.healthy(names=("h.0.fc.weight", "lm_head.weight"), steps=300))
    assert main(["report", str(path), "--text", "--groups"]) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) <= 8
    assert UNMEASURED in printed
    assert main(["report", str(path), "--groups"]) == 2
    assert "Add --text" in capsys.readouterr().err
