"""Layers and models that tests of this room share."""

import torch
from torch import nn

from gyroscope.model.parameters import model_parameters


class Conv1D(nn.Module):
    """As in Hugging Face's transformers: weight (in, out)."""

    def __init__(self, nf, nx, bias=True):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf) * 0.2)
        self.bias = nn.Parameter(torch.zeros(nf)) if bias else 0.0

    def forward(self, x):
        return x @ self.weight + self.bias


class Experts(nn.Module):
    """A mixture of experts: weights [experts, out, in], biases [experts, out] by two names, and a router."""

    def __init__(self):
        super().__init__()
        self.up_proj = nn.Parameter(torch.randn(3, 6, 4))
        self.up_proj_bias = nn.Parameter(torch.randn(3, 6))
        self.w2 = nn.Parameter(torch.randn(3, 4, 6))
        self.b2 = nn.Parameter(torch.randn(3, 4))
        self.router = nn.Parameter(torch.randn(3, 4))


class TransposedExperts(nn.Module):
    """Weights [experts, in, out], as in GPT-OSS: one has a bias that says so, both a flag."""

    def __init__(self):
        super().__init__()
        self.is_transposed = True
        self.gate_up_proj = nn.Parameter(torch.randn(3, 4, 6))
        self.gate_up_proj_bias = nn.Parameter(torch.randn(3, 6))
        self.down_proj = nn.Parameter(torch.randn(3, 6, 4))


def untied():
    """An embedding, a layer and a head of its own."""
    return nn.ModuleDict({"wte": nn.Embedding(7, 4), "mix": nn.Linear(4, 4), "head": nn.Linear(4, 7, bias=False)})


def tied():
    """The same with the embedding's weight in the head."""
    model = untied()
    model["head"].weight = model["wte"].weight
    return model


def parameter_names(model):
    """Return the cleaned name of every parameter. Tied ones are there once, by their first name."""
    return {known.parameter: known.name for known in model_parameters(model)}
