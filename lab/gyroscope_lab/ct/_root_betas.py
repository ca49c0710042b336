"""Betas of k-Adam that performed poorly in the paper (CT Appendix O)."""

from gyroscope.tools import check_betas, check_count


def root_betas(k: int, betas: tuple[float, float] = (0.9, 0.999)) -> list[tuple[float, float]]:
    """Return betas for k stages of k-Adam: each stage has the k-th roots of Adam's pair.

        β_i = β̃^(1/k),   γ_i = γ̃^(1/k)     (CT Appendix O)

    Each stage remembers about k times as long as Adam. `gyroscope.optim.KAdam` takes the list as its `betas`.

    >>> [(round(beta1, 4), round(beta2, 5)) for beta1, beta2 in root_betas(2)]
    [(0.9487, 0.9995), (0.9487, 0.9995)]
    """
    check_count("k", k, at_least=1)
    check_betas(betas)
    return [(betas[0] ** (1 / k), betas[1] ** (1 / k))] * k
