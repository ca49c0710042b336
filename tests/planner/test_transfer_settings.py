"""`gyroscope transfer` and `gyroscope convert` as a person meets them: the answer first, or one sentence."""

import json
from dataclasses import fields

import numpy as np
import pytest

from gyroscope.cli import main
from gyroscope.planner.convert_settings import read_options
from gyroscope.planner.rule_settings import RULES, TYPICAL
from gyroscope.planner.transfer_answer import answer_transfer
from gyroscope.planner.transfer_settings import read_number
from gyroscope.theory import cosine

TUNED = "transfer adamw --lr 6e-4 --wd .1 --betas .9,.95 --batch 0.5M --tokens 10B --width 768 --depth 12"
EXAMPLE = f"{TUNED} --to batch=2M,tokens=200B,width=2048,depth=24 --schedule cosine"
CONVERT = "convert adamw {} --lr 1e-3 --weight-decay 0.1"


def run(capsys, argv):
    code = main(argv.split())
    out, err = capsys.readouterr()
    return code, " ".join(out.split()), err


def answered(**changes):
    tuned = {"optimizer": "adamw", "lr": 6e-4, "weight_decay": 0.1, "batch": "0.5M", "tokens": "10B", "width": "768"}
    return answer_transfer(tuned | changes)


def test_the_answer_to_a_joint_change_comes_first_in_at_most_ten_lines(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(EXAMPLE.split()) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) <= 10
    out = " ".join(printed.split())
    assert out.startswith(
        "Use lr 1.73e-4 and weight decay 0.2 for hidden weights. (tau for batch × 4, horizon for tokens × 20, mup for "
        "width × 2.67, no change for depth × 2)"
    )
    for phrase in (
        "head 1.73e-4, 0.2 embedding 4.6e-4, 0.2 gains 4.6e-4, 0",
        "Published rules give lr 1.01e-4 to 4.5e-4. Try 1.2e-4 and 2.4e-4 if you can afford two more runs.",
        "Tried by us: batch × 4, tokens × 4, width × 8, each alone, on networks of up to 2M weights.",
        "Tokens × 20 is beyond that.",
        "Keep the batch far below the critical one (ours: at most 0.05 of it).",
        "The support of horizon comes from shorter runs.",
        "We have no trial for depth. Published rules leave lr unchanged or divide it by 1.41 for depth.",
    ):
        assert phrase in out, phrase


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("batch=2M", "copied settings ended 0.013 nats above tau, linear 0.012, sqrt-batch 0.003. Keep the batch far"),
        ("batch=125K", "Tried by us: batch ÷ 4, on networks of up to 2M weights. On average over four networks copied"),
        ("tokens=1B", "Tried by us: tokens ÷ 4, on networks of up to 2M weights. Tokens ÷ 10 is beyond that."),
        ("width=1536", "Published rules give lr 3e-4 and weight decay 0.1 to 0.2. Try 2.1e-4 and 4.2e-4 if you can"),
        ("width=384", "Tried by us: width × 8, on networks of up to 2M weights. Width ÷ 2 is beyond that."),
        ("depth=24", "(no change for depth × 2) head 6e-4, 0.1 embedding 6e-4, 0.1 gains 6e-4, 0 Try 4.2e-4"),
        ("tokens=1T", "Tokens × 100 is beyond that. No source goes beyond × 32."),
        ("depth=12", "Keep your settings, because the scale does not change."),
    ],
)
def test_one_axis_has_what_its_trials_found_and_how_far_they_reach(change, sentence, capsys):
    assert sentence in run(capsys, f"{TUNED} --to {change}")[1]


def test_all_prints_the_table_with_the_worked_example_and_the_sources(capsys):
    out = run(capsys, f"{EXAMPLE} --all")[1]
    for row in (
        "from: AdamW(lr=0.0006, weight_decay=0.1, betas=(0.9, 0.95)), cosine schedule, batch 500K, 10B tokens, 20K",
        "tuned run 6e-4 0.1 2.51 8.33B 83.3 0.6 0.0548 2.6",
        "answer 1.73e-4 0.2 1.91 58B 29 1.73 0.0208 1.6",
        "copy 6e-4 0.1 2.51 33.3B 16.7 3 0.0548 4.3",
        "tau 4.5e-4 0.01 0.688",
        "completed 1.01e-4 0.0447 0.688",
        "hyperp – – 1.36",
        "marin-muonh – – 1.27",
        "does not cover takes tau for batch, horizon for tokens, mup for width, no change for depth.",
        "for Hyperball: hyperp, marin-adamh, marin-muonh",
        "horizon: Bjorck et al. 2024, arXiv 2409.19913",
    ):
        assert row in out, row


def test_the_trials_of_another_optimizer_were_of_adamw(capsys):
    out = run(capsys, "transfer lion --lr 1e-4 --wd 1 --steps 10K --to steps=40K")[1]
    assert "Tried by us with AdamW: steps × 4, on networks" in out


def test_json_has_the_answer_every_rule_and_all_sentences(capsys):
    code = main([*EXAMPLE.split(), "--json"])
    data = json.loads(capsys.readouterr().out)
    assert code == 0
    name = "batch=tau,tokens=horizon,width=mup,depth=copy"
    assert (data["recommended"], data["decided"], data["beyond"]) == ([name], False, [])
    assert data["answer"]["lr"] == pytest.approx(1.725e-4, rel=1e-3)
    assert data["answer"]["groups"]["embedding"]["lr"] == pytest.approx(4.6e-4, rel=1e-3)
    rules = {row["name"]: row for row in data["rules"]}
    assert rules["completed"]["lr"] == pytest.approx(1.006e-4, rel=1e-3)
    assert data["sentences"][0].startswith("Use lr 1.73e-4")


def test_a_rule_that_is_asked_for_answers(capsys):
    out = run(capsys, f"{TUNED} --to batch=2M --rule sde")[1]
    assert out.startswith("Use lr 1.2e-3 and weight decay 0.1 for hidden weights. (sde for batch × 4, as you asked)")
    assert "Set betas to (0.9, 0.8). Multiply eps by 0.5." in out
    assert "Our trials favour tau for batch." in out
    assert "Tried by us" not in out


def test_rules_are_composed_and_other_axes_take_the_favoured_rule(capsys):
    out = run(capsys, f"{TUNED} --to batch=2M,tokens=40B,width=1536 --rule width=independent,samples=tau")[1]
    assert "(tau for batch × 4 and tokens × 4, independent for width × 2, as you asked)" in out
    assert out.startswith("Use lr 6e-4 and weight decay 0.1 for")
    assert "Tried by us: batch × 4, alone, on" in out
    assert "Our trials favour horizon for tokens and mup for width." in out


def test_keep_rotation_answers_if_it_is_asked_for(capsys):
    argv = "transfer adamw --lr 1e-2 --wd .3 --batch 16 --samples 16K --width 64 --to samples=64K,width=128"
    out = run(capsys, f"{argv} --init-norm .16 --rule keep-rotation")[1]
    assert "(keep-rotation for samples × 4 and width × 2, as you asked)" in out
    assert "Our trials favour horizon for samples and mup for width." in out


def test_a_rule_that_says_nothing_of_the_change_is_left_out_of_the_table(capsys):
    out = run(capsys, f"{TUNED} --to width=1536 --all")[1]
    assert "mup 3e-4 0.1" in out
    assert " tau 3e-4" not in out


def test_a_run_in_steps_keeps_its_steps_as_the_batch_changes():
    settings = {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.3, "batch": "16", "steps": "600", "to": "batch=64"}
    data = answer_transfer(settings)
    assert data.ratios == {"batch": 4.0, "tokens": 4.0}


def test_steps_need_no_batch_and_memory_is_in_steps(capsys):
    code, out, _ = run(capsys, "transfer adamw --lr 1e-3 --wd .1 --steps 10K --to steps=40K")
    assert code == 0
    assert "(horizon for steps × 4)" in out
    out = run(capsys, "transfer adamw --lr 1e-3 --wd .1 --steps 10K --to steps=40K --all")[1]
    assert "constant schedule, 10K steps to: 40K steps" in out
    assert "tuned run 1e-3 0.1 3.24 10K 100 1" in out


def test_the_unit_does_not_change_the_answer():
    in_tokens = answered(to="batch=2M,tokens=40B")
    settings = {"optimizer": "adamw", "lr": 6e-4, "weight_decay": 0.1, "width": "768"}
    in_steps = answer_transfer({**settings, "batch": "4", "steps": "20K", "to": "batch=16"})
    assert (in_tokens.row.lr, in_tokens.row.weight_decay) == pytest.approx((in_steps.row.lr, in_steps.row.weight_decay))


def test_the_shape_of_the_schedule_counts_and_a_warmup_keeps_its_share():
    in_steps = answered(to="tokens=20B", schedule="cosine", warmup="400")
    as_share = answered(to="tokens=20B", schedule="cosine", warmup="2%")
    assert in_steps.transfer.tuned.run_length == as_share.transfer.tuned.run_length
    steps = np.arange(20_000)
    expected = (cosine(20_000, warmup=400)(steps)).sum() * 6e-5
    assert as_share.transfer.tuned.run_length == pytest.approx(expected, rel=1e-3)


def test_hyperball_has_no_weight_decay_in_its_answer(capsys):
    argv = "transfer hyperball --lr .01 --momentum .9 --steps 10K --width 512 --to steps=40K,width=1024"
    out = run(capsys, argv)[1]
    assert out.startswith("Use lr 6.42e-3 for hidden weights. (hyperp for steps × 4, no change for width × 2)")
    assert "gains take the inner optimizer's plain step, so transfer their learning rate as for that optimizer." in out
    assert "embedding" not in out  # the group, whose rate is not Hyperball's
    assert "We have no trial of optimizers that keep norms (Hyperball)." in out
    assert "tuned run 0.01 0 9.95 1064" in run(capsys, f"{argv} --all")[1]


def test_numbers_are_read_as_people_write_them():
    assert [read_number("batch", text) for text in ("2048", "0.5M", ".5m", "10B", "1e3K", "3T")] == [
        *(2048, 5e5, 5e5, 1e10, 1e6, 3e12)
    ]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (f"{TUNED} --to batch=0", "batch=0.0 must be a finite number above 0"),
        (f"{TUNED} --to width=-3", "width=-3.0 must be a finite number above 0"),
        (f"{TUNED} --to heads=3", "unknown axis 'heads': choose one of batch, tokens,"),
        (f"{TUNED} --to steps=3K", "--to steps=3K does not fit the tuned run, whose length is in tokens. Use one unit"),
        (f"{TUNED} --to tokens=1K", "tokens=1000 is less than one batch=500000. Use one unit for both"),
        (
            f"{TUNED} --to batch=1M --rule linear",
            "'linear' is for SGD with momentum, not for AdamW. Choose one of copy",
        ),
        (f"{TUNED} --to batch=1M --rule tauu", "unknown transfer rule 'tauu': did you mean 'tau'?"),
        (f"{TUNED} --to batch=1M --rule batch=tauu", "unknown transfer rule 'tauu': did you mean 'tau'?"),
        (f"{TUNED} --to batch=1M --rule batch=mup", "the transfer rule 'mup' is not for batch. It is for width"),
        (f"{TUNED} --to width=1536 --rule sqrt-batch", "'sqrt-batch' is not for this change. It is for batch"),
        (f"{TUNED} --to batch=1M --rule batch=tau,batch=sde", "--rule gives batch twice"),
        (f"{TUNED} --to batch=1M --rule bat=tau", "unknown axis 'bat'"),
        (f"{TUNED} --to batch=1M --rule batch=linear", "'linear' is for SGD with momentum, not for AdamW"),
        (f"{TUNED} --to batch=1M --rule batch=tau,width", "'width' is not of the form axis=rule, for example batch="),
        (f"{TUNED} --to batch=12M --rule sde", "'sde' gives no settings for this change: beta2 would be -0.2"),
        (f"{TUNED} --to width=2x", "width='2x' is not a number. Write for example 2048"),
        (f"{TUNED} --to width=..", "width='..' is not a number"),
        (f"{TUNED} --to width", "'width' is not of the form axis=value"),
        (f"{TUNED} --to params=3B", "--to params=3B needs the params of the tuned run. Add --params"),
        (f"{TUNED} --to batch=1M,batch=2M", "--to gives batch twice"),
        (f"{TUNED} --to batch=1e999", "batch=inf must be a finite number above 0"),
        (TUNED, "the new scale is missing"),
        (f"{TUNED} --steps 3 --to batch=1M", "--tokens and --steps both give the length"),
        (f"{TUNED} --to batch=1M --warmup 200%", "warmup='200%' is longer than the run"),
        (f"{TUNED} --to batch=1M --warmup -1", "warmup=-1.0 must be a finite number, 0 or above"),
        (f"{TUNED} --to batch=1M --schedule step", "the step schedule has milestones"),
        (f"{TUNED} --to batch=1M --init-norm 0", "init_norm=0.0 must be"),
        ("transfer adamww --lr 1 --to batch=1", "unknown optimizer 'adamww': did you mean 'adamw'?"),
        ("transfer adam --lr 1e-3 --wd .1 --steps 9 --to steps=18", "no published rule covers AdamL2"),
        ("transfer adamw --wd .1 --steps 9 --to steps=18", "the tuned lr is missing. Add --lr"),
        ("transfer adamw --lr .1 --steps 9 --to steps=18", "the tuned weight_decay is missing. Add --weight-decay"),
        ("transfer adamw --lr .1 --wd 0 --steps 9 --to steps=18", "weight_decay=0.0 must be a finite number above 0"),
        ("transfer adamw --lr .1 --wd .1 --batch 3 --to batch=4", "the length of the tuned run is missing"),
        ("transfer adamw --lr .1 --wd .1 --tokens 3 --to tokens=4", "the batch of the tuned run is missing"),
        ("transfer adamw --lr .1 --wd .1 --momentum .9 --steps 9 --to steps=18", "adamw has no 'momentum'"),
        (CONVERT.format("sgdm"), "needs --fan-in (the number of entries of one weight vector) and --unit-grad-norm ("),
        (
            CONVERT.format("muon --set adjust_lr_fn=rms"),
            "adjust_lr_fn='rms' must be one of 'original', 'match_rms_adamw'",
        ),
        (CONVERT.format("muon --set nesterov=maybe"), "unknown nesterov 'maybe': choose one of true, false"),
        (CONVERT.format("muon"), "from AdamW to muon needs --shape (the shape of the whole weight matrix)"),
        (
            "convert adam_s adam_srt --lr 1e-3 --wd 0.1",
            "needs --fan-in (the number of entries of one weight vector) and",
        ),
        ("convert muon muon --lr 1e-3 --wd 0.1", "from Muon to muon needs --shape"),
        (CONVERT.format("lionn"), "unknown optimizer 'lionn': did you mean 'lion'?"),
        (CONVERT.format("lion --set beta=1"), "lion has no 'beta'. Its settings are lr"),
        (CONVERT.format("lion --set 0.9"), "--set '0.9' is not of the form name=value"),
        (CONVERT.format("lion --momentum .9"), "adamw has no 'momentum'"),
        (CONVERT.format("hyperball --warmup 100"), "warmup='100' is not a share of the run. Write for example 2%"),
        ("convert adamw lion --weight-decay 0.1", "the tuned lr is missing. Add --lr"),
        (
            CONVERT.format("sgdm --fan-in 1,2,3 --unit-grad-norm .1,.2"),
            "--unit-grad-norm has 2 values, and another option has 3. Give one value, or one for each layer",
        ),
        (CONVERT.format("sgdm --fan-in x --unit-grad-norm 1"), "fan_in='x' must be numbers with commas"),
        ("transfer --to batch=1", "name the tuned optimizer, for example adamw, or the tuned run by --from"),
        ("transfer adamw --from . --to batch=1", "or the tuned run by --from, but not both"),
        ("transfer --from nowhere --to batch=1", "nowhere"),
        (
            "convert hyperball adamw --lr 0.01",
            "Hyperball and AdamW share too little to choose lr and weight_decay. Fix",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(argv, sentence, capsys):
    code, out, err = run(capsys, argv)
    assert (code, out) == (2, "")
    assert err.startswith("gyroscope: ")
    assert err.count("\n") == 1
    assert sentence in err


def test_a_conversion_begins_with_the_new_settings(capsys):
    code, out, err = run(capsys, CONVERT.format("lion"))
    assert (code, err) == (0, "")
    assert out.startswith(
        "Use Lion: lr 1.48e-4, weight_decay 0.675, betas (0.9, 0.99). They keep the memory and norm of"
    )
    assert "They multiply the rotation per step by 0.646. Keep your schedule." in out


def test_hyperball_takes_adamws_angle_and_the_root_of_its_schedule(capsys):
    out = run(capsys, CONVERT.format("hyperball") + " --schedule cosine --warmup 2%")[1]
    # sqrt(2·lr·wd·(1-β1)/(1+β1)), and 0.505 at 1 % of a run with 2 % of warmup.
    assert f"lr {1e3 * (2e-4 / 19) ** 0.5:.2f}e-3" in out
    assert "to the power 0.5." in out
    assert "1 % 0.505 0.711" in out


def test_an_option_that_only_the_new_optimizer_has_is_meant_for_it(capsys):
    inputs = " --fan-in 256 --unit-grad-norm 0.1"
    out = run(capsys, CONVERT.format("sgdm") + inputs + " --momentum 0.95")[1]
    assert "momentum 0.95" in out
    assert "so give that of each layer: --unit-grad-norm" in out
    out = run(capsys, CONVERT.format("lion") + " --betas 0.8,0.9 --set betas=0.95,0.98")[1]
    assert (
        "betas (0.95, 0.98). They keep the memory and norm of AdamW(lr=0.001, weight_decay=0.1, betas=(0.8, 0.9))"
        in out
    )


def test_muon_needs_only_the_shape(capsys):
    out = run(capsys, CONVERT.format("muon") + " --shape 256x256")[1]
    assert out.startswith("Use Muon: lr 3.67e-3, weight_decay 0.0273")
    assert "The answer is for matrices of this shape." in out


def test_muon_names_both_conventions_and_what_stays_with_adamw(capsys):
    argv = CONVERT.format("muon") + " --shape 256x64"
    both = {}
    for name in ("original", "match_rms_adamw"):
        out = run(capsys, f"{argv} --set adjust_lr_fn={name}")[1]
        both[name] = out
        assert "and for Keller Jordan's code" in out
        assert "Embeddings, the head, biases and gains stay with AdamW at your settings." in out
    # Each answer names the settings of the other, and both make the same step: max(1, 256/64)^½ and 0.2·256^½.
    assert both["original"].startswith("Use Muon: lr 1.69e-3, weight_decay 0.0592, momentum 0.95, nesterov, adjust_lr")
    assert "For torch's adjust_lr_fn match_rms_adamw use lr 1.06e-3 and weight_decay 0.0948." in both["original"]
    assert both["match_rms_adamw"].startswith("Use Muon: lr 1.06e-3, weight_decay 0.0948,")
    assert "use lr 1.69e-3 and weight_decay 0.0592." in both["match_rms_adamw"]
    by_layer = run(capsys, f"{argv},64x64")[1]
    assert "For torch's adjust_lr_fn match_rms_adamw add --set adjust_lr_fn=match_rms_adamw." in by_layer


@pytest.mark.parametrize("name", list(RULES))
def test_every_option_of_the_new_optimizer_can_be_set(name):
    values = {
        "adjust_lr_fn": "none",
        "ns_coefficients": "quintic",
        "strategy": "naive",
        "correlation_time": 3.0,
        "k": 2,
        "steps_done": 3,
    }
    values |= {"betas": (0.8, 0.9), "beta2_decay": -0.5, "d": 2.0}
    values |= dict.fromkeys(("nesterov", "linearised", "tangent", "corrected_decay"), True)
    values |= dict.fromkeys(("cautious_decay", "coupled", "scale_parameter", "capped"), False)
    for each in fields(RULES[name]):
        if each.name in ("momentum", "betas") and name == "hyperball":
            continue  # it has one of three memories, and correlation_time is tried
        value = values.get(each.name, 0.5)
        text = str(value).strip("()")
        read = read_options(f"{each.name}={text}", name)
        assert read == {each.name: value}
        assert RULES[name](**{**TYPICAL[name], **read}).settings[each.name] == value


def test_a_conversion_that_keeps_norms_says_which_start_it_assumes(capsys):
    out = run(capsys, CONVERT.format("hyperball"))[1]
    # sqrt(1e-3/0.2) = 0.0707, 3.5 times 0.02.
    assert (
        "assumes those at which AdamW settles. There the RMS entry of a weight is 0.0707. A GPT that starts at" in out
    )
    assert (
        "0.02 keeps weights 3.5 times smaller, and loses. Bring norms there by gyroscope.optim.to_equilibrium_" in out
    )
    out = run(capsys, "convert adamw hyperball --lr 1e-4 --wd 1")[1]
    assert "RMS entry of a weight is 7.07e-3. Bring norms there" in out
    assert "assumes" not in run(capsys, "convert adamw lion --lr 1e-3 --wd 0.1")[1]


def test_k_adam_takes_its_stages_and_its_strategy(capsys):
    out = run(capsys, CONVERT.format("k-adam") + " --set k=3,strategy=naive")[1]
    assert "weight_decay 0.615, k 3, betas (0.9, 0.999), strategy naive. They keep the memory and norm of" in out


def test_a_conversion_as_json(capsys):
    code = main([*CONVERT.format("hyperball").split(), "--json"])
    data = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (data["to"]["name"], data["to"]["schedule_power"], data["to"]["kept"]) == ("Hyperball", 0.5, ["rotation"])
    assert data["from"]["lr"] == 1e-3


def test_each_layer_has_its_own_conversion_where_norms_need_gradients(capsys):
    inputs = " --fan-in 256 --unit-grad-norm 0.19,0.06"
    out = run(capsys, CONVERT.format("sgdm") + inputs)[1]
    assert out.startswith("Use SGDM: lr by layer, weight_decay by layer, momentum 0.9.")
    assert "256 0.19 9.52e-3 1.05e-3" in out
    assert "256 0.06 0.0301 3.32e-4" in out
    main([*(CONVERT.format("sgdm") + inputs).split(), "--json"])
    layers = json.loads(capsys.readouterr().out)["layers"]
    # Each layer keeps its norm: lr / weight decay follows 1 / unit_grad_norm² at one memory.
    ratio = [
        layer["settings"]["lr"] / layer["settings"]["weight_decay"] * layer["unit_grad_norm"] ** 2 for layer in layers
    ]
    assert ratio[0] == pytest.approx(ratio[1], rel=1e-3)


def test_a_conversion_says_what_a_trial_measured(capsys):
    out = run(capsys, CONVERT.format("lion"))[1]
    assert "In our trial it ended 0.025 nats above tuned AdamW on an MLP and 0.02 below on a GPT (n = 3)." in out
    out = run(capsys, "convert lion adamw --lr 1e-4 --wd 1")[1]
    assert "In our trial it ended 0.005 nats below tuned AdamW on an MLP, 0 above on a CNN and 0.105 above on" in out
    out = run(capsys, "convert lion nadam --lr 1e-4 --wd 1")[1]
    assert "No trial of ours supports this conversion yet." in out
