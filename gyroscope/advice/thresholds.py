"""Every number that a finding or a mark on a page depends on, with its reason. Ratios unless another unit is named.

Three more belong to theory, because they define its notions: `forecast.SETTLED` (a norm within 10 % of its equilibrium
has settled), `convergence.MEMORY_PASSED` and `SETTLES` (run lengths from which a run is compared with equilibrium, and
is long enough to settle). Distance from equilibrium is not a fault. A warning needs evidence that the loss suffers
(results/advice.md).
"""

# Run length in memories below which weight decay has almost no effect. At 0.02 it changed the loss of three networks by
# less than 1 %, at 0.05 that of two, and of a ResNet by 0.6 % ± 0.5 %. At 0.3 it changed that of a GPT by 1.2 %. From
# one memory (`convergence.MEMORY_PASSED`) on it changed losses by 4 to 12 % in some networks (sentences/short_run).
MIN_DECAY_EFFECT = 0.05

# Samples below which a run is too short to judge. A mean of fewer fluctuates by more than the 10 % that matter.
MIN_SAMPLES = 8
# Memories of the momentum, 1/(1-β1) steps each, below which a run is too short because the momentum still fills.
MIN_MOMENTUM_MEMORIES = 3
# Steps of one such memory if the rule is unknown, for the momentum of 0.9 that most optimizers have.
UNKNOWN_MOMENTUM_MEMORY = 10.0
# Samples below which no mean over the judged part of a run is taken, because two may both be extremes.
MIN_MEAN_SAMPLES = 3

# Samples of the running median that finds the schedule's learning rate. It ignores a rate raised for three steps.
MIN_RATE_SAMPLES = 7
# Measured over predicted rotation, or its inverse, within which a layer rotates "as predicted": scale-invariant layers
# of the tracked networks stay within 10 %.
MAX_AS_PREDICTED_RATIO = 1.15

# Part of the run, at its end, over which steady values are averaged. It is after the transient of a run that settles.
JUDGED_SHARE = 0.4
# The part over which the end of a run is judged.
LATE_SHARE = 0.1
# Measured over predicted rotation below which a layer has stopped moving: it would need a hundred times as many steps.
MAX_STOPPED_ROTATION = 0.01
# Initial norm over that of equilibrium below which a rotational optimizer should start at equilibrium: GPT-2's 0.02
# gives 0.3 in a small GPT, and 1/sqrt(fan_in) gives 0.7. At 0.02 a GPT and a ViT ended lower with a gain and that start
# than AdamW. At 1/sqrt(fan_in) the GPT did and the ViT did not (beyond/recipe_gpt, beyond/recipe_vit).
MIN_START_NORM = 0.5
# Share of the peak learning rate above which a step counts for averages. At the end of a decay to zero no norm can
# follow. That has a separate finding, which is only a note because every decay to zero does it.
MIN_FULL_RATE = 0.2
# A norm is in transient if its measured over expected speed towards equilibrium is above this. If another force (a
# signal or a radial gradient) holds the norm, it stays constant far from its prediction.
MIN_APPROACH_SPEED = 0.3
# Measured over predicted rotation below which a norm that is too large has slowed the layer down. If it has not, the
# prediction is off.
MAX_SLOWED_ROTATION = 0.85
# Share of the peak learning rate below which the distance of a norm from its equilibrium no longer matters.
MIN_RATE_SHARE = 0.01

# A layer settles late, and is named as an exception, if it takes this many times as long as half of the layers.
MAX_LATE_SETTLING = 2.0
# Norm over its equilibrium beyond which it has fallen out, if the rule is unknown: `falls_out_ratio` of most rules.
UNKNOWN_FALLS_OUT_RATIO = 1.3
# 1/x if the rule is unknown, with an equilibrium norm that follows lr^x: that of Adam.
UNKNOWN_NORM_POWER = 2.0
# Measured over predicted rotation from which the last step of a checkpoint is faster than noise explains.
MAX_LAST_ROTATION = 1.5
# Part of the run that counts as its start, after the warmup.
START_SHARE = 0.1
# Layers for which the needed warmup is searched, fastest first, because a page must not wait for a hundred searches.
MAX_WARMUP_SEARCHES = 12
# Radians per step in equilibrium. Above this, noise alone reverses a vector within a few dozen steps.
MAX_ROTATION = 0.1

# Rotation of the fastest layer over that of the slowest with the same settings. A factor of four in lr × weight decay
# has the same effect. Layers in noise equilibrium stay within 1.2.
MAX_LAYER_RATIO = 2.0
# The same ratio below which the layers of a plan rotate alike: a forecast is good to a few percent.
MAX_ALIKE_RATIO = 1.05

# Share of the vectors below the low percentile and above the high one (one or two of 32 vectors).
OUTER_SHARE = 0.05
# Ratio of the 95th to the 5th percentile of a layer's rotations in one step, over that ratio for pure noise. Gradients
# of real data point along fewer directions than a vector has entries, and so fluctuate more than white noise: up to 2.7
# was seen in networks whose averages over steps were within 1.3.
MAX_NEURON_RATIO = 3.0
# Vectors below which a layer has no meaningful percentiles.
MIN_VECTORS = 8

# A layer counts as scale-sensitive if λ_e/λ, or its inverse, is above this. Rotation and norm are then 12 % off.
MAX_DECAY_ERROR = 1.25
# Scale sensitivity is named as the reason if measured over predicted rotation or norm, or its inverse, is above this.
# Below it there is nothing to explain.
MIN_SENSITIVE_EFFECT = 1.15
# Standard errors by which a mean must differ from 0 before anything is stated. With a hundred layers this gives one
# false alarm in a hundred runs.
MIN_STANDARD_ERRORS = 4.0

# Vectors without a gradient in every judged sample are reported above this share. Even one is too many.
MAX_DEAD_SHARE = 0.0
# The same share at which a layer loses a noticeable part of its width.
BAD_DEAD_SHARE = 0.1

# Share of entries with a gradient that a step does not change. In float32 it is below 0.01.
MAX_FROZEN_SHARE = 0.05
# The same share that stops most of a layer.
BAD_FROZEN_SHARE = 0.5

# Mean loss at the end of a run over that of its best part that counts as a rise: overfitting stays below it.
MAX_LOSS_RISE = 1.25
# Parts of a run, of which the last and the best are compared.
LOSS_PARTS = 8
# Standard errors by which the logarithms of the two must differ. None of 52,000 stationary runs reached it: 200 to
# 5,000 losses, log-normal with σ up to 1, normal, with heavy tails, or correlated over up to a twentieth of the run.
LOSS_RISE_ERRORS = 8.5

# Within this many standard errors only the error of a value is shown, because the value may be 0.
MIN_SHOWN_STANDARD_ERRORS = 2.0
# A table highlights a number if measured over predicted, or its inverse, is above this, as for a reported start.
MAX_USUAL_RATIO = 1.5
# Numbers above this are not written with all digits, because the last ones are rounding errors.
MAX_EXACT_NUMBER = 1e15

# A learning rate, a weight decay or 1 - β has jumped if it changed by this factor between samples. Schedules move by
# less, and a setting that falls with the learning rate at a milestone is part of the schedule.
SETTING_JUMP = 1.5
# A weight decay is part of the schedule if it changed by at most this power of the factor of the learning rate.
MAX_RATE_POWER = 3.0
# The factor within which two learning rates are those of a smooth schedule.
MAX_SMOOTH_FACTOR = 1.2
# Steps in which to expect one false alarm, measured on trainings without an incident
# (results/beyond/incidents.json).
STEPS_PER_FALSE_ALARM = 30_000
# Three thresholds for gradients, updates and losses, as deviations of logarithms from their own median. At least twice
# the usual.
INCIDENT_FLOOR = 0.7
# Standard deviations, estimated by a median, which a few extremes do not move.
INCIDENT_DEVIATIONS = 5.0
# Times the largest remembered deviation. Near the end of training, single hard examples raise losses to a hundred times
# the median, and planted batches to a thousand times.
INCIDENT_EXTREMES = 2.0
# Samples over which that median is taken: 300 steps with the usual ten between samples, in which training moves little.
INCIDENT_LEVEL = 30
# Samples whose deviations are remembered, enough for an estimate of the extremes.
INCIDENT_MEMORY = 100
# Samples over which an early stage takes its median. It judges until there are enough samples for the others.
EARLY_LEVEL = 8
# Deviations that it needs. This makes 20 samples.
EARLY_SAMPLES = 12
# Losses over which the early stage takes its median.
EARLY_LOSS_LEVEL = 20
# Deviations of losses that it needs. This makes 50 losses.
EARLY_LOSSES = 30
# Factor by which the early stage's thresholds for samples are wider, because noise is estimated from few values while
# training still changes fast. Without it there were two false alarms in 37,000 clean steps.
EARLY_CAUTION = 1.5
# The same for losses.
EARLY_LOSS_CAUTION = 1.25
# Deviations of losses from which the thresholds are no wider.
ENOUGH_LOSSES = 150
# The floor of losses, 1.4 times the usual, because losses of language models hardly ever double.
LOSS_FLOOR = 0.35
# Logged losses for each of these samples, since samples are usually ten steps apart.
LOSSES_PER_BLOCK = 10
# Losses of such a block that may be usual in a lasting jump. If one loss in ten is a spike by chance, one block in
# three million has eight spikes.
LOSSES_BELOW_JUMP = 2
# Standard deviations by which the others must be above the usual. Extremes of the past do not count, because one old
# spike would hide a jump.
JUMP_DEVIATIONS = 3.0
# Growth of the logarithm of Adam's denominators between samples that can be an incident. With β2 = 0.999 a single batch
# raises them by a fifth only if its gradient is twenty times the usual. 0.12 was seen without an incident.
DENOMINATOR_FLOOR = 0.2
# The first floor for one layer alone, 4.5 times the usual, because there are many layers and each may differ by chance.
# In 60,000 steps without an incident 1.7 was seen.
LAYER_FLOOR = 1.5
# A deviation belongs to one layer alone if it is this many times the largest one of other parameters. In the first ten
# steps of a GPT the gradients of all queries and keys grow fifty times, and their deviations are within a factor of
# 1.6.
MIN_ALONE = 2.0
# The floor for the denominators of one layer, 1.35 times the usual. 0.1 was seen, and 0.18 after shuffled labels.
LAYER_DENOMINATOR_FLOOR = 0.3
# Samples after which the layers' medians are computed again. They move little, and there are many layers.
LEVELS_EVERY = 5
# A deviation counts as part of an incident above this share of its peak, in logarithms. Below it, training recovers.
MIN_LASTING_SHARE = 0.6
# Blocks of losses without such a deviation after which training has recovered.
RECOVERY = 10
# Relative change of a norm between samples that neither rounding nor sampling explains.
NORM_JUMP = 0.2
# The same for the direction: radians that a layer's vectors rotate between samples.
TURN_JUMP = 0.3
# Both over the largest change of the past samples, because norms and directions move smoothly.
WEIGHTS_EXTREMES = 5.0
# Smallest share of frozen entries that is shown. Single entries stay as they are in any training.
MIN_SHOWN_FROZEN = 1e-3
# Standard deviation of GPT-2's initial weights.
GPT2_STD = 0.02
# Norms that an optimizer keeps cost loss if they start this many times below those of equilibrium.
SMALL_START = 2.0
# Learning rates and weight decays below this are written as powers of ten, as people write them.
SCIENTIFIC_BELOW = 0.01
# Share of the logged values whose mean is the final loss. One batch alone is noise.
FINAL_LOSS_SHARE = 0.05
# The worst member of a family is named if the largest over smallest distance from the usual is above this.
MIN_NAMED_RATIO = 1.1
# Largest share of a label for its beginning, so that its end is shown too.
MAX_LABEL_START = 0.75
