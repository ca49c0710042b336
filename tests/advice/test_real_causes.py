"""The findings on causes, each in a short training that shows it: no record is made by hand."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import gyroscope as gyro
from tests.advice.test_diagnose import only

WIDTH = 32
TOKENS = 64
CONTEXT = 16


class Block(nn.Module):
    """Attention and an MLP with the names of a Llama."""

    def __init__(self):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH, bias=False))
        self.up_proj = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down_proj = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, x):
        q, k, v = (layer(self.norm(x)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        x = x + self.o_proj(scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.down_proj(self.up_proj(self.norm(x)).relu())


def transformer(blocks=4, std=0.02):
    layers = [nn.Embedding(TOKENS, WIDTH), *(Block() for _ in range(blocks)), nn.RMSNorm(WIDTH)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, TOKENS, bias=False))
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=std)
    return model


def train(model, optimizer, path, steps, each_step=lambda step: None):
    """Learn to repeat the token before the last, and return the findings."""
    with gyro.Tracker(model, optimizer, path, every=2) as tracker:
        for step in range(steps):
            tokens = torch.randint(TOKENS, (8, CONTEXT + 1))
            loss = cross_entropy(model(tokens[:, 1:]).flatten(0, 1), tokens[:, :-1].flatten())
            optimizer.zero_grad()
            loss.backward()
            each_step(step)
            optimizer.step()
            tracker.log(loss=loss)
    return tracker.diagnose()


def test_a_group_whose_learning_rate_ends_has_stopped(tmp_path):
    torch.manual_seed(0)
    model = transformer(blocks=1)
    *rest, head = model.parameters()
    optimizer = torch.optim.AdamW([{"params": rest}, {"params": [head]}], lr=1e-3, weight_decay=0.1)

    def end_of_a_schedule(step):
        if step >= 60:
            optimizer.param_groups[1]["lr"] = 0.0

    found = only(train(model, optimizer, tmp_path / "run", 120, end_of_a_schedule), "stopped")
    assert found.layers == ("3.weight",)
    assert found.evidence["step"] in (60, 61)
    assert "stopped moving at step" in found.sentence
    assert "other layers go on training" in found.sentence


def test_a_layer_that_is_cut_off_has_stopped_and_no_rate_is_blamed(tmp_path):
    torch.manual_seed(0)
    model = transformer(blocks=1)
    optimizer = torch.optim.AdamW(gyro.param_groups(model, weight_decay=0.1), lr=1e-3, betas=(0.9, 0.95))

    def cut_off(step):
        if step == 60:
            model[1].down_proj.register_forward_hook(lambda module, inputs, output: 0 * output)

    diagnosis = train(model, optimizer, tmp_path / "run", 160, cut_off)
    assert set(only(diagnosis, "stopped").layers) == {"1.up_proj.weight", "1.down_proj.weight"}
    assert only(diagnosis, "dead_vectors").remedy == "Check that the layer is used, and that it is not frozen."
    assert not any("Lower the learning rate" in statement for statement in diagnosis.summary)
