"""The papers' equations, written out in float64, against `gyroscope.theory` and the steps of `gyroscope.optim`.

RE, SMD, SP and CT are the four papers of docs/theory.md. A closed form may differ by 1e-9, a step of an optimizer by
1e-10 of the largest entry, except where a series is cut off.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from gyroscope_lab.sp._effective_step import effective_step

from gyroscope import optim, theory
from outside.tally import Tally, require

CLOSED = 1e-9
STEP = 1e-10
# Newton's method of the library ends at 1e-10 of the root, of which the angle takes a power.
ROOT = 1e-8
DRAWS = 25
STEPS = 30


def check(tally: Tally) -> None:
    """Compare every equation at random settings."""
    draw = np.random.default_rng(0)
    for number in range(DRAWS):
        adamw_table(tally, draw, number)
        sgdm_table(tally, draw, number)
        lion_table(tally, draw, number)
        adam_l2_table(tally, draw, number)
        sphere_table(tally, draw, number)
        sphere_identities(tally, draw, number)
        stability(tally, draw, number)
    for number in range(4):
        recursions(tally, draw, number)
    sgd_without_decay(tally, draw)
    adam_g_star(tally, draw)
    bound_on_updates(tally, draw)
    optimizer_steps(tally)


def settings(draw: np.random.Generator) -> tuple[float, float, float, float]:
    """Draw lr, weight decay, fan-in and unit gradient norm."""
    lr = 10 ** draw.uniform(-4, -2)
    decay = 10 ** draw.uniform(-2, 0)
    return lr, decay, float(draw.integers(8, 4000)), 10 ** draw.uniform(-2, 1)


def compare(tally: Tally, label: str, eq: Any, tolerance: float = CLOSED, **expected: float) -> None:
    """Compare fields of an equilibrium."""
    for name, value in expected.items():
        tally.close(f"{label} {name}", getattr(eq, name), value, tolerance)


def adamw_table(tally: Tally, draw: np.random.Generator, number: int) -> None:
    """RE Table 1, and the exact law with its series summed term by term."""
    lr, wd, C, _ = settings(draw)
    beta = draw.uniform(0, 0.97)
    rule = theory.AdamW(lr, wd, (beta, 0.999))
    compare(
        tally,
        f"AdamW {number}: RE Table 1",
        rule.equilibrium(fan_in=C, leading_order=True),
        norm=math.sqrt(lr * C / (2 * wd)),
        angular_update=math.sqrt(2 * lr * wd * (1 - beta) / (1 + beta)),
        update_rms=lr * math.sqrt(C * (1 - beta) / (1 + beta)),
    )
    a = lr * wd
    tau = 1 + 2 * sum(beta**k * (1 - a) ** k for k in range(1, 2000))
    power = lr * lr * C * (1 - beta) / (1 + beta)
    y = power * tau / (a * (2 - a))
    p = (power - a * (2 - a) * y) / (2 * (1 - a))
    angle = math.atan2(math.sqrt(power - p * p / y), (1 - a) * math.sqrt(y) - p / math.sqrt(y))
    compare(
        tally,
        f"AdamW {number}: exact",
        rule.equilibrium(fan_in=C),
        norm=math.sqrt(y),
        angular_update=angle,
        timescale=1 / a,
    )


def sgdm_table(tally: Tally, draw: np.random.Generator, number: int) -> None:
    """RE Table 1, SMD Theorem 2, and Theorem 2 as the fixed point of SMD's map (60-66)."""
    lr, wd, _, g = settings(draw)
    alpha = draw.uniform(0, 0.97)
    rule = theory.SGDM(lr, wd, alpha)
    norm = (lr * g * g / (2 * wd * (1 - alpha))) ** 0.25
    compare(
        tally,
        f"SGDM {number}: RE Table 1",
        rule.equilibrium(unit_grad_norm=g, leading_order=True),
        norm=norm,
        angular_update=math.sqrt(2 * lr * wd / (1 + alpha)),
        update_rms=lr * g / norm / math.sqrt(1 - alpha**2),
    )
    exact = rule.equilibrium(unit_grad_norm=g)
    theorem = (g * g * lr / (wd * (1 - alpha) * (2 - wd * lr / (1 + alpha)))) ** 0.25
    cosine = 1 - wd * lr / (1 + alpha)
    compare(
        tally,
        f"SGDM {number}: SMD Theorem 2",
        exact,
        norm=theorem,
        # acos loses the digits of a small angle, atan2 does not.
        angular_update=math.atan2(math.sqrt((1 - cosine) * (1 + cosine)), cosine),
    )
    k = 1 + alpha - wd * lr
    A = np.array([[k * k, -2 * alpha * k, alpha * alpha], [k, -alpha, 0], [1, 0, 0]])
    y = exact.norm**2
    X = np.array([y, y * math.cos(exact.angular_update), y])
    tally.close(f"SGDM {number}: SMD map", A @ X + np.array([g * g * lr * lr / y, 0, 0]), X, CLOSED)


def lion_table(tally: Tally, draw: np.random.Generator, number: int) -> None:
    """RE Appendix H, and the arcsine law with the filter's autocorrelation summed term by term."""
    lr, wd, C, _ = settings(draw)
    beta1 = draw.uniform(0.5, 0.95)
    beta2 = draw.uniform(0.9, 0.99)
    bracket = (1 - beta1) ** 2 + beta1**2 * (1 - beta2) / (1 + beta2)
    compare(
        tally,
        f"Lion {number}: RE H",
        theory.Lion(lr, wd, (beta1, beta2), linearised=True).equilibrium(fan_in=C, leading_order=True),
        norm=math.sqrt(lr * C / (math.pi * wd * bracket)),
        angular_update=math.sqrt(math.pi * lr * wd * bracket),
        update_rms=lr * math.sqrt(C),
    )
    tau = lion_tau(beta1, beta2)
    compare(
        tally,
        f"Lion {number}: arcsine law",
        theory.Lion(lr, wd, (beta1, beta2)).equilibrium(fan_in=C, leading_order=True),
        tolerance=1e-6,
        norm=math.sqrt(lr * C * tau / (2 * wd)),
        angular_update=math.sqrt(2 * lr * wd / tau),
    )


def lion_tau(beta1: float, beta2: float) -> float:
    """Sum 1 + (4/π)·Σ arcsin ρ(k) over the autocorrelation of Lion's linear filter."""
    k = np.arange(1, 6000)
    c = np.concatenate([[1 - beta1], beta1 * (1 - beta2) * beta2 ** (k - 1.0)])
    rho = [c[i:] @ c[: len(c) - i] / (c @ c) for i in range(1, 3000)]
    return float(1 + 4 / math.pi * np.arcsin(rho).sum())


def adam_l2_table(tally: Tally, draw: np.random.Generator, number: int) -> None:
    """RE Appendix I: the root of 4λ²x³ - Cη²λ²x² - Cη²g̃² by NumPy's polynomial solver."""
    lr, wd, C, g = settings(draw)
    beta = draw.uniform(0, 0.97)
    # Scaled to x = s·z, so that the coefficients are of one size.
    s = (C * lr * lr * g * g / (4 * wd * wd)) ** (1 / 3)
    roots = np.roots([1, -C * lr * lr / (4 * s), 0, -1])
    x = s * float(roots[np.abs(roots.imag) < 1e-6].real.max())
    shrunk = 1 - wd**2 * x**2 / (g**2 + wd**2 * x**2)
    compare(
        tally,
        f"Adam+L2 {number}: RE I",
        theory.AdamL2(lr, wd, (beta, 0.999)).equilibrium(fan_in=C, unit_grad_norm=g, leading_order=True),
        tolerance=ROOT,
        norm=math.sqrt(x),
        angular_update=math.sqrt(lr * lr * C * (1 - beta) / (1 + beta) * shrunk / x),
    )


def sphere_table(tally: Tally, draw: np.random.Generator, number: int) -> None:
    """SP's schemes in equilibrium, where λ's part in v is small: SGD-MRT, Adam-S and Adam-SRT."""
    lr, wd, C, g = settings(draw)
    alpha = draw.uniform(0, 0.97)
    compare(
        tally,
        f"SGD-MRT {number}: SP E.2",
        theory.SGDMRT(lr, wd, alpha).equilibrium(unit_grad_norm=g, leading_order=True),
        norm=(lr * g * g / (2 * wd * (1 - alpha**2))) ** 0.25,
        angular_update=math.sqrt(2 * lr * wd),
    )
    # λ²‖ω‖²·‖ω‖²/g̃² ~ 1e-9 is left of the decay in v.
    lr, wd, g = 1e-5, 1e-6, 1.0
    r = (lr * math.sqrt(C) * g / (2 * wd)) ** (1 / 3)
    a = lr * wd * math.sqrt(C) * r / g
    compare(
        tally,
        f"Adam-S {number}: SP",
        theory.AdamS(lr, wd, (alpha, 0.999)).equilibrium(fan_in=C, unit_grad_norm=g, leading_order=True),
        tolerance=1e-6,
        norm=r,
        angular_update=math.sqrt(2 * a * (1 - alpha) / (1 + alpha)),
    )
    r = (lr * math.sqrt(C) * g / (2 * wd * (1 + alpha))) ** (1 / 3)
    a = (1 - alpha) * lr * wd * math.sqrt(C) * r / g
    compare(
        tally,
        f"Adam-SRT {number}: SP",
        theory.AdamSRT(lr, wd, (alpha, 0.999)).equilibrium(fan_in=C, unit_grad_norm=g, leading_order=True),
        tolerance=1e-6,
        norm=r,
        angular_update=math.sqrt(2 * a),
    )


def sphere_identities(tally: Tally, draw: np.random.Generator, number: int) -> None:
    """SP Theorem 2, (11)-(13): direction, angle and radius of x - η·a ⊘ b, which is also computed directly."""
    d = int(draw.integers(2, 50))
    x = draw.normal(size=d) * 10 ** draw.uniform(-1, 1)
    a = draw.normal(size=d)
    b = draw.uniform(0.5, 2, size=d)
    lr = 0.05 * np.linalg.norm(x) / np.linalg.norm(a / b)
    step = effective_step(x, a, b, lr)
    moved = x - lr * a / b
    u, v = x / np.linalg.norm(x), moved / np.linalg.norm(moved)
    across = moved - (moved @ u) * u
    tally.close(f"SP (12) {number}", step.next_direction, v, CLOSED)
    tally.close(f"SP (37) {number}", step.angle, math.atan2(np.linalg.norm(across), moved @ u), CLOSED)
    tally.close(f"SP (13) {number}", step.radius_ratio, np.linalg.norm(moved) / np.linalg.norm(x), CLOSED)
    s = np.linalg.norm(b) / math.sqrt(d)
    c = np.linalg.norm(x) * a / (b / s)
    A = lr / (x @ x * s)
    tally.close(f"SP (11) {number}", step.learning_rate, A / (1 - A * (c @ u)), CLOSED)


def stability(tally: Tally, draw: np.random.Generator, number: int) -> None:
    """CT Theorem 1, its bound (5), its curves, the discrete twins, and k-Adam's strategies."""
    gamma, beta = draw.uniform(0.3, 0.99, size=2)
    n = int(draw.integers(1, 300))
    found = theory.stability
    C = 2 / gamma - 1 / beta - 1
    B = 1 / math.sqrt(C) if C > 0 else math.exp(n * -C / 2) / math.sqrt(-C)
    unbias = math.sqrt(1 - beta ** (n + 1)) / (1 - gamma ** (n + 1))
    label = f"CT {number}:"
    tally.close(f"{label} C", found.margin(gamma, beta), C, CLOSED)
    tally.close(f"{label} exact margin", found.exact_margin(gamma, beta), math.log(beta / gamma**2), CLOSED)
    # Compared as 1 + rate, because a rate of 0 has no relative error.
    tally.close(f"{label} growth", 1 + found.growth_rate(gamma, beta), 1 + max(0.0, -C / 2), CLOSED)
    bound = unbias * (1 - gamma) / gamma * math.sqrt(beta / (1 - beta)) * B
    tally.close(f"{label} (5)", found.update_bound(n, gamma, beta), bound, CLOSED)
    series = sum((gamma**2 / beta) ** j for j in range(n + 1))
    bound = unbias * (1 - gamma) / math.sqrt(1 - beta) * math.sqrt(series)
    tally.close(f"{label} (5) exact", found.update_bound(n, gamma, beta, exact=True), bound, CLOSED)
    tally.close(f"{label} level curve", found.level_curve(C, beta), gamma, CLOSED)
    other = beta - 0.01
    cube = 2 * beta**3 + gamma**3 - 2 * other**3
    if 0 < cube < 1:
        tally.close(f"{label} normal curve", found.normal_curve(gamma, beta, other), cube ** (1 / 3), CLOSED)
    k = int(draw.integers(1, 6))
    strategies: dict[str, Callable[[float], float]] = {
        "inverse_exp": lambda b: 1 - (1 - b) ** (1 / k),
        "exp": lambda b: b**k,
        "scaled": lambda b: b / k,
        "naive": lambda b: b,
    }
    for name, stage in strategies.items():
        expected = [(stage(gamma), stage(beta))] * k
        tally.close(f"{label} {name}", found.kadam_betas(name, k, (gamma, beta)), expected, CLOSED)


def recursions(tally: Tally, draw: np.random.Generator, number: int) -> None:
    """The averaged motion of AdamW and SGDM under a cosine schedule, step by step."""
    lr, wd, C, g = settings(draw)
    steps = 400
    start = 0.5 * math.sqrt(lr * C / (2 * wd))
    rates = [lr * 0.5 * (1 + math.cos(math.pi * t / steps)) for t in range(steps)]
    motions = {
        "AdamW": (theory.AdamW(lr, wd), adamw_motion(rates, wd, C, g, start)),
        "SGDM": (theory.SGDM(lr, wd, 0.9), sgdm_motion(rates, wd, g, start)),
    }
    for name, (rule, motion) in motions.items():
        norms, angles = zip(*motion, strict=True)
        found = theory.forecast(rule, theory.cosine(steps), norm=start, fan_in=C, unit_grad_norm=g)
        tally.close(f"{name} forecast {number}: norm", found.norm, norms, 1e-6)
        tally.close(f"{name} forecast {number}: angle", found.angular_update, angles, 1e-6)


def adamw_motion(rates: list[float], wd: float, C: float, g: float, start: float) -> Iterator[tuple[float, float]]:
    """Yield norm and angle of each step of AdamW."""
    beta1, beta2 = 0.9, 0.999
    y, q, p, v = start**2, 0.0, 0.0, 0.0
    for t, lr in enumerate(rates, start=1):
        a = lr * wd
        g2 = g * g / y
        v = beta2 * v + (1 - beta2) * g2 / C
        q = beta1**2 * q + (1 - beta1) ** 2 * g2
        before = beta1 * p
        s = lr / (1 - beta1**t) / math.sqrt(v / (1 - beta2**t))
        angle = math.atan2(s * math.sqrt(q - before**2 / y), (1 - a) * math.sqrt(y) - s * before / math.sqrt(y))
        y = (1 - a) ** 2 * y - 2 * (1 - a) * s * before + s * s * q
        p = (1 - a) * before - s * q
        yield math.sqrt(y), angle


def sgdm_motion(rates: list[float], wd: float, g: float, start: float) -> Iterator[tuple[float, float]]:
    """Yield norm and angle of each step of SGDM with L2 in the gradient."""
    alpha = 0.9
    y, q, p = start**2, 0.0, 0.0
    for lr in rates:
        q = alpha**2 * q + g * g / y + wd**2 * y + 2 * alpha * wd * p
        before = alpha * p + wd * y
        angle = math.atan2(lr * math.sqrt(q - before**2 / y), math.sqrt(y) - lr * before / math.sqrt(y))
        y = y - 2 * lr * before + lr * lr * q
        p = before - lr * q
        yield math.sqrt(y), angle


def cosine_gradient(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the gradient of -cos∠(x, target), a scale-invariant loss."""
    r = np.linalg.norm(x)
    u = x / r
    return np.asarray(-(target - (target @ u) * u) / r)


def sgd_without_decay(tally: Tally, draw: np.random.Generator) -> None:
    """SP (44): SGD with decay, and without it at growing learning rates, take the same directions."""
    for number in range(5):
        lr, wd = 0.05, 0.2
        target = draw.normal(size=6)
        target /= np.linalg.norm(target)
        x = draw.normal(size=6)
        z = x.copy()
        for k in range(100):
            x = x - lr * (cosine_gradient(x, target) + wd * x)
            z = z - theory.sphere.lr_without_decay(lr, wd, k) * cosine_gradient(z, target)
        tally.close(f"SP (44) {number}", x / np.linalg.norm(x), z / np.linalg.norm(z), CLOSED)


def adam_g_star(tally: Tally, draw: np.random.Generator) -> None:
    """SP Theorem 4: the settings of AdamG*, with which it follows SGD to second order in the radius."""
    target = np.eye(6)[0]
    start = draw.normal(size=6)
    radius = float(np.linalg.norm(start))
    errors = []
    for lr in (0.02, 0.01):
        wd = 0.1
        star = theory.sphere.adam_g_star(lr, wd, radius)
        beta = (1 - lr * wd) ** 4
        tally.close("SP Theorem 4: beta", star.beta, beta, CLOSED)
        tally.close("SP Theorem 4: lr", star.lr, (2 * beta) ** -0.5, CLOSED)
        tally.close("SP Theorem 4: v0", star.v0, radius**4 / (2 * lr**2 * beta**0.5), CLOSED)
        x = start.copy()
        u = x / radius
        v = star.v0
        for _ in range(round(2 / lr)):
            x = x - lr * (cosine_gradient(x, target) + wd * x)
            g = cosine_gradient(u, target)
            u = u - star.lr * g / math.sqrt(v)
            u /= np.linalg.norm(u)
            v = star.beta * v + g @ g
        errors.append(np.linalg.norm(x / np.linalg.norm(x) - u))
    with tally.attempt("SP Theorem 4: order"):
        ratio = errors[0] / errors[1]
        require(6 < ratio < 10, f"error falls {ratio:.2f} times per halving of lr, expected 8")


def bound_on_updates(tally: Tally, draw: np.random.Generator) -> None:
    """CT (5) in its exact form holds for k-Adam with k = 1 on any gradients, and the worst ones attain it."""
    for gamma, beta in ((0.9, 0.999), (0.9, 0.8), (0.8, 0.64), (0.99, 0.9)):
        n = 40
        worst = np.array([(gamma / beta) ** (n - i) for i in range(n + 1)])
        for name, gradients in {"worst": worst, "normal": draw.normal(size=n + 1)}.items():
            w = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
            adam = optim.KAdam([w], lr=1.0, k=1, betas=[(gamma, beta)])
            for g in gradients:
                before = w.item()
                w.grad = torch.full_like(w, g)
                adam.step()
            update = abs(w.item() - before)
            bound = theory.stability.update_bound(n, gamma, beta, exact=True)
            with tally.attempt(f"CT bound {gamma}, {beta}, {name}"):
                require(update <= bound * (1 + CLOSED), f"update {update} above {bound}")
                require(name != "worst" or update > bound * (1 - 1e-6), f"worst update {update} below {bound}")


class Literal:
    """One optimizer as its paper prints it, in NumPy: a matrix of neurons and a bias, which takes the plain step."""

    def __init__(self, matrix: np.ndarray, bias: np.ndarray) -> None:
        self.rows = [{"w": row.copy()} for row in matrix]
        self.bias: dict[str, Any] = {"w": bias.copy()}
        self.t = 0

    def step(self, matrix: np.ndarray, bias: np.ndarray) -> None:
        """Take one step with these gradients."""
        self.t += 1
        for row, g in zip(self.rows, matrix, strict=True):
            self.turn(row, g)
        self.plain(self.bias, bias)

    def turn(self, s: dict[str, Any], g: np.ndarray) -> None:
        """Move one neuron."""
        self.plain(s, g)

    def plain(self, s: dict[str, Any], g: np.ndarray) -> None:
        """Move anything else."""
        raise NotImplementedError


class LiteralAdam(Literal):
    """Adam with L2 in the gradient."""

    lr, wd, beta1, beta2 = 2e-3, 0.1, 0.9, 0.999

    def plain(self, s: dict[str, Any], g: np.ndarray) -> None:
        """Move anything else."""
        s["w"] = s["w"] - self.lr * self.adam(s, g + self.wd * s["w"])

    def adam(self, s: dict[str, Any], g: np.ndarray) -> np.ndarray:
        """Return m̂/(√v̂ + ε), and update the moments."""
        s["m"] = self.beta1 * s.get("m", 0) + (1 - self.beta1) * g
        s["v"] = self.beta2 * s.get("v", 0) + (1 - self.beta2) * g * g
        m = s["m"] / (1 - self.beta1**self.t)
        return np.asarray(m / (np.sqrt(s["v"] / (1 - self.beta2**self.t)) + 1e-8))


class LiteralAdamS(LiteralAdam):
    """SP (61)-(63), and Algorithm 1 with its transport."""

    transport = False

    def turn(self, s: dict[str, Any], g: np.ndarray) -> None:
        """Move one neuron."""
        x = s["w"]
        g = g + self.wd * x
        m = self.beta1 * s.get("m", 0) + (1 - self.beta1) * g
        v = self.beta2 * s.get("v", 0) + (1 - self.beta2) * (g @ g) / len(x)
        new = x - self.lr * m / (1 - self.beta1**self.t) / (math.sqrt(v / (1 - self.beta2**self.t)) + 1e-8)
        if self.transport:
            m = ((new @ x) * m - (new @ m) * x) / (new @ new)
            v = v * (x @ x) / (new @ new)
        s.update(w=new, m=m, v=v)


class LiteralAdamSRT(LiteralAdamS):
    """Adam-S with rescaling and transport."""

    transport = True


class LiteralAdamG(LiteralAdam):
    """AdamG: w = n·u with n fixed, momentum in parallel transport."""

    lr, wd, beta2 = 1e-2, 0.0, 0.99

    def turn(self, s: dict[str, Any], g: np.ndarray) -> None:
        """Move one neuron."""
        n = s.setdefault("n", np.linalg.norm(s["w"]))
        u = s["w"] / np.linalg.norm(s["w"])
        h = n * (g - (g @ u) * u)
        m = self.beta1 * s.get("m", 0) + (1 - self.beta1) * h
        v = self.beta2 * s.get("v", 0) + (1 - self.beta2) * (h @ h)
        unbias = math.sqrt(1 - self.beta2**self.t) / (1 - self.beta1**self.t)
        new = u - self.lr * unbias * m / (math.sqrt(v) + 1e-8)
        new /= np.linalg.norm(new)
        s.update(w=n * new, m=m - (m @ new) / (1 + u @ new) * (u + new), v=v)


class LiteralSGDMRT(Literal):
    """SGD-MRT: transport of the momentum buffer."""

    lr, wd, alpha = 0.1, 1e-3, 0.9

    def plain(self, s: dict[str, Any], g: np.ndarray) -> None:
        """Move anything else."""
        s["m"] = self.alpha * s.get("m", 0) + g + self.wd * s["w"]
        s["w"] = s["w"] - self.lr * s["m"]

    def turn(self, s: dict[str, Any], g: np.ndarray) -> None:
        """Move one neuron."""
        x = s["w"]
        self.plain(s, g)
        new = s["w"]
        s["m"] = ((new @ x) * s["m"] - (new @ s["m"]) * x) / (new @ new)


class LiteralLion(Literal):
    """Lion with decoupled decay."""

    lr, wd, beta1, beta2 = 2e-4, 1.0, 0.9, 0.99

    def plain(self, s: dict[str, Any], g: np.ndarray) -> None:
        """Move anything else."""
        s["w"] = s["w"] - self.lr * (self.lion(s, g) + self.wd * s["w"])

    def lion(self, s: dict[str, Any], g: np.ndarray) -> np.ndarray:
        """Return the sign of the interpolation, and update the momentum."""
        m = s.get("m", np.zeros_like(g))
        s["m"] = self.beta2 * m + (1 - self.beta2) * g
        return np.asarray(np.sign(self.beta1 * m + (1 - self.beta1) * g))


def rotate(s: dict[str, Any], u: np.ndarray, angle: float, t: int, eps: float) -> None:
    """Turn a neuron by RE Algorithm 1 with the inner rule's update u, which is centred first."""
    w = s["w"]
    n = s.setdefault("n", np.linalg.norm(w))
    if t == 1:
        w = w - w.mean()
        w = w * n / np.linalg.norm(w)
    u = u - u.mean()
    u = u - (u @ w) / (w @ w) * w
    s["nu"] = 0.99 * s.get("nu", 0) + 0.01 * (u @ u)
    w = w - angle * n * u / (math.sqrt(s["nu"] / (1 - 0.99**t)) + eps)
    s["w"] = w * n / np.linalg.norm(w)


class LiteralRotationalAdamW(LiteralAdam):
    """RE Algorithm 1 around AdamW."""

    def turn(self, s: dict[str, Any], g: np.ndarray) -> None:
        """Move one neuron."""
        angle = math.sqrt(2 * self.lr * self.wd * (1 - self.beta1) / (1 + self.beta1))
        rotate(s, self.adam(s, g), angle, self.t, 1e-8)

    def plain(self, s: dict[str, Any], g: np.ndarray) -> None:
        """Move anything else."""
        s["w"] = s["w"] - self.lr * (self.adam(s, g) + self.wd * s["w"])


class LiteralRotationalSGD(LiteralSGDMRT):
    """RE Algorithm 1 around SGD with momentum."""

    def turn(self, s: dict[str, Any], g: np.ndarray) -> None:
        """Move one neuron."""
        s["m"] = self.alpha * s.get("m", 0) + g
        rotate(s, s["m"], math.sqrt(2 * self.lr * self.wd / (1 + self.alpha)), self.t, 0.0)


class LiteralRotationalLion(LiteralLion):
    """RE Algorithm 1 around Lion, by the angle of the arcsine law."""

    def turn(self, s: dict[str, Any], g: np.ndarray) -> None:
        """Move one neuron."""
        angle = math.sqrt(2 * self.lr * self.wd / lion_tau(self.beta1, self.beta2))
        rotate(s, self.lion(s, g), angle, self.t, 0.0)


class LiteralKAdam(Literal):
    """CT Algorithm 1."""

    lr, wd, eps, coupled = 2e-3, 0.1, 1e-30, False
    stages = ((1 - 0.1**0.5, 1 - 0.001**0.5),) * 2

    def plain(self, s: dict[str, Any], g: np.ndarray) -> None:
        """Move anything else."""
        u = g + self.wd * s["w"] if self.coupled else g
        for i, (gamma, beta) in enumerate(self.stages):
            s[f"m{i}"] = gamma * s.get(f"m{i}", 0) + (1 - gamma) * u
            s[f"v{i}"] = beta * s.get(f"v{i}", 0) + (1 - beta) * u * u
            u = math.sqrt(1 - beta**self.t) / (1 - gamma**self.t) * s[f"m{i}"] / (np.sqrt(s[f"v{i}"]) + self.eps)
        s["w"] = s["w"] - self.lr * (u if self.coupled else u + self.wd * s["w"])


class LiteralCoupledKAdam(LiteralKAdam):
    """CT Algorithm 1 with three stages of given betas, and L2 in the gradient."""

    coupled = True
    stages = ((0.9, 0.99), (0.8, 0.95), (0.5, 0.9))


def optimizer_steps(tally: Tally) -> None:
    """Compare the weights after every step of every optimizer with the literal one's."""
    adam = {"lr": 2e-3, "weight_decay": 0.1}
    sgd = {"lr": 0.1, "weight_decay": 1e-3}
    lion = {"lr": 2e-4, "weight_decay": 1.0}
    stages = list(LiteralCoupledKAdam.stages)
    pairs: list[tuple[type[Literal], Any, dict[str, Any]]] = [
        (LiteralRotationalAdamW, optim.RotationalAdamW, adam),
        (LiteralRotationalSGD, optim.RotationalSGD, sgd),
        (LiteralRotationalLion, optim.RotationalLion, lion),
        (LiteralLion, optim.Lion, lion),
        (LiteralAdamS, optim.AdamS, adam),
        (LiteralAdamSRT, optim.AdamSRT, adam),
        (LiteralSGDMRT, optim.SGDMRT, sgd),
        (LiteralAdamG, optim.SphericalAdam, {"lr": 1e-2}),
        (LiteralKAdam, optim.KAdam, adam),
        (LiteralCoupledKAdam, optim.KAdam, {**adam, "k": 3, "betas": stages, "coupled": True}),
    ]
    for literal, made, options in pairs:
        draw = np.random.default_rng(1)
        matrix, bias = draw.normal(size=(5, 7)), draw.normal(size=7)
        parameters = [torch.nn.Parameter(torch.tensor(x)) for x in (matrix, bias)]
        expected = literal(matrix, bias)
        optimizer = made(parameters, **options)
        for t in range(STEPS):
            gradients = draw.normal(size=(5, 7)), draw.normal(size=7)
            for p, g in zip(parameters, gradients, strict=True):
                p.grad = torch.tensor(g)
            optimizer.step()
            expected.step(*gradients)
            label = f"{literal.__name__} step {t}"
            tally.close(f"{label}: neurons", parameters[0].detach(), [row["w"] for row in expected.rows], STEP)
            tally.close(f"{label}: bias", parameters[1].detach(), expected.bias["w"], STEP)
