"""Which optimizers have a rule: exact classes, and subclasses of torch's that leave its step as it is."""

import pytest
import torch

import gyroscope as gyro
from gyroscope.optimizers import spec_of
from gyroscope.optimizers.recognition import RECORDS
from gyroscope.theory import AdamW, Lion, Muon
from tests.optimizers.named import named

BETAS = (0.8, 0.95)
ADAM = {"lr": 0.1, "weight_decay": 0.2, "betas": BETAS}
MUON = {"lr": 0.1, "weight_decay": 0.2, "momentum": 0.9}


def weight():
    return torch.nn.Parameter(torch.ones(4, 4))


class OtherStep(torch.optim.AdamW):
    """A step that no rule knows."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad)


class OtherStart(torch.optim.AdamW):
    """torch's step with other state."""

    def _init_group(self, *args, **kwargs):
        return super()._init_group(*args, **kwargs)


class Convenient(torch.optim.AdamW):
    """torch's step with a method more, and one around the step."""

    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none)

    def norms(self):
        return [p.norm() for group in self.param_groups for p in group["params"]]


def rule(optimizer, **rules):
    return gyro.rule_of(optimizer.param_groups[0], optimizer, **rules)


def test_a_subclass_with_torchs_step_has_its_rule_also_after_torch_has_wrapped_the_step():
    for made in (type("LightningAdamW", (torch.optim.AdamW,), {})([weight()], lr=0.1), Convenient([weight()], lr=0.1)):
        assert rule(made) == AdamW(0.1, 0.01)
        assert spec_of(made).name == "AdamW"
        # torch writes a wrapper into the class when it first makes an instance, and a scheduler into the instance.
        torch.optim.lr_scheduler.StepLR(made, 10)
        assert rule(made) == AdamW(0.1, 0.01)


@pytest.mark.parametrize("cls", [OtherStep, OtherStart])
def test_a_subclass_with_a_step_of_its_own_is_unknown_and_hears_of_its_ancestor(cls):
    optimizer = cls([weight()])
    with pytest.raises(ValueError, match=rf"{cls.__name__} is not among .*inherits from torch's AdamW") as error:
        rule(optimizer)
    line = f"rules={{{cls.__name__}: lambda group: AdamW(group['lr'], group['weight_decay'], group['betas'])}}"
    assert line in str(error.value)
    assert spec_of(optimizer) is None
    declared = eval(line.removeprefix("rules="), {cls.__name__: cls, "AdamW": AdamW})
    assert rule(optimizer, rules=declared) == AdamW(1e-3, 0.01)


@pytest.mark.parametrize(("name", "group"), [("Muon", MUON), ("AdamW", ADAM), ("Lion", ADAM), ("SGD", MUON)])
def test_a_known_name_in_a_package_without_a_record_is_unknown(name, group):
    with pytest.raises(
        ValueError, match=rf"{name} is not among .*has the name of \w+'s {name}.*rules=\{{{name}: lambda"
    ):
        gyro.rule_of(group, named(name, "somebodys_project"))


def test_a_class_has_the_rule_of_its_own_package():
    assert gyro.rule_of(ADAM, named("Lion", "gyroscope")) == Lion(0.1, 0.2, BETAS)
    assert gyro.rule_of({**ADAM, "weight_decouple": True}, named("RAdam", "pytorch_optimizer")) == AdamW(
        0.1, 0.2, BETAS
    )
    assert gyro.rule_of(ADAM, named("RAdam", "torch")).name == "AdamL2"


def test_outside_torch_no_class_inherits_a_rule():
    muon = type(named("Muon", "muon"))
    child = type("MuonHyperball", (muon,), {"__module__": "muon"})()
    assert gyro.rule_of(MUON, muon()) == Muon(0.1, 0.2, 0.9)
    with pytest.raises(ValueError, match=r"MuonHyperball is not among .*inherits from muon's Muon"):
        gyro.rule_of(MUON, child)


@pytest.mark.parametrize("options", [{"use_muon": True}, {"algorithm": "muon"}, {"kind": "muon"}])
def test_a_group_chooses_the_algorithm_only_in_a_package_that_reads_it(options):
    adamw = torch.optim.AdamW([{"params": [weight()], "momentum": 0.9, **options}])
    assert rule(adamw) == AdamW(1e-3, 0.01)
    with pytest.raises(ValueError, match="Mixed is not among"):
        gyro.rule_of({**MUON, **options}, named("Mixed", "somebodys_project"))


def test_muon_with_aux_adam_has_the_rule_that_its_group_chooses():
    for name in ("MuonWithAuxAdam", "SingleDeviceMuonWithAuxAdam"):
        assert gyro.rule_of({**MUON, "use_muon": True}, named(name, "muon")) == Muon(0.1, 0.2, 0.9)
        assert gyro.rule_of({**ADAM, "use_muon": False}, named(name, "muon")) == AdamW(0.1, 0.2, BETAS)
        with pytest.raises(ValueError, match="no 'use_muon'"):
            gyro.rule_of(MUON, named(name, "muon"))


def test_an_option_that_a_class_has_and_no_record_knows_is_refused_by_its_name():
    newer = type("AdamW", (torch.optim.AdamW,), {"__module__": "torch.optim.adamw"})([weight()])
    newer.defaults["orthogonal"] = False
    newer.param_groups[0]["orthogonal"] = False
    assert rule(newer) == AdamW(1e-3, 0.01)
    newer.param_groups[0]["orthogonal"] = True
    with pytest.raises(ValueError, match=r"AdamW with orthogonal=True is not covered.*rules="):
        rule(newer)
    # A class without defaults may read any key.
    with pytest.raises(ValueError, match=r"muon's Muon with orthogonal=2 is not covered"):
        gyro.rule_of({**MUON, "orthogonal": 2}, named("Muon", "muon"))


def test_a_key_that_the_step_does_not_read_changes_nothing():
    for cls in (torch.optim.AdamW, gyro.optim.RotationalAdamW):
        mine = {"params": [weight()], "name": "head", "lr_scale": 0.5, "wd_mult": 1.0, "layer": 3}
        assert rule(cls([mine], weight_decay=0.1)) == AdamW(1e-3, 0.1)


@pytest.mark.parametrize("key", RECORDS, ids=".".join)
def test_an_option_that_is_required_is_never_guessed(key):
    package, name = key
    record = RECORDS[key]
    if record.rule is None or package in ("torch", "gyroscope"):
        return
    settings = dict.fromkeys(record.attributes)
    with pytest.raises(ValueError, match=rf"no '({'|'.join(record.required)})'"):
        gyro.rule_of({}, named(name, package, **settings))
