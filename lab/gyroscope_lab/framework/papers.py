"""The papers, and their figures and tables without an experiment here: drawings, settings, and open work."""

# By the name of their folder.
PAPERS = {
    "re": "Rotational Equilibrium (Kosson et al. 2024)",
    "smd": "Spherical Motion Dynamics (Wan et al. 2020)",
    "sp": "Spherical Perspective (Roburin et al. 2020)",
    "ct": "Continuous-Time Adam",
    "beyond": "Beyond the papers",
    "transfer": "Transfer to another scale or optimizer",
    "advice": "Advice on trial",
    "remedies": "Every remedy on trial",
    "sentences": "Sentences of plans and reports on trial",
    "speed": "The speed of good runs",
}

# Not of the papers: all their claims are ours.
OURS = ("beyond", "advice", "remedies", "sentences", "speed", "transfer")

# Experiments on weight vectors with simulated gradients or single layers. All others train networks.
SIMULATED = (
    *("re/fig8", "re/table1", "re/appendix_i"),
    *("smd/fig4", "smd/fig5", "smd/theorem1", "smd/theorem2", "smd/theorem3", "smd/corollary3_1"),
    *("sp/eq44", "sp/section4_2", "sp/theorem2", "sp/theorem4", "ct/fig2"),
)

DRAWINGS = {
    "re/fig2": "Equilibrium seen as balance of norm, and as a random walk",
    "re/fig6": "The norm balances a gradient part and a decay part",
    "re/fig7": "The same balance for a total update",
    "smd/fig1": "Decay pulls in, the gradient pushes out",
    "sp/fig1": "A step of SGD seen on the sphere",
    "sp/fig2": "Radial parts, deformation and past gradients on the sphere",
    "ct/fig10": "The CNN of Figure 6",
}

SETTINGS = {
    "re/table4": "Set-ups of the experiments",
    "re/table5": "Set-ups of the sensitivity study",
    "sp/table3": "Best learning rates and momentum",
    "sp/table4": "Best L2 and order-2 moment factors",
}

# Id -> the claim, and the data of the paper. A file of the same id replaces its line here.
TO_DO = {
    "smd/table2": ("Rescaling costs a little on COCO", "COCO and a Mask R-CNN, which are not to be had here"),
}

# Figures and tables of which some rows, columns or settings are repeated: id -> those that are.
IN_PART = {
    "re/fig4": "two or three settings of forty",
    "re/fig5": "two batch sizes of five",
    "re/table2": "three networks of six",
    "re/table3": "one network with SGDM and Lion",
    "smd/fig9": "one network of two",
    "sp/table2": "one column of five",
    "sp/table5": "one column of five",
    "ct/fig4": "seven pairs of betas of a grid",
    "ct/fig12": "seven pairs of betas of a grid",
    "ct/fig13": "seven pairs of betas of a grid",
    "ct/fig6": "three k of ten, one weight decay of each kind",
    "ct/fig15": "three k of ten, one weight decay of each kind",
}
